"""agree: one rank's error is every rank's error."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.agreement import NOTE_BYTES, agree, any_rank

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(20)]


def test_all_well(comm: MPI.Intracomm) -> None:
    with agree(comm):
        pass


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit])
def test_each_rank_in_turn_fails(comm: MPI.Intracomm, kind: type[BaseException]) -> None:
    hosts = comm.allgather(MPI.Get_processor_name())
    for bad in range(comm.size):
        expected = kind if comm.rank == bad else ms.PeerError
        with pytest.raises(expected) as caught, agree(comm):
            if comm.rank == bad:
                raise kind("the disk is full")
        if isinstance(caught.value, ms.PeerError):
            assert (caught.value.rank, caught.value.others) == (bad, 0)
            assert caught.value.reason == f"{kind.__name__}: the disk is full"
            assert caught.value.host == hosts[bad]
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.ranks(2)
def test_all_but_one_fail(comm: MPI.Intracomm) -> None:
    expected = ValueError if comm.rank else ms.PeerError
    with pytest.raises(expected) as caught, agree(comm):
        if comm.rank:
            raise ValueError(f"of rank {comm.rank}")
    if isinstance(caught.value, ms.PeerError):
        assert (caught.value.rank, caught.value.others) == (1, comm.size - 2)
        assert "of rank 1" in str(caught.value)


@pytest.mark.ranks(2)
def test_different_calls(comm: MPI.Intracomm) -> None:
    with pytest.raises(ms.MismatchError) as caught, agree(comm) as together:
        together.call = "odd" if comm.rank == 1 else "even"
    assert caught.value.calls == {rank: "odd" if rank == 1 else "even" for rank in range(comm.size)}


def test_a_failure_goes_before_a_difference(comm: MPI.Intracomm) -> None:
    with pytest.raises(ValueError if comm.rank == 0 else ms.PeerError), agree(comm) as together:
        together.call = f"call {comm.rank}"
        if comm.rank == 0:
            raise ValueError


class Mute(Exception):
    """An error that cannot tell itself."""

    def __str__(self) -> str:
        raise ValueError


def test_an_error_that_cannot_be_told_keeps_nobody_waiting(comm: MPI.Intracomm) -> None:
    with pytest.raises(Mute if comm.rank == 0 else ms.PeerError), agree(comm):
        if comm.rank == 0:
            raise Mute


@pytest.mark.parametrize("places", [1, 7, 8 * NOTE_BYTES, 8 * NOTE_BYTES + 1])
def test_any_rank(comm: MPI.Intracomm, places: int) -> None:
    numbers = np.arange(places)
    found = any_rank(comm, numbers % (comm.size + 1) == comm.rank)
    assert found.dtype == bool
    assert found.tolist() == (numbers % (comm.size + 1) < comm.size).tolist()


@pytest.mark.ranks(2)
def test_an_error_that_only_a_node_knows_leaves_the_ranks_out_of_step() -> None:
    here = ms.topology(duplicate := MPI.COMM_WORLD.Dup())
    with pytest.raises((ValueError, ms.PeerError)) as caught, agree(context.node_collective_comm):
        here.begin()
        if here.is_leader:
            raise ValueError
    here.end(caught.value)
    with pytest.raises(ms.MpishareError) if here.n_nodes > 1 else nullcontext():
        here.begin()
    duplicate.Free()
