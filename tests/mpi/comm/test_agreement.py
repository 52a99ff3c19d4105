"""agree: one rank's error becomes every rank's error."""

import pickle

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.agreement import NOTE_BYTES, Severity, agree, any_rank, is_known, severity_of
from mpishare.comm.lookup import context_of

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def ours(duplicate):
    """The collective communicator of a duplicate."""
    return context_of(duplicate).collective_comm


class Mute(Exception):
    """An error without a text, to which nothing can be assigned."""

    def __str__(self):
        raise ValueError

    __setattr__ = None  # type: ignore[assignment, misc]


@pytest.mark.parametrize("kind", [ValueError, MemoryError, KeyboardInterrupt, SystemExit, Mute])
def test_each_rank_and_its_followers_fail(ours, comm, kind):
    """An exception inside a collective: bad input, no room, a missing file.

    Outcome: its own error there, PeerError elsewhere.
    """
    hosts = comm.allgather(MPI.Get_processor_name())
    for first, last in [(rank, rank) for rank in range(ours.size)] + [(1, ours.size - 1)] * (ours.size > 1):
        has_failed = first <= ours.rank <= last
        with pytest.raises(kind if has_failed else ms.PeerError) as caught, agree(ours) as agreement:
            agreement.call = f"call {ours.rank}"  # a failure goes before a difference
            if has_failed:
                raise kind("the disk is full")
        assert is_known(caught.value, ours.size)
        if isinstance(caught.value, ms.PeerError):
            assert (caught.value.rank, caught.value.others, caught.value.host) == (first, last - first, hosts[first])
            text = ", whose text cannot be made" if kind is Mute else ": the disk is full"
            assert caught.value.reason == kind.__name__ + text
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with agree(ours):
        pass


@pytest.mark.ranks(2)
@pytest.mark.parametrize("severity", [Severity.REFUSAL, Severity.NO_ROOM, Severity.FATAL])
def test_all_ranks_hear_the_worst_severity(ours, severity):
    refusal, no_room = ms.BackendError("no window"), ms.CapacityError("h", "/dev/shm", 2, 1, "")
    worst = {Severity.REFUSAL: refusal, Severity.NO_ROOM: no_room, Severity.FATAL: ValueError()}
    errors = {0: worst[severity], 1: refusal}
    with pytest.raises(Exception) as caught, agree(ours):
        if ours.rank in errors:
            raise errors[ours.rank]
    assert severity_of(caught.value, ours.size) == severity
    assert is_known(caught.value, ours.size)
    assert not is_known(caught.value, ours.size + 1)
    assert severity_of(ms.BackendError("of this rank alone"), ours.size) == Severity.FATAL


@pytest.mark.parametrize("count", [1, 7, 8 * NOTE_BYTES, 8 * NOTE_BYTES + 1])
def test_any_rank(ours, count):
    numbers = np.arange(count)
    flags = any_rank(ours, numbers % (ours.size + 1) == ours.rank)
    assert flags.dtype == bool
    assert flags.tolist() == (numbers % (ours.size + 1) < ours.size).tolist()
