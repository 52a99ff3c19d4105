"""agree: one rank's error is every rank's error."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.agreement import NOTE_BYTES, Severity, agree, any_rank, is_known, severity_of
from mpishare.comm.collective_comm import CollectiveComm
from mpishare.comm.context import context_of

pytestmark = pytest.mark.mpi


@pytest.fixture
def collective_comm() -> CollectiveComm:
    """All ranks of the launch."""
    return context_of().collective_comm


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit])
def test_each_rank_in_turn_fails(collective_comm: CollectiveComm, kind: type[BaseException]) -> None:
    hosts = MPI.COMM_WORLD.allgather(MPI.Get_processor_name())
    for bad in range(collective_comm.size):
        expected = kind if collective_comm.rank == bad else ms.PeerError
        with pytest.raises(expected) as caught, agree(collective_comm):
            if collective_comm.rank == bad:
                raise kind("the disk is full")
        if isinstance(caught.value, ms.PeerError):
            facts = caught.value.rank, caught.value.others, caught.value.reason, caught.value.host
            assert facts == (bad, 0, f"{kind.__name__}: the disk is full", hosts[bad])
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.ranks(2)
def test_all_but_one_fail(collective_comm: CollectiveComm) -> None:
    expected = ValueError if collective_comm.rank else ms.PeerError
    with pytest.raises(expected, match="of rank ") as caught, agree(collective_comm):
        if collective_comm.rank:
            raise ValueError(f"of rank {collective_comm.rank}")
    if isinstance(caught.value, ms.PeerError):
        assert (caught.value.rank, caught.value.others) == (1, collective_comm.size - 2)
        assert "of rank 1" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "severity"),
    [
        (ms.SpecError("no"), Severity.REFUSAL),
        (ms.CapacityError("n1", "/dev/shm", 2, 1, "Share less."), Severity.NO_ROOM),
        (ValueError("no"), Severity.FATAL),
    ],
)
def test_all_ranks_know_the_worst(collective_comm: CollectiveComm, error: Exception, severity: Severity) -> None:
    with pytest.raises((ms.MpishareError, ValueError)) as caught, agree(collective_comm):
        raise error if collective_comm.rank == 0 else ms.SpecError("no")
    assert is_known(caught.value, collective_comm.size)
    assert severity_of(caught.value, collective_comm.size) == severity


@pytest.mark.ranks(2)
def test_different_calls(collective_comm: CollectiveComm) -> None:
    calls = {rank: "odd" if rank == 1 else "even" for rank in range(collective_comm.size)}
    with pytest.raises(ms.MismatchError) as caught, agree(collective_comm) as agreement:
        agreement.call = calls[collective_comm.rank]
    assert caught.value.calls == calls


def test_a_failure_goes_before_a_difference(collective_comm: CollectiveComm) -> None:
    rank = collective_comm.rank
    with pytest.raises(ValueError if rank == 0 else ms.PeerError), agree(collective_comm) as agreement:
        agreement.call = f"call {rank}"
        if rank == 0:
            raise ValueError


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise ValueError


def test_an_error_whose_text_fails_keeps_nobody_waiting(collective_comm: CollectiveComm) -> None:
    with pytest.raises(Mute if collective_comm.rank == 0 else ms.PeerError), agree(collective_comm):
        if collective_comm.rank == 0:
            raise Mute


@pytest.mark.parametrize("count", [1, 7, 8 * NOTE_BYTES, 8 * NOTE_BYTES + 1])
def test_any_rank(collective_comm: CollectiveComm, count: int) -> None:
    ranks, size = np.arange(count) % (collective_comm.size + 1), collective_comm.size
    result = any_rank(collective_comm, ranks == collective_comm.rank)
    assert result.dtype == bool
    assert result.tolist() == (ranks < size).tolist()
