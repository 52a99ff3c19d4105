"""The facts about a communicator's nodes: which ranks sit where, and the communicators along and across nodes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple, cast

from mpishare.comm import mpi
from mpishare.comm.communicator import CollectiveComm
from mpishare.errors import ArgumentError
from mpishare.host.procfs import boot_id


@dataclass(frozen=True)
class Placement:
    """The ranks of each node. Nodes are numbered by their lowest rank, which is their leader.

    Attributes:
        nodes: For each node its ranks, in rising order.
    """

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_labels(cls, labels: Sequence[Hashable]) -> Placement:
        """Puts ranks with equal labels on one node; `labels[rank]` may be any value that names a node."""
        nodes: dict[Hashable, list[int]] = {}
        for rank, name in enumerate(labels):
            nodes.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, nodes.values())))

    @cached_property
    def node_of(self) -> dict[int, int]:
        """The node of each rank."""
        return {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}

    def leader(self, node: int) -> int:
        """The lowest rank of `node`."""
        return self.nodes[node][0]


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """The nodes of a communicator. Nodes are numbered by their lowest rank, which is their leader.

    You may use its communicators for calls of your own, but may not free them.

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
        node_comm: Communicator of the ranks of this node; `comm` itself on a single node. On several nodes mpishare
            runs collectives on it, and sends no messages.
        leaders: Communicator of the leaders, in the order of the nodes; MPI_COMM_NULL on the other ranks. mpishare runs
            only collectives on it, as it is the lowest rail.
        rail: Communicator of the ranks that have this node rank on their nodes, in the order of the nodes.
            Nodes with fewer ranks are missing from the higher rails. On a single node it is MPI_COMM_SELF. mpishare
            runs only collectives on it.
        placement: The ranks of each node, as plain data.
    """

    comm: mpi.Intracomm
    rank: int
    size: int
    node: int
    n_nodes: int
    node_rank: int
    node_size: int
    hosts: tuple[str, ...]
    host: str
    is_leader: bool
    node_comm: mpi.Intracomm
    leaders: mpi.Intracomm
    rail: mpi.Intracomm
    placement: Placement

    def node_of(self, rank: int) -> int:
        """The node of `rank`."""
        return self.placement.node_of[rank]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """The ranks of `node`, in rising order."""
        return self.placement.nodes[node]

    def of_node(self) -> Topology:
        """The topology of the ranks of this node."""
        placement = Placement((tuple(range(self.node_size)),))
        return _topology(self.node_comm, self.node_comm, mpi.COMM_SELF, (self.host,), placement)

    def __repr__(self) -> str:
        nodes = ", ".join(
            f"{host}: {','.join(map(str, ranks))}" for host, ranks in zip(self.hosts, self.placement.nodes, strict=True)
        )
        return f"<Topology of {self.size} ranks on {self.n_nodes} nodes ({nodes})>"


def _topology(
    comm: mpi.Intracomm, node_comm: mpi.Intracomm, rail: mpi.Intracomm, hosts: tuple[str, ...], placement: Placement
) -> Topology:
    """What these tell of the nodes of `comm`. Local."""
    node, is_leader = placement.node_of[comm.rank], node_comm.rank == 0
    return Topology(
        comm=comm,
        rank=comm.rank,
        size=comm.size,
        node=node,
        n_nodes=len(placement.nodes),
        node_rank=node_comm.rank,
        node_size=node_comm.size,
        hosts=hosts,
        host=hosts[node],
        is_leader=is_leader,
        node_comm=node_comm,
        leaders=rail if is_leader else cast("mpi.Intracomm", mpi.COMM_NULL),
        rail=rail,
        placement=placement,
    )


class _Rank(NamedTuple):
    """What is known of one rank.

    Attributes:
        mpi_node: The same for the ranks that MPI puts on one node.
        kernel: The same for the ranks whose nodes of MPI have one kernel.
        host: The name of its host.
        pretend: Its pretend node, if it has one.
    """

    mpi_node: int
    kernel: Hashable
    host: str
    pretend: int | None


_known: dict[str | None, dict[int, _Rank]] = {}
"""What the largest communicator so far has shown of its ranks, by the rule of pretend nodes, and by the rank of
MPI_COMM_WORLD. A communicator of some of these ranks need not ask again."""


def known_ranks(comm: mpi.Intracomm, rule: str | None, pretend: int | None) -> list[_Rank] | None:
    """What this process knows of the ranks of a communicator, by rank; None unless it knows all of them. Local.

    Args:
        comm: The communicator.
        rule: The rule of pretend nodes.
        pretend: The pretend node of this process, which never spans real ones; None for real nodes.
    """
    if comm.size == 1:
        return [_Rank(0, 0, mpi.Get_processor_name(), pretend)]
    known = _known.get(rule, {})
    ranks = [known[rank] for rank in mpi.ranks_in(comm, mpi.COMM_WORLD) if rank in known]
    return ranks if len(ranks) == comm.size else None


def ask_ranks(together: CollectiveComm, rule: str | None, pretend: int | None) -> list[_Rank]:
    """Asks MPI which ranks can share memory, and all ranks for their hosts; returns what is known of each, by rank.

    Nodes of MPI are one node if they have the same kernel. Some MPIs see several nodes there: MPICH 5 over UCX (mpich
    #7705, #7814), any MPICH with MPIR_CVAR_NOLOCAL=1. Equal host names are demanded besides equal boot ids: what has a
    name of its own is a host to its users, such as a container with limits of its own.

    Args:
        together: mpishare's own duplicate of the communicator.
        rule: See `known_ranks`.
        pretend: See `known_ranks`.

    Collective:
        Over `together`.
    """
    split_type = cast("Callable[..., mpi.Intracomm]", together.comm.Split_type)
    of_mpi = together.call_together(partial(split_type, mpi.COMM_TYPE_SHARED, together.rank))
    leader = mpi.ranks_in(of_mpi, together.comm)[0]
    of_mpi.Free()
    facts = together.allgather_obj((leader, mpi.Get_processor_name(), boot_id(), pretend))
    kernels = [(facts[leader][1], facts[leader][2]) if facts[leader][2] else leader for leader, *_ in facts]
    ranks = [_Rank(fact[0], kernel, fact[1], fact[3]) for fact, kernel in zip(facts, kernels, strict=True)]
    by_world_rank = dict(zip(mpi.ranks_in(together.comm, mpi.COMM_WORLD), ranks, strict=True))
    if mpi.UNDEFINED not in by_world_rank and len(ranks) > len(_known.get(rule, ())):
        _known[rule] = by_world_rank
    return ranks


def make_topology(
    comm: mpi.Intracomm, together: CollectiveComm, ranks: Sequence[_Rank], made: list[mpi.Intracomm]
) -> tuple[Topology, int]:
    """Makes the communicators within and across the nodes.

    Args:
        comm: The caller's communicator.
        together: mpishare's own duplicate of it.
        ranks: What is known of each rank.
        made: Gets each communicator that is made, also where the next cannot be.

    Returns:
        The topology, and how many nodes MPI sees in the ranks of this node. If more than 1, MPI's windows are of no
        use.

    Collective:
        Over `together`.
    """
    rank = together.rank
    split = cast("Callable[..., mpi.Intracomm]", together.comm.Split)
    placement = Placement.from_labels([(each.kernel, each.pretend) for each in ranks])
    node, node_comm, rail = placement.node_of[rank], comm, mpi.COMM_SELF
    if len(placement.nodes) > 1:
        made.append(node_comm := together.call_together(partial(split, node, rank)))
        made.append(rail := together.call_together(partial(split, node_comm.rank, rank)))
    leaders = [ranks[of_node[0]] for of_node in placement.nodes]
    hosts = tuple(each.host + ("" if each.pretend is None else f"~{each.pretend}") for each in leaders)
    topology = _topology(comm, node_comm, rail, hosts, placement)
    return topology, len({ranks[other].mpi_node for other in placement.nodes[node]})


_RULE = re.compile(r"(block|cyclic):([1-9]\d*)|sizes:([1-9]\d*(?:,[1-9]\d*)*)", re.ASCII)


def pretend_node(rule: str, rank: int, size: int) -> int:
    """The pretend node of a rank of MPI_COMM_WORLD, for tests and debugging on one machine.

    Args:
        rule: "block:K", K ranks per node in order; "cyclic:K", ranks dealt round K nodes;
            "sizes:A,B,…", nodes of A, B, … ranks.
        rank: A rank of MPI_COMM_WORLD.
        size: Its number of ranks.

    Raises:
        ArgumentError: `rule` is none of these, or its sizes do not add up to `size`.
    """
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ArgumentError(f"MPISHARE_NODES={rule!r} is not understood. Use block:K, cyclic:K or sizes:A,B,…")
    name, number, sizes = match.groups()
    if sizes is None:
        return rank // int(number) if name == "block" else rank % int(number)
    ends = list(accumulate(map(int, sizes.split(","))))
    if ends[-1] != size:
        raise ArgumentError(f"MPISHARE_NODES={rule!r} places {ends[-1]} ranks, but MPI_COMM_WORLD has {size}.")
    return bisect_right(ends, rank)
