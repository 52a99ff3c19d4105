"""topology: who sits where, found by MPI or pretended, remembered on the communicator."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.comm.placement import Placement, pretend_node

pytestmark = pytest.mark.mpi


def test_facts_agree_with_one_another(comm: MPI.Intracomm) -> None:
    here, context = ms.topology(), context_of()
    assert (here.rank, here.size) == (comm.rank, comm.size)
    assert here.node_of(here.rank) == here.node
    assert here.ranks_of(here.node)[here.node_rank] == here.rank
    assert here.node_size == len(here.ranks_of(here.node)) == here.node_comm.size
    assert here.n_nodes == len(here.hosts)
    assert here.is_leader == (here.node_rank == 0)
    assert sorted(rank for node in range(here.n_nodes) for rank in here.ranks_of(node)) == list(range(comm.size))
    assert [here.ranks_of(node)[0] for node in range(here.n_nodes)] == sorted(
        here.ranks_of(node)[0] for node in range(here.n_nodes)
    )


def test_pretended_nodes_are_as_the_rule_says(comm: MPI.Intracomm) -> None:
    here, context = ms.topology(), context_of()
    rule = context.config.nodes
    if rule is None:
        assert here.hosts[here.node] == MPI.Get_processor_name()
        return
    expected = Placement.from_labels([pretend_node(rule, rank, comm.size) for rank in range(comm.size)])
    assert here.placement == expected
    assert len(set(here.hosts)) == here.n_nodes


def test_communicators(comm: MPI.Intracomm) -> None:
    here, context = ms.topology(), context_of()
    assert here.node_comm.allgather(here.rank) == list(here.ranks_of(here.node))
    assert here.rail.allgather(here.node) == [
        node for node in range(here.n_nodes) if len(here.ranks_of(node)) > here.node_rank
    ]
    if here.is_leader:
        assert here.leaders.allgather(here.rank) == [here.ranks_of(node)[0] for node in range(here.n_nodes)]
    else:
        assert here.leaders == MPI.COMM_NULL
    assert here.comm is comm or here.comm == comm


def test_asked_once_and_remembered(comm: MPI.Intracomm) -> None:
    assert ms.topology(comm) is ms.topology()


def test_a_duplicate_gets_its_own_and_both_are_freed(comm: MPI.Intracomm) -> None:
    first = comm.Dup()
    index = first.py2f()
    first.Free()
    for _ in range(50):
        own = comm.Dup()
        here, context = ms.topology(own), context_of(own)
        assert here is not ms.topology(comm)
        assert context.uid != context_of(comm).uid
        own.Free()
        assert context.collective_comm == MPI.COMM_NULL
    last = comm.Dup()
    assert last.py2f() == index
    last.Free()


def test_a_node_does_not_depend_on_the_communicator(comm: MPI.Intracomm) -> None:
    world = ms.topology()
    reversed_comm = comm.Split(0, -comm.rank)
    here, context = ms.topology(reversed_comm), context_of(reversed_comm)
    mates = here.node_comm.allgather(world.node)
    assert set(mates) == {world.node}
    assert here.node_size == world.node_size
    reversed_comm.Free()


def test_it_tells_itself_in_words() -> None:
    assert "ranks on" in repr(ms.topology())


def test_it_is_freed_even_when_the_caller_freed_a_part(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    here, context = ms.topology(own), context_of(own)
    here.node_comm.Free()
    own.Free()
    assert context.collective_comm == MPI.COMM_NULL


def test_errors_of_mpi_are_raised_whatever_the_callers_handler(comm: MPI.Intracomm) -> None:
    own = comm.Dup()
    own.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    assert context_of(own).collective_comm.Get_errhandler() == MPI.ERRORS_RETURN
    own.Free()


def test_watching_costs_nothing_where_it_is_off() -> None:
    here, context = ms.topology(), context_of()
    watched = context.config.check or context.config.timeout_s is not None
    assert context.is_watched == watched
    assert (type(context.collective_comm).__name__ == "Watched") == watched
    assert (type(context.node_collective_comm).__name__ == "Watched") == watched
