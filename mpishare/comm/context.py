"""What mpishare keeps for one communicator: facts, settings, its own communicators, and the state of each mechanism."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from threading import RLock
from typing import Any, TypeVar, cast

from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import PAYLOAD_BYTES, agree
from mpishare.comm.alone import refuse_alone
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.requests import this_thread
from mpishare.comm.topology import Topology, ask_ranks, known_ranks, make_topology, pretend_node
from mpishare.comm.unhandled import end_job_on_exception
from mpishare.comm.watchdog import FOR_EVER_S, WaitLimit, report_long_waits
from mpishare.config import Config, unknown_settings
from mpishare.errors import ArgumentError, BackendError, LaunchError, MpishareError, StallError
from mpishare.host import filesystems

_T = TypeVar("_T")

_KEY_BYTES, _NODE_BITS = 7, 16
"""Random bytes with which the keys of arrays begin, and the upper bits of them that differ between nodes."""


class Context:
    """What mpishare keeps for one communicator, from its first use until it is freed.

    Attributes:
        topology: The facts about its nodes, which users see.
        mpi_nodes: How many nodes MPI sees in the ranks of this node; where it is not 1, it makes no windows here.
        config: The settings read from the environment when the communicator was first used.
        collective_comm: mpishare's own duplicate of the communicator, for collectives; see `comm.in_flight.Tag`.
        node_collective_comm: The same for the ranks of this node. On several nodes users see it as
            `topology.node_comm`, so only collectives run on it.
        leader_comm: The same for the leaders of all nodes, which users see as `topology.leaders`; None on other ranks.
        head_comm: Another duplicate, for the heads of users' messages alone, as a receive with any tag takes any.
        data_comm: The duplicate of `collective_comm` as mpi4py has it, for what follows a head.
        max_tag: The largest tag that MPI allows.
        limit: MPISHARE_TIMEOUT for waits on it.
        is_out_of_step: Whether an exception ended a collective on this rank alone; see `comm.collective`.
        is_cut_off: Whether it did so in the middle of messages or collectives: the others may come to no agreement.
        is_refused_for_messages: Whether an exception from outside ended a message of a user; see `messages.requests`.
        current_call: The public call that this rank is in; "" if it is in none.
    """

    def __init__(self, comm: mpi.Intracomm) -> None:
        """Collective over `comm`."""
        timeout_s: float | None = Config.read_one("timeout_s")
        first_limit = WaitLimit(timeout_s or FOR_EVER_S)  # so that ranks meet which have different settings
        self._made: list[mpi.Intracomm] = []  # communicators, which are freed if MPI has none left for the next
        with _from_those_left(self._made):
            self.data_comm, request = comm.Idup()
            first_limit.wait(request)
        duplicate = self.data_comm
        duplicate.Set_errhandler(mpi.ERRORS_RETURN)
        try:
            # The others may have given up waiting by now.
            with agree(CollectiveComm(duplicate, first_limit)) as agreement:
                self.config = Config.read()
                agreement.call = self.config.common
                _check_launch(self.config)
                _check_folder(self.config)
                # A pretend node follows MPI_COMM_WORLD, as a real node would.
                world, rule = mpi.COMM_WORLD, self.config.nodes
                pretend = None if rule is None else pretend_node(rule, world.rank, world.size)
                known = known_ranks(comm, rule, pretend)
                key = os.urandom(_KEY_BYTES) if duplicate.rank == 0 else bytes(_KEY_BYTES)
                agreement.payload = (key + bytes([known is None])).ljust(PAYLOAD_BYTES, b"\0")
        except BaseException as error:
            if not isinstance(error, StallError):  # else to free it would wait for the others
                duplicate.Free()
            raise
        self._made.append(duplicate)
        self.limit = limit = WaitLimit(timeout_s)
        self.collective_comm = CollectiveComm(duplicate, limit)
        with _from_those_left(self._made):
            if known is None or agreement.payload[_KEY_BYTES]:
                known = ask_ranks(self.collective_comm, rule, pretend)
            self.topology, self.mpi_nodes = make_topology(comm, self.collective_comm, known, self._made)
            self.head_comm: mpi.Intracomm = self.collective_comm.call_together(duplicate.Dup)
            self._made.append(self.head_comm)
        facts = self.topology
        self.node_collective_comm = self.collective_comm
        if facts.n_nodes > 1:
            self.node_collective_comm = CollectiveComm(facts.node_comm, limit, facts.ranks_of(facts.node), duplicate)
        self.leader_comm = CollectiveComm(facts.leaders, limit) if facts.is_leader else None
        self.max_tag = cast("int", mpi.COMM_WORLD.Get_attr(mpi.TAG_UB))
        self._last_key = int.from_bytes(agreement.payload[:_KEY_BYTES], "little")
        self.is_out_of_step = False
        self.is_cut_off = False
        self.current_call = ""
        self._kept: dict[Callable[[Context], Any], Any] = {}
        self.is_refused_for_messages = False

    def cached(self, make: Callable[[Context], _T]) -> _T:
        """What `make(context)` returns, made once for this communicator and kept until it is freed.

        `make` is a class or a function that a higher layer gives: so each mechanism has its state here, typed.
        """
        try:
            kept: _T = self._kept[make]
        except KeyError:
            kept = self._kept[make] = make(self)
        return kept

    def new_keys(self, count: int = 1) -> int:
        """The first of `count` numbers that name arrays. They are the same on all ranks, which all call this."""
        first = self._last_key + 1
        self._last_key += count
        return first

    def of_node(self) -> Context:
        """The same for the ranks of this node, without communicators of its own; itself on a single node. Local."""
        return self.cached(_of_node)

    def free(self) -> None:
        """Frees mpishare's communicators. Collective over the communicator; called when that is freed.

        They stay if messages may be under way, which would reach the next communicator: MPI gives it the same number.
        """
        self._kept.clear()
        if not (self.is_out_of_step or self.is_refused_for_messages):
            _free(self._made)


def _of_node(context: Context) -> Context:
    """See `Context.of_node`. Its memory and its keys are other ones; no message of a user travels on it."""
    if context.topology.n_nodes == 1:
        return context
    node = copy(context)
    node.topology = context.topology.of_node()
    node.collective_comm = context.node_collective_comm
    node.leader_comm = CollectiveComm(node.topology.leaders) if node.topology.is_leader else None
    node._last_key += (context.topology.node + 1) << 8 * _KEY_BYTES - _NODE_BITS
    node._kept = {}
    return node


@contextmanager
def _from_those_left(made: list[mpi.Intracomm]) -> Iterator[None]:
    """A block that makes communicators. If MPI has none left, which all ranks find alike, it frees those `made`.

    Raises:
        BackendError: MPI makes no further communicator.
    """
    try:
        yield
    except mpi.Exception as error:
        _free(made)
        raise BackendError(
            f"MPI made no communicator for mpishare, which needs 2 for each one that it is used on, or 4 on several "
            f"nodes: {error}. If none is left, free those that are no longer used, by Free()."
        ) from error


def _free(comms: list[mpi.Intracomm]) -> None:
    """Frees communicators, except those that a user could see and has freed. Collective over them."""
    for comm in reversed(comms):
        if comm != mpi.COMM_NULL:
            comm.Free()
    comms.clear()


def _check_launch(config: Config) -> None:
    """Refuses processes that were started together but do not know of each other: each would do the whole work.

    Raises:
        LaunchError: MPI_COMM_WORLD has one rank, but the launcher started several processes.
    """
    if config.launched == 1 or mpi.COMM_WORLD.size > 1 or config.singletons:
        return
    cause = (
        f"there is no MPI here ({mpi.missing()}): install mpi4py, and an MPI library or a module of your site's"
        if mpi.missing()
        else "MPI sees each of them alone, because the launcher belongs to another MPI library: use srun --mpi=pmix "
        "(srun --mpi=list lists the choices) or the library's own mpiexec"
    )
    raise LaunchError(
        f"{config.launched} processes were started together, but {cause}, or set MPISHARE_SINGLETONS=1 if each is "
        "meant to be alone."
    )


def _check_folder(config: Config) -> None:
    """Refuses a folder that the user names and that takes no file, rather than pass it over.

    Raises:
        ArgumentError: MPISHARE_DIR cannot be used on this host.
    """
    if config.directory and (refusal := filesystems.refusal_of(config.directory)):
        raise ArgumentError(
            f"MPISHARE_DIR={config.directory!r} cannot be used: {refusal}. Use a folder on this node's own disk, or "
            "unset it."
        )


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
        BackendError: MPI makes no further communicator.
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


_NOT_MADE = object()
"""The attribute of a communicator whose context this rank makes, and after an exception from outside in that."""

_first_call = RLock()
"""Held while the first call makes what is made once, as two threads may make one at a time."""

_contexts: dict[int | None, Context] = {}
"""Contexts by the handle of the communicator, a short cut to its attribute. MPI_COMM_WORLD is there under None too.
Empty in a forked child, and after MPI_Finalize."""


def is_in_use() -> bool:
    """Whether a communicator has been used, and has not been freed."""
    return bool(_contexts)


def warn_for_node(message: str) -> None:
    """Warns of a local call: of the ranks of a node, which make it alike, the lowest warns."""
    context = _contexts.get(None) or next(iter(list(_contexts.values())), None)
    if context is None or context.topology.is_leader:
        callsite.warn(message)


_why_no_rank: list[str] = []
"""Why this process is not a rank; empty if it is one, or may become one."""


def become_child(parent: str) -> None:
    """Notes that this process got a handle from `parent`, and so is not a rank, unless it is one already."""
    if "mpi4py.MPI" not in sys.modules and not _contexts and not _why_no_rank:
        cause = (
            f"got a handle from {parent} and is not a rank of its own. Read arrays in it, and call mpishare in a rank"
        )
        _why_no_rank.append(cause)


def _find_context(comm: mpi.Comm | None) -> Context:
    """The context as the communicator has it, or a new one."""
    if _why_no_rank:
        raise ArgumentError(f"this process {_why_no_rank[0]}.")
    checked = checked_comm(comm)
    with _first_call:
        keyval = _keyval()
    context = checked.Get_attr(keyval)
    if isinstance(context, StallError):
        raise context.again()
    if context is _NOT_MADE:
        raise MpishareError(
            "the first call on this communicator has not ended on this rank. A signal handler calls mpishare on other "
            "communicators alone. If its exception has ended that call, end the job, or use a new communicator."
        )
    if not isinstance(context, Context):
        refuse_alone("the first call on a communicator", checked)
        begun = this_thread.begun
        checked.Set_attr(keyval, _NOT_MADE)
        try:
            context = Context(checked)
        except MpishareError as error:  # after a StallError the ranks do not agree on what comes next
            checked.Set_attr(keyval, error.again() if isinstance(error, StallError) else None)
            raise
        checked.Set_attr(keyval, context)
        this_thread.begun = begun
        _contexts[checked.handle] = context
        if checked == mpi.COMM_WORLD:
            _contexts[None] = context
    return context


def checked_comm(comm: mpi.Comm | None) -> mpi.Intracomm:
    """`comm`, or MPI_COMM_WORLD for None. Local.

    Raises:
        ArgumentError: It is not a communicator whose ranks can share.
    """
    if mpi.Is_finalized() or not mpi.Is_initialized():
        state = "ended" if mpi.Is_initialized() else "not begun"
        raise ArgumentError(f"MPI has {state}. Call mpishare between MPI_Init and MPI_Finalize.")
    comm = mpi.communicator(comm)
    if comm == mpi.COMM_NULL:
        raise ArgumentError("comm is MPI_COMM_NULL, as after Free(); expected an intracommunicator of mpi4py.")
    if not isinstance(comm, mpi.Intracomm):
        raise ArgumentError(f"comm is {comm!r}; expected an intracommunicator of mpi4py, whose ranks take part.")
    return comm


@cache
def _keyval() -> int:
    """The key of our attribute, made with all that begins with the first call of this process.

    It has no copy function, so that a duplicate of a communicator does not inherit the attribute.

    Source:
        MPI 4.1, section 11.2.4: MPI_Finalize first deletes the attributes of MPI_COMM_SELF.
    """
    mpi.refuse_children_of_ranks()
    if Config.read_one("excepthook"):
        end_job_on_exception()
    for text in unknown_settings() if mpi.COMM_WORLD.rank == 0 else ():
        callsite.log(f"warning: {text}")
    report_long_waits()

    def free(comm: mpi.Comm, _keyval: int, context: object) -> None:
        _contexts.pop(comm.handle, None)
        if isinstance(context, Context) and not mpi.Is_finalized():
            context.free()

    def end(*_: object) -> None:
        _contexts.clear()

    rank = mpi.COMM_WORLD.rank

    def forked() -> None:
        _contexts.clear()
        _why_no_rank.append(
            f"was forked from rank {rank} and is not a rank of its own. Read arrays in it, call mpishare in its "
            "parent, and end it with os._exit, as multiprocessing does"
        )

    os.register_at_fork(after_in_child=forked)
    mpi.COMM_SELF.Set_attr(mpi.Comm.Create_keyval(delete_fn=end), None)  # deleted first of all in MPI_Finalize
    return mpi.Comm.Create_keyval(delete_fn=free)
