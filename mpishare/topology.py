"""Who sits where: the nodes of a communicator and the communicators along and across them."""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mpishare import machine, meanwhile, mpi
from mpishare.abandoned import abandoned_on_error
from mpishare.agreement import agree
from mpishare.config import Config
from mpishare.ending import end_job_on_exception
from mpishare.errors import ArgumentError, LaunchError, MpishareError, StallError
from mpishare.layout import Layout, pretended_node

if TYPE_CHECKING:
    from mpishare.lookout import Lookout

__all__ = ["Topology", "check_root", "topology"]

_T = TypeVar("_T")

_LOOK_S = 0.0005
"""How often it is looked whether the other ranks have come, where the waiting has an end."""


class Topology:
    """The nodes of a communicator. Nodes are numbered by their lowest rank, which is their leader.

    Attributes:
        comm: The communicator that it describes, as the caller gave it.
        rank: This process's rank in `comm`.
        size: Number of ranks in `comm`.
        node: The node of this rank.
        n_nodes: Number of nodes.
        node_rank: This process's rank within its node.
        node_size: Number of ranks of `comm` on this node.
        hosts: The host name of each node; pretend nodes have their number behind a "~".
        host: The host name of this rank's node.
        is_leader: Whether this rank is the lowest of its node.
        node_comm: Communicator of the ranks of this node. mpishare runs only collectives on it.
        leaders: Communicator of the leaders, in the order of the nodes; MPI_COMM_NULL on the other ranks.
        rail: Communicator of the ranks that have this node rank on their nodes, in the order of the nodes.
            Nodes with fewer ranks are missing from the higher rails. mpishare runs only collectives on it.
        channel: mpishare's own duplicate of `comm`, for its collectives. From the first array on its ranks may have
            boards to meet on, as may those of `node_channel`; see `bridge`.
        mail: Another, which the heads of messages have for themselves, so that a receive with any tag gets no other.
        parts: The first one again, for what follows a head.
        speeds: Bytes a second to nodes, where messages have found it out.
        loan_bytes: How much memory this rank keeps for messages to come.
        largest_tag: The largest tag that a message may have.
        node_channel: `node_comm` as mpishare itself uses it.
        layout: The ranks of each node, as plain data.
        config: The settings read from the environment when the communicator was first used.
        pid: The process that is this rank; a fork of it is not.
        uid: A number that is the same on all ranks and differs between communicators.
        is_watched: Whether calls are compared, or waiting has an end.
        further: Communicators of ours that were made later, and go with the others.
        pool: Memory for arrays over `comm`, kept by `segments.allocation`; None until the first.
        stocks: Where ranks claim tasks, kept by `claims`; None until the first.
        segments_made: How many segments were made over `comm`, the same on all ranks.
    """

    def __init__(self, comm: mpi.Intracomm) -> None:
        """Collective over `comm`."""
        self._lookout: Lookout | None = None
        self.pid = os.getpid()
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.channel = _duplicate(comm)
        self.channel.Set_errhandler(mpi.ERRORS_RETURN)
        try:
            with agree(self.channel) as together:
                self.config = Config.read()
                together.call = self.config.common
                _check_launch(self.config)
                pretended = _pretended(self.config)
        except BaseException:
            self.channel.Free()
            raise
        self.node_comm = _split_by_node(self.channel, pretended)
        self.node_channel = self.node_comm
        self.node_rank = self.node_comm.rank
        self.node_size = self.node_comm.size
        self.mail: mpi.Intracomm = self.channel.Dup()
        self.parts = self.channel
        self.largest_tag = cast("int", mpi.COMM_WORLD.Get_attr(mpi.TAG_UB))
        self.rail = cast("mpi.Intracomm", self.channel.Split(self.node_rank, self.rank))
        self.is_leader = self.node_rank == 0
        self.leaders: mpi.Intracomm = self.rail if self.is_leader else cast("mpi.Intracomm", mpi.COMM_NULL)

        leader = self.node_comm.bcast(self.rank)
        host = mpi.Get_processor_name() + ("" if pretended is None else f"~{pretended}")
        uid = int.from_bytes(os.urandom(7), "little")
        leaders, hosts, uids = zip(*self.channel.allgather((leader, host, uid)), strict=True)
        self.layout = Layout.from_labels(leaders)
        self.node = self.layout.node_of[self.rank]
        self.n_nodes = len(self.layout.nodes)
        self.hosts: tuple[str, ...] = tuple(hosts[ranks[0]] for ranks in self.layout.nodes)
        self.host: str = self.hosts[self.node]
        self.uid: int = uids[0]
        self.loan_bytes = self.config.recycle_bytes(machine.memory_bytes()) // (2 * self.node_size)
        self.speeds: dict[int, float] = {}
        self.segments_made = 0
        self.further: list[mpi.Intracomm] = []
        self.pool: object = None
        self.stocks: object = None
        self._is_in_call = False
        self._is_torn = False
        self.is_watched = self.config.check or self.config.timeout_s is not None
        if self.is_watched:
            self._set_watch()

    def _set_watch(self) -> None:
        """From here on the ranks are compared as they call, and do not wait for ever."""
        from mpishare.lookout import Lookout  # these import mpi4py.MPI, which is safe by now, and are seldom needed
        from mpishare.watched import Watched

        hosts = [self.hosts[self.node_of(rank)] for rank in range(self.size)]
        self._lookout = Lookout(self.channel, hosts, check=self.config.check, timeout_s=self.config.timeout_s)
        self.node_channel = Watched(self.node_comm, self._lookout, self.ranks_of(self.node))
        self.channel = self._lookout.outer = Watched(self.channel, self._lookout, range(self.size), self.node_channel)

    def node_of(self, rank: int) -> int:
        """The node of `rank`."""
        return self.layout.node_of[rank]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """The ranks of `node`, in rising order."""
        return self.layout.nodes[node]

    def wait_for_message(
        self,
        request: mpi.Request,
        peer: int,
        words: str,
        status: mpi.Status | None = None,
        but: meanwhile.Going | None = None,
    ) -> None:
        """Waits for one message, of which `words` and the rank `peer` tell; where waiting has an end, to that end.

        Meanwhile all that has begun goes on but for `but`, whose message it is. An exception abandons `request`.

        Raises:
            StallError: MPISHARE_TIMEOUT has passed. A message that has not begun to come is given up.
        """
        with abandoned_on_error([request]):
            if self._lookout is None:
                meanwhile.wait(request, status, but)
                return
            is_any = peer == mpi.ANY_SOURCE
            call = f"{words} {'any rank' if is_any else f'rank {peer}'}"
            self._lookout.wait_alone(request, range(self.size) if is_any else [peer], call, status, but)

    def in_step(self, call: Callable[..., _T], *words: Any) -> _T:
        """Makes a call that takes memory, of which this and `words` are the arguments, and notes how it ended."""
        try:
            found = call(self, *words)
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return found

    def begin(self) -> None:
        """A call begins that takes memory, on all ranks in the same order. Stands in the block that the ranks agree on.

        Raises:
            MpishareError: This rank did not end an earlier one, so that it does not know what memory the others took.
        """
        if self._is_in_call or self._is_torn:
            self._is_torn = True
            raise MpishareError(
                "an exception from outside, such as a signal's, ended an earlier call on this rank before the call had "
                "ended. The ranks are out of step on this communicator: end the job, or go on with a new one."
            )
        self._is_in_call = True

    def end(self, error: BaseException | None = None) -> None:
        """The call has ended: well, or by an error. One that not all ranks know of leaves them out of step."""
        if error is None or getattr(error, "known_to", 0) == self.size:
            self._is_in_call = False

    def free(self) -> None:
        """Gives the communicators back. Collective over `comm`; called when `comm` is freed."""
        if self._lookout is not None:
            self._lookout.close()
        for comm in (self.rail, self.node_comm, self.mail, self.parts, *self.further):
            if comm != mpi.COMM_NULL:  # the caller may have freed one that callers can see
                comm.Free()
        self.channel = self.node_channel = cast("mpi.Intracomm", mpi.COMM_NULL)

    def __repr__(self) -> str:
        nodes = ", ".join(
            f"{host}: {','.join(map(str, ranks))}" for host, ranks in zip(self.hosts, self.layout.nodes, strict=True)
        )
        return f"<Topology of {self.size} ranks on {self.n_nodes} nodes ({nodes})>"


def topology(comm: mpi.Comm | None = None) -> Topology:
    """Tells which ranks of `comm` share a node. Asks MPI once a communicator, then remembers.

    Args:
        comm: An intracommunicator; MPI_COMM_WORLD when None.

    Returns:
        The topology of `comm`. It is kept on `comm` as an MPI attribute and freed with it; a duplicate of `comm` gets
        its own.

    Raises:
        ArgumentError: `comm` is no intracommunicator, MPISHARE_NODES cannot be understood, or this process is a fork
            of a rank.
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
        >>> here = ms.topology()
        >>> here.ranks_of(here.node)[here.node_rank] == here.rank
        True
    """
    known = _known.get(comm if comm is None else getattr(comm, "handle", -1))
    return _found(comm) if known is None or mpi.Is_finalized() else known


_known: dict[int | None, Topology] = {}
"""By the handle of the communicator, as long as that has our attribute; a short cut to it. Empty in a forked child.
What None means, MPI_COMM_WORLD, stands here under None as well."""


def _found(comm: mpi.Comm | None) -> Topology:
    """What `topology` returns, where that takes more than a look."""
    caller = _checked(comm)
    found = caller.Get_attr(_keyval())
    if not isinstance(found, Topology):
        end_job_on_exception()
        found = Topology(caller)
        caller.Set_attr(_keyval(), found)
        _known[mpi.handle_of(caller)] = found
        if caller == mpi.COMM_WORLD:
            _known[None] = found
    if found.pid != os.getpid():
        raise ArgumentError(
            f"this process was forked from rank {found.rank} and is no rank of its own. Read arrays in it, call "
            "mpishare in its parent, and end it with os._exit, as multiprocessing does."
        )
    return found


def _duplicate(comm: mpi.Intracomm) -> mpi.Intracomm:
    """Our own duplicate of `comm`, with an end to the waiting for ranks that do not come.

    Raises:
        StallError: They did not come within MPISHARE_TIMEOUT.
    """
    timeout_s = Config.read_timeout()
    duplicate, request = comm.Idup()
    if timeout_s is None:
        meanwhile.wait(request)
    end = time.monotonic() + (timeout_s or 0)
    while not request.Test():
        if time.monotonic() > end:
            raise StallError("the first call on a communicator", cast("float", timeout_s), {})
        meanwhile.go_on()
        time.sleep(_LOOK_S)
    return duplicate


def _checked(comm: mpi.Comm | None) -> mpi.Intracomm:
    """`comm`, or MPI_COMM_WORLD for None, when it is one that ranks can share over."""
    if mpi.Is_finalized() or not mpi.Is_initialized():
        state = "ended" if mpi.Is_initialized() else "not begun"
        raise ArgumentError(f"MPI has {state}. Call mpishare between MPI_Init and MPI_Finalize.")
    if comm is None:
        return mpi.COMM_WORLD
    if not isinstance(comm, mpi.Intracomm) or comm == mpi.COMM_NULL:
        raise ArgumentError(f"comm must be an intracommunicator of mpi4py, not {comm!r}.")
    return comm


@cache
def _keyval() -> int:
    """The key of our attribute. No copy function, so that a duplicate of a communicator does not inherit it."""

    def give_back(comm: mpi.Comm, _keyval: int, found: Topology) -> None:
        _known.pop(mpi.handle_of(comm), None)
        if not mpi.Is_finalized():
            found.free()

    os.register_at_fork(after_in_child=_known.clear)
    return mpi.Comm.Create_keyval(delete_fn=give_back)


def check_root(root: int, here: Topology) -> int:
    """`root` as a Python int.

    Raises:
        ArgumentError: It is no rank of the communicator.
    """
    try:
        rank = operator.index(root)
    except TypeError as error:
        raise ArgumentError(f"root {root!r} is no rank. Give an integer from 0 to {here.size - 1}.") from error
    if not 0 <= rank < here.size:
        raise ArgumentError(f"root {rank} is no rank of the communicator. Give an integer from 0 to {here.size - 1}.")
    return rank


def _check_launch(config: Config) -> None:
    """Refuses processes that were started together and do not know of each other: each would do the whole work.

    Raises:
        LaunchError: MPI_COMM_WORLD has one rank, the launcher started several processes.
    """
    if config.launched > 1 and mpi.COMM_WORLD.size == 1 and not config.singletons:
        raise LaunchError(
            f"{config.launched} processes were started together, but MPI sees each of them alone, because the launcher "
            "is not that of this MPI library: use srun --mpi=pmix (srun --mpi=list tells what there is) or the "
            "library's own mpiexec, or set MPISHARE_SINGLETONS=1 if each is meant to be alone."
        )


def _pretended(config: Config) -> int | None:
    """The pretend node of this process, None for real nodes. It follows MPI_COMM_WORLD, as a real node would."""
    if config.nodes is None:
        return None
    return pretended_node(config.nodes, mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size)


def _split_by_node(comm: mpi.Intracomm, pretended: int | None) -> mpi.Intracomm:
    """The ranks that can share memory, cut further where nodes are pretended: a pretend node never spans real ones."""
    real = cast("mpi.Intracomm", comm.Split_type(mpi.COMM_TYPE_SHARED, comm.rank))
    if pretended is None:
        return real
    node_comm = real.Split(pretended, comm.rank)
    real.Free()
    return cast("mpi.Intracomm", node_comm)
