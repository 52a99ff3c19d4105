"""Topology: the facts about nodes, asked of MPI once for each communicator; and the context they are kept in."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.comm.placement import Placement, pretend_node
from mpishare.comm.watched_comm import WatchedComm


def test_facts_agree_with_one_another(comm: MPI.Intracomm) -> None:
    nodes = ms.topology()
    ranks = [nodes.ranks_of(node) for node in range(nodes.n_nodes)]
    assert (nodes.comm, nodes.rank, nodes.size) == (comm, comm.rank, comm.size)
    assert nodes.node_of(nodes.rank) == nodes.node
    assert ranks[nodes.node][nodes.node_rank] == nodes.rank
    assert nodes.node_size == len(ranks[nodes.node]) == nodes.node_comm.size
    assert nodes.host == nodes.hosts[nodes.node]
    assert nodes.n_nodes == len(nodes.hosts)
    assert nodes.is_leader == (nodes.node_rank == 0)
    assert sorted(sum(ranks, ())) == list(range(comm.size))
    assert sorted(ranks) == ranks
    with pytest.raises(FrozenInstanceError):
        nodes.node = 1  # type: ignore[misc]


def test_nodes_are_those_of_mpi_or_as_the_rule_of_pretend_nodes_says(comm: MPI.Intracomm) -> None:
    nodes, rule = ms.topology(), context_of().config.nodes
    labels = comm.allgather(MPI.Get_processor_name())
    hosts = [labels[nodes.ranks_of(node)[0]] for node in range(nodes.n_nodes)]
    if rule is not None:
        labels = [pretend_node(rule, rank, comm.size) for rank in range(comm.size)]
        hosts = [f"{host}~{labels[nodes.ranks_of(node)[0]]}" for node, host in enumerate(hosts)]
    assert nodes.placement == Placement.from_labels(labels)
    assert nodes.hosts == tuple(hosts)
    assert repr(nodes).startswith(f"<Topology of {comm.size} ranks on {nodes.n_nodes} nodes")


def test_communicators() -> None:
    nodes = ms.topology()
    ranks = [nodes.ranks_of(node) for node in range(nodes.n_nodes)]
    assert nodes.node_comm.allgather(nodes.rank) == list(ranks[nodes.node])
    on_rail = [node for node in range(nodes.n_nodes) if len(ranks[node]) > nodes.node_rank]
    assert nodes.rail.allgather(nodes.node) == on_rail
    assert (nodes.leaders == MPI.COMM_NULL) != nodes.is_leader
    if nodes.is_leader:
        assert nodes.leaders.allgather(nodes.rank) == [node[0] for node in ranks]


def test_each_communicator_is_asked_once_and_has_its_own_freed_with_it(comm: MPI.Intracomm) -> None:
    assert ms.topology(comm) is ms.topology()
    first = comm.Dup()
    index = first.py2f()
    first.Free()
    for _ in range(50):
        duplicate = comm.Dup()
        context = context_of(duplicate)
        assert context.topology is not ms.topology(comm)
        assert context.uid != context_of(comm).uid
        assert len(set(comm.allgather(context.uid))) == 1
        duplicate.Free()
        assert context.data_comm == context.head_comm == context.topology.node_comm == MPI.COMM_NULL
    last = comm.Dup()
    assert last.py2f() == index
    last.Free()


def test_a_node_does_not_depend_on_the_communicator(comm: MPI.Intracomm) -> None:
    world = ms.topology()
    reversed_comm = comm.Split(0, -comm.rank)
    nodes = ms.topology(reversed_comm)
    assert set(nodes.node_comm.allgather(world.node)) == {world.node}
    assert nodes.node_size == world.node_size
    reversed_comm.Free()


def test_it_is_freed_even_when_the_caller_freed_a_part(duplicate: MPI.Intracomm) -> None:
    context = context_of(duplicate)
    context.topology.node_comm.Free()
    duplicate.Free()
    assert context.data_comm == MPI.COMM_NULL


def test_errors_of_mpi_are_raised_whatever_the_callers_handler(duplicate: MPI.Intracomm) -> None:
    duplicate.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    assert context_of(duplicate).data_comm.Get_errhandler() == MPI.ERRORS_RETURN


def test_nothing_is_watched_where_the_settings_do_not_ask_for_it() -> None:
    context = context_of()
    is_wanted = context.config.check or context.config.timeout_s is not None
    assert context.is_watched == is_wanted
    assert isinstance(context.collective_comm, WatchedComm) == is_wanted
    assert isinstance(context.node_collective_comm, WatchedComm) == is_wanted
