"""Topology: the facts about nodes, asked of MPI once for each communicator; and the context they are kept in."""

from dataclasses import FrozenInstanceError

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.comm.placement import Placement, pretend_node
from mpishare.comm.watched_comm import WatchedComm


@pytest.mark.parametrize("is_reversed", [False, True])
def test_nodes_are_those_of_mpi_or_as_the_rule_of_pretend_nodes_says(is_reversed, comm):
    rule, world = context_of().config.nodes, comm
    comm = world.Split(0, -world.rank) if is_reversed else world
    hosts = comm.allgather(MPI.Get_processor_name())
    labels = hosts if rule is None else comm.allgather(pretend_node(rule, world.rank, world.size))
    placement, nodes = Placement.from_labels(labels), ms.topology(comm)
    assert (nodes.comm, nodes.rank, nodes.size, nodes.placement) == (comm, comm.rank, comm.size, placement)
    names = tuple(hosts[ranks[0]] + ("" if rule is None else f"~{labels[ranks[0]]}") for ranks in placement.nodes)
    assert (nodes.hosts, nodes.n_nodes) == (names, len(names))
    node = placement.node_of[comm.rank]
    ranks = placement.nodes[node]
    assert (nodes.node, nodes.host, nodes.ranks_of(node)) == (nodes.node_of(comm.rank), names[node], ranks)
    assert (nodes.node_size, nodes.node_rank) == (len(ranks), ranks.index(comm.rank))
    assert nodes.is_leader == (nodes.leaders != MPI.COMM_NULL) == (comm.rank == ranks[0])
    assert nodes.node_comm.allgather(comm.rank) == list(ranks)
    on_rail = [others[nodes.node_rank] for others in placement.nodes if len(others) > nodes.node_rank]
    assert nodes.rail.allgather(comm.rank) == on_rail
    if nodes.is_leader:
        assert nodes.leaders.allgather(comm.rank) == [ranks[0] for ranks in placement.nodes]
    assert repr(nodes).startswith(f"<Topology of {comm.size} ranks on {len(names)} nodes ({names[0]}: 0")
    with pytest.raises(FrozenInstanceError):
        nodes.node = 1  # type: ignore[misc]
    if is_reversed:
        comm.Free()


def test_each_communicator_is_asked_once_and_has_its_own_freed_with_it(comm):
    assert ms.topology(comm) is ms.topology()
    first = comm.Dup()
    index = first.py2f()
    first.Free()
    for number in range(50):
        duplicate = comm.Dup()
        context = context_of(duplicate)
        assert context.topology is not ms.topology(comm)
        assert context.uid != context_of(comm).uid
        assert len(set(comm.allgather(context.uid))) == 1
        if number == 0:
            context.topology.node_comm.Free()
        duplicate.Free()
        assert context.data_comm == context.head_comm == context.topology.node_comm == MPI.COMM_NULL
    last = comm.Dup()
    assert last.py2f() == index
    last.Free()


def test_errors_of_mpi_are_raised_whatever_the_callers_handler(duplicate):
    duplicate.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    assert context_of(duplicate).data_comm.Get_errhandler() == MPI.ERRORS_RETURN


def test_nothing_is_watched_where_the_settings_do_not_ask_for_it():
    context = context_of()
    is_wanted = context.config.check or context.config.timeout_s is not None
    for comm in (context.collective_comm, context.node_collective_comm):
        assert context.is_watched == is_wanted == isinstance(comm, WatchedComm)
