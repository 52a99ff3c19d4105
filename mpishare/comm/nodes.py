"""Which ranks share memory: those that MPI puts on one node, and those of one host that reach a page of each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from mpishare.comm import mpi
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.descriptors import open_file_of
from mpishare.host.filesystems import memfd_create
from mpishare.host.procfs import boot_id

_TOKEN_BYTES = 16
"""Random bytes in the page that ranks must reach: a virtual machine and its clone have all else in common."""

_is_reported = False
"""Whether it was reported that ranks of this host cannot reach each other's memory."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of a communicator.

    Attributes:
        comm: Communicator of the ranks of this node, in the order of their ranks.
        labels: For each rank of the communicator a value that names its node.
        hosts: The host name of each rank.
        mpi_nodes: How many nodes MPI sees in the ranks of this node. Where it is not 1, MPI's windows are of no use.
    """

    comm: mpi.Intracomm
    labels: tuple[tuple[int, int | None], ...]
    hosts: tuple[str, ...]
    mpi_nodes: int


class _Rank(NamedTuple):
    """What all ranks know of one.

    Attributes:
        leader: The lowest rank of the node on which MPI puts it.
        host: The name of its host.
        boot: What names the kernel's run; "" if that is not known.
        pretend: Its pretend node, if it has one.
    """

    leader: int
    host: str
    boot: str
    pretend: int | None


def find_nodes(comm: mpi.Intracomm, pretend: int | None) -> Nodes:
    """Asks MPI which ranks can share memory, and the ranks themselves where MPI sees several nodes on one host.

    Some MPIs do so though the ranks share a kernel: MPICH 5 over UCX (mpich #7705, #7814), any MPICH with
    MPIR_CVAR_NOLOCAL=1.

    Args:
        comm: mpishare's own duplicate of a communicator.
        pretend: The pretend node of this process, which never spans real ones; None for real nodes.

    Collective:
        Over `comm`.
    """
    node_comm = cast("mpi.Intracomm", comm.Split_type(mpi.COMM_TYPE_SHARED, comm.rank))
    fact = node_comm.bcast(comm.rank), mpi.Get_processor_name(), boot_id(), pretend
    ranks = [_Rank(*fact) for fact in comm.allgather(fact)]
    leaders = [rank.leader for rank in ranks]
    kernels = _kernels(ranks)
    if len(set(kernels)) < len(set(leaders)):
        leaders = _merge(comm, leaders, kernels)
        node_comm.Free()
        node_comm = cast("mpi.Intracomm", comm.Split(leaders[comm.rank], comm.rank))
    if pretend is not None:
        real_comm = node_comm
        try:
            node_comm = cast("mpi.Intracomm", real_comm.Split(pretend, comm.rank))
        finally:
            real_comm.Free()
    labels = tuple((leader, rank.pretend) for leader, rank in zip(leaders, ranks, strict=True))
    hosts = tuple(rank.host + ("" if rank.pretend is None else f"~{rank.pretend}") for rank in ranks)
    own = labels[comm.rank]
    mpi_nodes = {rank.leader for rank, node in zip(ranks, labels, strict=True) if node == own}
    return Nodes(node_comm, labels, hosts, len(mpi_nodes))


def _kernels(ranks: Sequence[_Rank]) -> list[int]:
    """For each of `ranks` the lowest leader of a node of MPI that may have the same kernel.

    Equal host names are demanded besides equal boot ids: what has a name of its own is a host to its users, such as a
    container with limits of its own.
    """
    lowest: dict[tuple[str, str], int] = {}
    kernels = []
    for rank in ranks:
        leader = ranks[rank.leader]
        kernels.append(lowest.setdefault((leader.host, leader.boot), rank.leader) if leader.boot else rank.leader)
    return kernels


def _merge(comm: mpi.Intracomm, leaders: Sequence[int], kernels: Sequence[int]) -> list[int]:
    """For each rank the lowest leader of a node of MPI whose memory its own node reaches. Collective over `comm`."""
    host_comm = cast("mpi.Intracomm", comm.Split(kernels[comm.rank], comm.rank))
    on_host = [leader for leader, kernel in zip(leaders, kernels, strict=True) if kernel == kernels[comm.rank]]
    leader = join_nodes(CollectiveComm(host_comm), on_host)[leaders[comm.rank]]
    host_comm.Free()
    return comm.allgather(leader)


def join_nodes(comm: CollectiveComm, leaders: Sequence[int]) -> dict[int, int]:
    """For each node of MPI, by leader, the first one with a page that all of its ranks reach; its own if no other.

    Args:
        comm: The ranks of one host.
        leaders: Of each of its ranks the leader of its node of MPI.

    Collective:
        Over `comm`.
    """
    reached: dict[int, int] = {}
    reason = ""
    while len(reached) < len(set(leaders)):
        owner = next(rank for rank, leader in enumerate(leaders) if leader not in reached)
        refusals = comm.allgather_obj(_refusal(comm, owner))
        refused = {leader for leader, refusal in zip(leaders, refusals, strict=True) if refusal}
        first = leaders[owner]
        joining = {first} if first in refused else {first, *leaders} - refused
        reached = dict.fromkeys(joining, first) | reached
        reason = reason or next(filter(None, refusals), "")
    _report(comm, len(set(reached.values())), reason)
    return reached


def _refusal(comm: CollectiveComm, owner: int) -> str:
    """Why this rank does not reach a page of memory that rank `owner` makes; "" if it does. No rank raises anything.

    Collective:
        Over `comm`.
    """
    token, page, failure = os.urandom(_TOKEN_BYTES), -1, ""
    try:
        if comm.rank == owner:
            try:
                page = memfd_create()
                os.write(page, token)
            except OSError as error:
                failure = f"no file can be created in memory: {error.strerror}"
        token, failure = comm.bcast_obj((token, failure), owner)
        if failure:
            return "" if comm.rank == owner else failure
        opened = open_file_of(comm, owner, page)
        if isinstance(opened, str):
            return opened
        page = opened
        return "" if os.pread(page, _TOKEN_BYTES, 0) == token else "another page is there"
    finally:
        if page >= 0:
            os.close(page)


def _report(comm: CollectiveComm, copies: int, reason: str) -> None:
    """Writes to stderr, once on a host, that its ranks do not reach each other's memory. Collective over `comm`."""
    global _is_reported
    if copies == 1:
        return
    is_known = any(comm.allreduce_or(bytes([_is_reported])))
    _is_reported = True
    if comm.rank == 0 and not is_known:
        sys.stderr.write(
            f"mpishare: {comm.size} ranks on host {mpi.Get_processor_name()} cannot all reach each other's memory, so "
            f"they are {copies} nodes with {copies} copies of each array. Start them in one network namespace, or in "
            f"one PID and user namespace. {reason}\n"
        )
        sys.stderr.flush()
