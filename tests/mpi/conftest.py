"""What every MPI test stands on: the communicator, and the proof that a test left nothing behind."""

from __future__ import annotations

import gc
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory.segment import live_segments


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests marked `ranks(n)` in a launch of fewer ranks, where they would have nothing to say."""
    few = [item for item in items if any(mark.args[0] > MPI.COMM_WORLD.size for mark in item.iter_markers("ranks"))]
    config.hook.pytest_deselected(items=few)
    items[:] = [item for item in items if item not in few]


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


@pytest.fixture
def shared_folder(comm: MPI.Intracomm) -> Iterator[Path]:
    """A folder that all hosts see, the same one for all ranks."""
    build = Path(__file__).parent.parent.parent / "build"
    build.mkdir(exist_ok=True)
    folder = comm.bcast(tempfile.mkdtemp(prefix="tests-", dir=build) if comm.rank == 0 else None)
    yield Path(folder)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


def _held() -> tuple[int, int, int]:
    """Segments, descriptors and maps of unlinked shared files that this process holds, but for those kept for later."""
    gc.collect()
    config = context_of().config
    keeps_maps = config.recycle != "0" or not config.second_map
    maps = 0 if keeps_maps else Path("/proc/self/maps").read_text().count("(deleted)")
    return len(live_segments()), len(list(Path("/proc/self/fd").iterdir())), maps


@cache
def _job() -> str | None:
    """The number that Open MPI has given this job, as in the name of a file that it maps; None where it maps none."""
    found = re.search(r"sm_segment\.[\w.-]+\.([0-9a-f]+)\.\d+", Path("/proc/self/maps").read_text())
    return found and found[1]


def _windows() -> set[str]:
    """The files of this job's windows in /dev/shm. Open MPI names them by its job number."""
    return {file.name for file in Path("/dev/shm").iterdir() if _job() and f".{_job()}." in file.name}


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a segment, a descriptor, a map or a file in /dev/shm."""
    ms.topology()
    MPI.COMM_WORLD.Barrier()
    before, files = _held(), _windows()
    gc.freeze()  # what is there by now, modules that tests import among it, need not be looked at each time
    yield
    MPI.COMM_WORLD.Barrier()
    assert _windows() <= files
    assert _held() == before
