"""The entry of every public collective: it finds the context, and notes whether the call ended on all ranks alike."""

from __future__ import annotations

from types import TracebackType

from mpishare.comm import mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, Agreement, agree, is_cut_off, is_known
from mpishare.comm.alone import blocks, refuse_alone
from mpishare.comm.context import Context, context_of, topology
from mpishare.comm.requests import this_thread
from mpishare.errors import MpishareError

_FOR_ALL = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a rank that calls for all nodes, among the ranks of its node."""


class _NodeFirst(Agreement):
    """An agreement of the ranks of this node, and then of all ranks, if one of the node has called for all of them.

    So ranks of a node that differ in this hear of it, and the other nodes, which wait for them, do too.
    """

    def __init__(self, context: Context, name: str, is_for_all: bool) -> None:
        super().__init__(context.collective_comm)
        self._node = agree(context.node_collective_comm)
        self._node_size = context.topology.node_size
        self._node.call = name
        if is_for_all:
            self._node.payload = _FOR_ALL

    def __enter__(self) -> Agreement:
        super().__enter__()
        self._node.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        failure = error
        try:
            self._node.__exit__(kind, error, traceback)
        except MpishareError as raised:
            if not is_known(raised, self._node_size):
                raise
            failure = raised
        if self._node.payload == _FOR_ALL:
            super().__exit__(None if failure is None else type(failure), failure, traceback)
        if failure is not None and failure is not error:
            raise failure


class CollectiveCall:
    """One public collective call on `comm`.

    Its first agreement is `call.agree_on_arguments()`. It refuses a communicator on which this rank is out of step: an
    exception that not all ranks know of, such as one from a signal handler, ended an earlier call, so that this rank
    does not know which memory and which messages the others took.

    Attributes:
        context: The context of the communicator, or of the ranks of this node.
    """

    __slots__ = ("_begun", "_name", "_of_all", "_size", "context")

    def __init__(self, name: str, comm: mpi.Comm | None, scope: str) -> None:
        self._begun = this_thread.begun
        self._name = name
        self._size = 0  # of the ranks that agree, from the first agreement on
        self._of_all: Context = context_of(comm)
        self.context = self._of_all.of_node() if scope == "node" else self._of_all

    def __enter__(self) -> CollectiveCall:
        return self

    def agree_on_arguments(self, scope: str = "all", *, meets_other_scopes: bool = False) -> Agreement:
        """The call's first agreement, to be used as `agree` is.

        Args:
            scope: "all" where all ranks agree, "node" where the ranks of each node do.
            meets_other_scopes: Whether the ranks of a node hear, also without MPISHARE_CHECK, that they differ in it.

        Raises:
            MpishareError: This rank is in another call on the communicator. Local: the other ranks are not. Or this
                rank is out of step; then it is every rank's error, unless they may be in a collective of that call.
        """
        context, topology = self._of_all, self.context.topology
        if context.current_call:
            raise MpishareError(
                f"{self._name} was called while this rank is in {context.current_call} on the same communicator, "
                "as in a signal handler. Call it when that call has ended, or on another communicator."
            )
        error = None
        if context.is_out_of_step:
            error = MpishareError(
                "an exception from outside, such as a signal handler's, ended an earlier call on this rank before "
                "the call had ended. The ranks are out of step on this communicator: end the job, or use a new one."
            )
            if context.is_cut_off:
                raise error
        context.current_call = self._name
        self._size = topology.size if scope == "all" else topology.node_size
        agreement = Agreement(self.context.collective_comm)
        if topology.n_nodes > 1 and (meets_other_scopes or context.config.check):
            agreement = _NodeFirst(context, self._name, scope == "all")
        if error is not None:
            with agreement:
                raise error
        return agreement

    def allow_nested_calls(self) -> None:
        """Allows other calls on the communicator from here on, such as from classes that are being unpickled."""
        self._of_all.current_call = ""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._size:
            self._of_all.current_call = ""
            if error is not None and not is_known(error, self._size):
                self._of_all.is_out_of_step = True
                self._of_all.is_cut_off = self._of_all.is_cut_off or is_cut_off(error)
                return
        this_thread.begun = self._begun


def collective(name: str, comm: mpi.Comm | None, scope: str = "all") -> CollectiveCall:
    """Begins the public collective `name` on `comm`, or with the scope "node" on its ranks of this node.

    Within a task it is an ArgumentError; see `comm.alone`.
    """
    if blocks:  # nearly never
        refuse_alone(name, topology(comm).node_comm if scope == "node" else comm)
    return CollectiveCall(name, comm, scope)
