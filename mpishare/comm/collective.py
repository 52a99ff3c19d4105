"""The entry of every public collective: it finds the context, and notes whether the call ended on all ranks alike."""

from __future__ import annotations

from types import TracebackType
from typing import cast

from mpishare.comm import mpi
from mpishare.comm.agreement import Agreement, agree, is_known, refuse
from mpishare.comm.alone import refuse_alone
from mpishare.comm.communicator import CollectiveComm, WatchedComm
from mpishare.comm.context import Context, context_of
from mpishare.errors import MpishareError


class CollectiveCall:
    """One public collective call on `comm`.

    Its first agreement is `call.agree_on_arguments()`. It tells the watchdog, and refuses a communicator on which this
    rank is out of step: an exception that not all ranks know of, such as one from a signal handler, ended an earlier
    call, so that this rank does not know which memory and which messages the others took.

    Attributes:
        context: That of the communicator.
    """

    __slots__ = ("_comm", "_name", "context")

    def __init__(self, name: str, comm: mpi.Comm | None) -> None:
        self._name = name
        self.context: Context = context_of(comm)
        self._comm: CollectiveComm | None = None  # over which the ranks agree, from the first agreement on

    def __enter__(self) -> CollectiveCall:
        return self

    def agree_on_arguments(self, comm: CollectiveComm | None = None, *, is_for_all: bool = False) -> Agreement:
        """The call's first agreement, to be used as `agree` is: over all ranks, or over those of `comm`.

        Args:
            comm: The ranks that agree; all when None.
            is_for_all: Whether those of `comm` agree with all others later in the call.

        Raises:
            MpishareError: This rank is in another call on the communicator. Local: the other ranks are not.
            MismatchError, StallError: See `WatchedComm.enter`.
        """
        context = self.context
        if comm is None:
            comm = context.collective_comm
        if context.current_call:
            raise MpishareError(
                f"{self._name} was called while this rank is in {context.current_call} on the same communicator, "
                "as in a signal handler. Call it when that call has ended, or on another communicator."
            )
        agreement = refuse(comm) if context.is_out_of_step else agree(comm)
        if isinstance(comm, WatchedComm):
            meeting = context.collective_comm if is_for_all else comm
            agreement.where = cast("WatchedComm", meeting).enter(self._name)
        self._comm = comm
        context.current_call = self._name
        return agreement

    def allow_nested_calls(self) -> None:
        """Allows other calls on the communicator from here on, such as from classes that are being unpickled."""
        self.context.current_call = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._comm is not None:
            self.context.current_call = ""
            if isinstance(self._comm, WatchedComm):
                self._comm.leave()
            if error is not None and not is_known(error, self._comm.size):
                self.context.is_out_of_step = True


def collective(name: str, comm: mpi.Comm | None) -> CollectiveCall:
    """Begins the public collective `name` on `comm`. Within a task it is an ArgumentError; see `comm.alone`."""
    refuse_alone(name, comm)
    return CollectiveCall(name, comm)
