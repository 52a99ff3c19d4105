"""Compressed messages between pretend nodes: the bytes that arrive, the speed of the link, and the memory in use."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.messages import compression, requests
from tests.mpi.conftest import Configured
from tests.mpi.messages.exchange import neighbours, pattern

pytestmark = [
    pytest.mark.ranks(2),
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread"),
]


@pytest.fixture
def apart(configured: Configured) -> MPI.Intracomm:
    """A communicator of one rank a node."""
    return configured(nodes="block:1")


@pytest.fixture
def slow(apart: MPI.Intracomm) -> MPI.Intracomm:
    """The same with links so slow that compression pays for all that shrinks."""
    context_of(apart).link_speeds.update(dict.fromkeys(range(apart.size), 1e3))
    return apart


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each frame that this rank compressed."""
    lengths: list[int] = []

    def counting(frame: np.ndarray[Any, Any]) -> Any:
        lengths.append(frame.nbytes)
        return compression.compress_frame(frame)

    monkeypatch.setattr(requests, "compress_frame", counting)
    return lengths


@contextmanager
def sending(obj: Any, dest: int, comm: MPI.Intracomm) -> Iterator[None]:
    """Sends in another thread until the block ends."""
    sender = threading.Thread(target=ms.send, args=(obj, dest), kwargs={"compress": "auto", "comm": comm})
    sender.start()
    try:
        yield
    finally:
        sender.join()


def exchanged(obj: Any, comm: MPI.Intracomm, **options: Any) -> Any:
    """What comes from the left, while `obj` goes to the right in another thread."""
    left, right = neighbours(comm)
    with sending(obj, right, comm):
        return ms.recv(left, comm=comm, **options)


@pytest.mark.parametrize("kind", ["zeros", "noise", "both"])
@pytest.mark.parametrize("nbytes", [9_999, 10_000, 1_000_000, 5_000_001])
def test_compressed_bytes_arrive_as_they_were(slow: MPI.Intracomm, kind: str, nbytes: int, frames: list[int]) -> None:
    array = np.zeros(nbytes, np.uint8) if kind == "zeros" else pattern(nbytes, 1)
    if kind == "both":
        array[: nbytes // 2] = 0
    out = np.empty_like(array)
    assert exchanged(array, slow, out=out) is out
    assert (out == array).all()
    assert sum(frames) == (nbytes if nbytes >= 10_000 and kind != "noise" else 0)
    result = exchanged({"a": array, "b": [array[::2], np.ones(3)]}, slow)
    assert (result["a"] == array).all()
    assert (result["b"][0] == array[::2]).all()
    with pytest.raises(ms.SpecError):
        exchanged(array, slow, out=np.empty(3))
    left, right = neighbours(slow)
    request = ms.isend(array, right, compress="auto", comm=slow)
    assert (ms.recv(left, comm=slow) == array).all()
    request.wait()


def test_send_measures_the_speed_of_a_link(apart: MPI.Intracomm) -> None:
    """A receiver that comes late does not make the link slow."""
    left, right = neighbours(apart)
    late_s, speeds = 0.5, context_of(apart).link_speeds
    array = np.zeros(6_000_000, np.uint8)
    assert exchanged(array[: 2 << 20], apart).nbytes == 2 << 20
    assert not speeds  # it takes a larger message
    with sending(array, right, apart):
        time.sleep(late_s)
        assert (ms.recv(left, comm=apart) == array).all()
    assert set(speeds) == {right}
    assert speeds[right] > compression.FRAME_BYTES / late_s
    assert (exchanged(array, apart) == array).all()


def test_few_compressed_frames_are_held(slow: MPI.Intracomm, frames: list[int]) -> None:
    """They shrink to half, which is more than MPI sends before it is received."""
    array = np.zeros((30 << 11, 512), np.uint8)
    array[:, :256] = pattern(256 * len(array), 1).reshape(-1, 256)
    left, right = neighbours(slow)
    with sending(array, right, slow):
        while len(frames) < 4:
            os.sched_yield()
        time.sleep(0.05)
        assert len(frames) <= 5  # nobody receives
        slow.Barrier()
        assert (ms.recv(left, comm=slow) == array).all()
    assert sum(frames) == array.nbytes
