"""What every MPI test stands on: the communicator, and the proof that a test left nothing behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.segments.segment import live_segments
from tests.processes import shared_files


@pytest.fixture
def comm() -> MPI.Intracomm:
    """All ranks of the launch."""
    return MPI.COMM_WORLD


@pytest.fixture
def raised(comm: MPI.Intracomm) -> Callable[[Callable[[], object]], list[tuple[str, str]]]:
    """Calls a function on every rank and tells what each rank raised: class and words, by rank."""

    def tell(call: Callable[[], object]) -> list[tuple[str, str]]:
        try:
            call()
        except ms.MpishareError as error:
            return comm.allgather((type(error).__name__, str(error)))
        return comm.allgather(("nothing", ""))

    return tell


def _held() -> tuple[int, int, int]:
    """Segments, descriptors and maps of unlinked shared files that this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().count("(deleted)")
    return len(live_segments()), len(list(Path("/proc/self/fd").iterdir())), maps


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a segment, a descriptor, a map or a file in /dev/shm."""
    ms.topology()
    MPI.COMM_WORLD.Barrier()
    before, files = _held(), shared_files()
    yield
    MPI.COMM_WORLD.Barrier()
    assert shared_files() <= files
    if ms.topology().config.second_map:
        assert _held() == before
