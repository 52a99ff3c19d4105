"""topology and context: who sits where, found by MPI or pretended, kept on the communicator until that is freed."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.comm.placement import Placement, pretend_node
from mpishare.comm.watched_comm import WatchedComm

pytestmark = pytest.mark.mpi


def test_facts_agree_with_one_another(comm: MPI.Intracomm) -> None:
    topology = ms.topology()
    nodes = [topology.ranks_of(node) for node in range(topology.n_nodes)]
    assert (topology.rank, topology.size, topology.comm) == (comm.rank, comm.size, comm)
    assert topology.node_of(comm.rank) == topology.node
    assert nodes[topology.node][topology.node_rank] == comm.rank
    assert topology.node_size == len(nodes[topology.node]) == topology.node_comm.size
    assert topology.n_nodes == len(topology.hosts)
    assert topology.is_leader == (topology.node_rank == 0)
    assert sorted(rank for ranks in nodes for rank in ranks) == list(range(comm.size))
    assert nodes == sorted(nodes)
    assert f"{comm.size} ranks on {topology.n_nodes} nodes" in repr(topology)


def test_nodes_are_as_pretended_or_one_a_host(comm: MPI.Intracomm) -> None:
    topology, rule = ms.topology(), context_of().config.nodes
    hosts = comm.allgather(MPI.Get_processor_name())
    labels = [pretend_node(rule, rank, comm.size) for rank in range(comm.size)] if rule else hosts
    assert topology.placement == Placement.from_labels(labels)
    assert len(set(topology.hosts)) == topology.n_nodes


def test_communicators() -> None:
    topology = ms.topology()
    nodes = [topology.ranks_of(node) for node in range(topology.n_nodes)]
    assert topology.node_comm.allgather(topology.rank) == list(nodes[topology.node])
    rail = [node for node, ranks in enumerate(nodes) if len(ranks) > topology.node_rank]
    assert topology.rail.allgather(topology.node) == rail
    if topology.is_leader:
        assert topology.leaders.allgather(topology.rank) == [ranks[0] for ranks in nodes]
    assert (topology.leaders == MPI.COMM_NULL) == (not topology.is_leader)


def test_a_communicator_keeps_its_own_until_it_is_freed(comm: MPI.Intracomm) -> None:
    assert ms.topology(comm) is ms.topology()
    first = comm.Dup()
    index = first.py2f()
    first.Free()
    for is_part_freed in [False, True] * 20:
        duplicate = comm.Dup()
        context = context_of(duplicate)
        assert context.topology is ms.topology(duplicate) is not ms.topology(comm)
        assert context.uid != context_of(comm).uid
        if is_part_freed:
            context.topology.node_comm.Free()  # as a careless caller may do
        duplicate.Free()
        assert context.data_comm == MPI.COMM_NULL
    last = comm.Dup()
    assert last.py2f() == index
    last.Free()


def test_a_node_does_not_depend_on_the_communicator(comm: MPI.Intracomm) -> None:
    reversed_comm = comm.Split(0, -comm.rank)
    topology = ms.topology(reversed_comm)
    assert set(topology.node_comm.allgather(ms.topology().node)) == {ms.topology().node}
    assert topology.node_size == ms.topology().node_size
    reversed_comm.Free()


def test_errors_of_mpi_are_raised_whatever_the_callers_handler(comm: MPI.Intracomm) -> None:
    duplicate = comm.Dup()
    duplicate.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    assert context_of(duplicate).data_comm.Get_errhandler() == MPI.ERRORS_RETURN
    duplicate.Free()


def test_only_settings_make_it_watch() -> None:
    context = context_of()
    is_watched = context.config.check or context.config.timeout_s is not None
    assert context.is_watched == is_watched
    assert isinstance(context.collective_comm, WatchedComm) == is_watched
    assert isinstance(context.node_collective_comm, WatchedComm) == is_watched
