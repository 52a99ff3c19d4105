"""Compressed messages between pretend nodes: the bytes that arrive, the speed of the link, and the memory in use."""

import time

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.messages import requests, wire
from tests.mpi.messages.exchange import LEFT, RIGHT, pattern

pytestmark = pytest.mark.ranks(2)


@pytest.fixture
def apart(configured):
    """A communicator of one rank a node."""
    return configured(nodes="block:1")


@pytest.fixture
def slow(apart):
    """The same with links so slow that compression pays for all that shrinks."""
    context_of(apart).cached(requests.link_speeds).update(dict.fromkeys(range(apart.size), 1e3))
    return apart


@pytest.fixture
def frames(monkeypatch):
    """The bytes of each frame that this rank compressed, by the time."""
    lengths = {}

    def counting(frame, speed):
        result = wire.compressed(frame, speed)
        if isinstance(result, bytes):
            lengths[time.monotonic()] = frame.nbytes
        return result

    monkeypatch.setattr(requests, "compressed", counting)
    return lengths


def exchanged(obj, comm, **options):
    """What comes from the left, while `obj` goes to the right."""
    request = ms.irecv(LEFT, comm=comm, **options)
    ms.send(obj, RIGHT, compress="auto", comm=comm)
    return request.wait()


@pytest.mark.parametrize("kind", ["zeros", "noise", "both"])
@pytest.mark.parametrize("nbytes", [9_999, 10_000, 1_000_000, 5_000_001])
def test_compressed_bytes_arrive_as_they_were(slow, kind, nbytes, frames):
    array = np.zeros(nbytes, np.uint8) if kind == "zeros" else pattern(nbytes, 1)
    if kind == "both":
        array[: nbytes // 2] = 0
    out = np.empty_like(array)
    assert exchanged(array, slow, out=out) is out
    assert (out == array).all()
    assert bool(frames) == (nbytes >= 10_000 and kind != "noise")
    result = exchanged({"a": array, "b": [array[::2], np.ones(3)]}, slow)
    assert (result["a"] == array).all()
    assert (result["b"][0] == array[::2]).all()
    with pytest.raises(ms.SpecError):
        exchanged(array, slow, out=np.empty(3))
    request = ms.isend(array, RIGHT, compress="auto", comm=slow)
    assert (ms.recv(LEFT, comm=slow) == array).all()
    request.wait()


def test_send_measures_the_speed_of_a_link(apart):
    """A receiver that comes late does not make the link slow."""
    late_s, speeds = 0.5, context_of(apart).cached(requests.link_speeds)
    array = np.zeros(6_000_000, np.uint8)
    assert exchanged(array[: 1 << 20], apart).nbytes == 1 << 20
    assert not speeds  # it takes a larger message
    if apart.rank == 0:
        ms.send(array, 1, compress="auto", comm=apart)
        assert set(speeds) == {1}
        assert speeds[1] > wire.FRAME_BYTES / late_s
    if apart.rank == 1:
        time.sleep(late_s)
        assert (ms.recv(0, comm=apart) == array).all()
    assert (exchanged(array, apart) == array).all()


def test_few_compressed_frames_are_held(slow, frames):
    """They shrink to half, which is more than MPI sends before it is received."""
    array = np.zeros((30 << 11, 512), np.uint8)
    array[:, :256] = pattern(256 * len(array), 1).reshape(-1, 256)
    if slow.rank == 0:
        ms.send(array, 1, compress="auto", comm=slow)
        begin_s = slow.recv(source=1)
        assert len([at_s for at_s in frames if at_s < begin_s]) <= 6  # one of them is sent at once by Intel MPI
        assert sum(frames.values()) == array.nbytes
    if slow.rank == 1:
        time.sleep(0.2)
        begin_s = time.monotonic()
        assert (ms.recv(0, comm=slow) == array).all()
        slow.send(begin_s, 0)
