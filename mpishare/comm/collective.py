"""The entry of every public collective: its first agreement, and whether the call ended on all ranks alike."""

from __future__ import annotations

from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, PAYLOAD_BYTES, Agreement, is_cut_off, is_known
from mpishare.comm.alone import blocks, end_others, refuse_alone
from mpishare.comm.context import context_of, topology
from mpishare.comm.requests import this_thread
from mpishare.errors import MpishareError

_FOR_ALL = b"\1".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a rank that calls for all nodes, among the ranks of its node."""


class collective(Agreement):  # noqa: N801 - used as `with collective("share", comm) as call:`
    """One public collective call on a communicator, and its first agreement, which is made within the block.

    What the block does before `agree` is local work: an error there is every rank's error. After it, work that can fail
    stands in agreements of its own.

    It refuses a communicator on which this rank is out of step: an exception that not all ranks know of, such as one
    from a signal handler, ended an earlier call, so that this rank does not know which memory and which messages
    the others took.

    Attributes:
        context: The context of the communicator, or with the scope "node" of the ranks of this node.
        ends_in_collective: Whether a collective of MPI follows `agree`, in no agreement, and has not ended. Then an
            exception from outside cuts this rank off: the others may be in that collective. It is set before `agree`,
            as an exception may come right after it.
    """

    __slots__ = (
        "_blocks", "_has_agreed", "_is_for_all", "_meets_node", "_name", "_of_all", "context", "ends_in_collective",
    )  # fmt: skip

    def __init__(
        self, name: str, comm: mpi.Comm | None, scope: str = "all", *, meets_other_scopes: bool = False
    ) -> None:
        """Begins the public collective `name` on `comm`. Within a task it is an ArgumentError; see `comm.alone`.

        Args:
            name: The public name.
            comm: The communicator.
            scope: "all" where all ranks agree, "node" where the ranks of each node do.
            meets_other_scopes: Whether the ranks of a node hear, also without MPISHARE_CHECK, that they differ in it.

        Raises:
            MpishareError: This rank is in another call on the communicator. Local: the other ranks are not.
        """
        self._is_for_all = scope != "node"
        if blocks:  # nearly never
            refuse_alone(name, comm if self._is_for_all or meets_other_scopes else topology(comm).node_comm)
        self._blocks = tuple(blocks)
        self._begun = this_thread.begun
        self._name = name
        self._of_all = context = context_of(comm)
        self._has_agreed = self.ends_in_collective = False
        if context.current_call:
            raise MpishareError(
                f"{name} was called while this rank is in {context.current_call} on the same communicator, "
                "as in a signal handler. Call it when that call has ended, or on another communicator. If a handler's "
                "exception has ended that call, end the job, or use a new communicator."
            )
        self._meets_node = False
        if context.topology.n_nodes > 1:
            self._meets_node = meets_other_scopes or (context.config.check and self._is_for_all)
            context = context if self._is_for_all else context.of_node()
        self.context = context
        self._comm, self.call, self.payload = context.collective_comm, "", NO_PAYLOAD  # as `super().__init__` does

    def __enter__(self) -> collective:
        if self._of_all.is_out_of_step:
            self._refuse()
        self._of_all.current_call = self._name
        return self

    def _refuse(self) -> None:
        """Raises the error of a rank that is out of step: every rank's error, unless they may be in an earlier call."""
        error = MpishareError(
            "an exception from outside, such as a signal handler's, ended an earlier call on this rank before "
            "the call had ended. The ranks are out of step on this communicator: end the job, or use a new one."
        )
        if not self._of_all.is_cut_off:
            self.exchange(error)
        this_thread.begun = self._begun
        raise error

    def agree(self, call: str, payload: bytes = NO_PAYLOAD) -> bytes:
        """The call's first agreement. Collective over the ranks of the scope.

        Args:
            call: A text that must be equal on all ranks.
            payload: `PAYLOAD_BYTES` bytes.

        Returns:
            The bitwise OR of the payloads of all ranks.
        """
        self.call = call
        self.payload = payload
        self._has_agreed = True
        if self._meets_node:
            self.exchange()
        else:  # the same, without a frame more in each small call
            Agreement.exchange(self)
        return self.payload

    def exchange(self, error: BaseException | None = None) -> None:
        """Agrees: where ranks of a node must hear that they differ in the scope, among them first.

        Then all ranks agree if one of the node has called for all of them, so that the other nodes, which wait for
        that, hear of an error, too.
        """
        if not self._meets_node:
            super().exchange(error)
            return
        of_node, failure = Agreement(self._of_all.node_collective_comm), error
        of_node.call = self._name
        of_node.payload = _FOR_ALL if self._is_for_all else NO_PAYLOAD
        try:
            of_node.exchange(error)
        except MpishareError as raised:
            if not is_known(raised, self._of_all.topology.node_size):
                raise
            failure = raised
        if of_node.payload == _FOR_ALL:
            self._comm = self._of_all.collective_comm
            super().exchange(failure)
        if failure is not None and failure is not error:
            raise failure

    def allow_nested_calls(self) -> None:
        """Allows other calls on the communicator from here on, such as from classes that are being unpickled."""
        self._of_all.current_call = ""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self._of_all.current_call = ""
            this_thread.begun = self._begun
            return
        try:
            if not self._has_agreed:
                super().__exit__(kind, error, traceback)
        except BaseException as raised:
            self._end(raised)
            raise
        self._end(error)

    def _end(self, error: BaseException) -> None:
        """Notes whether all ranks have the error with which the call ends."""
        self._of_all.current_call = ""
        end_others(self._blocks)
        if is_known(error, self._comm.size):
            this_thread.begun = self._begun
        else:
            self._of_all.is_out_of_step = True
            self._of_all.is_cut_off = self._of_all.is_cut_off or self.ends_in_collective or is_cut_off(error)
