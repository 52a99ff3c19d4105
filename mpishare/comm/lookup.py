"""Finds the context of a communicator, which is kept on it as an MPI attribute; and the public `topology`."""

from __future__ import annotations

import os
from functools import cache

from mpishare.comm import mpi
from mpishare.comm.abort import abort_on_exception
from mpishare.comm.context import Context
from mpishare.comm.topology import Topology
from mpishare.errors import ArgumentError, StallError


def topology(comm: mpi.Comm | None = None) -> Topology:
    """Returns which ranks of `comm` share a node. MPI is asked once for each communicator.

    Args:
        comm: An intracommunicator; MPI_COMM_WORLD when None.

    Returns:
        The topology of `comm`. It is kept on `comm` as an MPI attribute and freed with it; a duplicate of `comm` gets
        its own.

    Raises:
        ArgumentError: `comm` is not an intracommunicator, MPISHARE_NODES cannot be understood, or this process is a
            fork of a rank.
        StallError: Other ranks did not call within MPISHARE_TIMEOUT.
        LaunchError: Several processes were started, but each is alone in MPI_COMM_WORLD.
        MismatchError: The ranks run with different MPISHARE variables.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm` the first time; local after that.

    Source:
        MPI 3.1, sections 6.4.2 (MPI_Comm_split_type) and 6.7.2 (attributes of communicators).

    Example:
        >>> import mpishare as ms
        >>> nodes = ms.topology()
        >>> nodes.ranks_of(nodes.node)[nodes.node_rank] == nodes.rank
        True
    """
    return context_of(comm).topology


def context_of(comm: mpi.Comm | None = None) -> Context:
    """The context of `comm`, of MPI_COMM_WORLD when None; made at its first use.

    Raises:
        See `topology`.

    Collective:
        Over `comm` the first time; local after that.
    """
    known = _contexts.get(comm if comm is None else getattr(comm, "handle", -1))
    return _find_context(comm) if known is None else known


_contexts: dict[int | None, Context] = {}
"""Contexts by the handle of the communicator, a short cut to its attribute. MPI_COMM_WORLD is there under None too.
Empty in a forked child, and after MPI_Finalize."""


def _find_context(comm: mpi.Comm | None) -> Context:
    """The context as the communicator has it, or a new one."""
    checked = checked_comm(comm)
    context = checked.Get_attr(_keyval())
    if isinstance(context, StallError):
        raise context.again()
    if not isinstance(context, Context):
        abort_on_exception()
        try:
            context = Context(checked)
        except StallError as error:  # the ranks do not agree on what comes next, so the communicator stays refused
            checked.Set_attr(_keyval(), error.again())
            raise
        checked.Set_attr(_keyval(), context)
        _contexts[mpi.handle_of(checked)] = context
        if checked == mpi.COMM_WORLD:
            _contexts[None] = context
    if context.pid != os.getpid():
        raise ArgumentError(
            f"this process was forked from rank {context.topology.rank} and is not a rank of its own. Read arrays in "
            "it, call mpishare in its parent, and end it with os._exit, as multiprocessing does."
        )
    return context


def checked_comm(comm: mpi.Comm | None) -> mpi.Intracomm:
    """`comm`, or MPI_COMM_WORLD for None. Local.

    Raises:
        ArgumentError: It is not a communicator whose ranks can share.
    """
    if mpi.Is_finalized() or not mpi.Is_initialized():
        state = "ended" if mpi.Is_initialized() else "not begun"
        raise ArgumentError(f"MPI has {state}. Call mpishare between MPI_Init and MPI_Finalize.")
    if comm is None:
        return mpi.COMM_WORLD
    if comm == mpi.COMM_NULL:
        raise ArgumentError("comm is MPI_COMM_NULL, as after Free(); expected an intracommunicator of mpi4py.")
    if not isinstance(comm, mpi.Intracomm):
        raise ArgumentError(f"comm must be an intracommunicator of mpi4py, not {comm!r}.")
    return comm


@cache
def _keyval() -> int:
    """The key of our attribute. It has no copy function, so that a duplicate of a communicator does not inherit it.

    Source:
        MPI 4.1, section 11.2.4: MPI_Finalize first deletes the attributes of MPI_COMM_SELF.
    """

    def free(comm: mpi.Comm, _keyval: int, context: Context | StallError) -> None:
        _contexts.pop(mpi.handle_of(comm), None)
        if isinstance(context, Context) and not mpi.Is_finalized():
            context.free()

    def end(*_: object) -> None:
        _contexts.clear()

    os.register_at_fork(after_in_child=_contexts.clear)
    mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=end), None)  # deleted first of all in MPI_Finalize
    return mpi.Comm.Create_keyval(delete_fn=free)
