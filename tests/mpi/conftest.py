"""One pytest session a rank: rank 0 prints the summary, every failure is reported at once, no test leaves anything."""

import faulthandler
import gc
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from functools import cache
from pathlib import Path

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory.segment import live_segments

TIME_LIMIT_S = 300
PRINT_S = 3  # in which the other ranks print their stacks, before the first of them ends the job

_stderr = 2


def pytest_configure(config):
    """Gives each rank a temporary folder of its own, and rank 0 alone a terminal."""
    global _stderr
    _stderr = os.dup(2)  # which pytest does not capture
    config.option.timeout = config.option.timeout or TIME_LIMIT_S
    folder = tempfile.TemporaryDirectory(prefix="tests-")
    config.add_cleanup(folder.cleanup)
    config.option.basetemp = f"{folder.name}/tests"
    if MPI.COMM_WORLD.rank:
        config.option.verbose = -2  # no header
    for plugin in ("lfplugin", "nfplugin"):  # all ranks would write the same file
        config.pluginmanager.unregister(name=plugin)


def pytest_sessionstart(session):
    """Leaves the output to rank 0."""
    session.config.option.with_mpi = True  # else pytest-mpi, where it is installed, skips a folder of this name
    if MPI.COMM_WORLD.rank:
        session.config.pluginmanager.unregister(name="terminalreporter")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Makes the exit status that of the worst rank."""
    session.exitstatus = MPI.COMM_WORLD.allreduce(int(session.exitstatus), MPI.MAX)


def pytest_unconfigure():
    """Waits for the summary of rank 0, before a rank that failed ends the job."""
    sys.stdout.flush()
    MPI.COMM_WORLD.Barrier()


def pytest_runtest_logreport(report):
    """Reports a failure at once: the other ranks may wait for this one for ever."""
    if report.failed:
        error = report.longreprtext.partition("\nE ")[2].partition("\n")[0].strip()
        _print(f"{report.nodeid} failed in {report.when}: {error}\n{report.longreprtext}")


def pytest_collectreport(report):
    """Reports a file that cannot be imported on this rank."""
    if report.failed:
        _print(f"{report.nodeid}\n{report.longreprtext}")


def pytest_timeout_set_timer(item, settings):
    """Starts the time limit of a test, which ends the job when it is over."""
    item.time_limit = threading.Timer(settings.timeout, _end, [item.nodeid, settings.timeout])
    item.time_limit.daemon = True
    item.time_limit.start()
    return True


def pytest_timeout_cancel_timer(item):
    """Ends the time limit of a test."""
    if hasattr(item, "time_limit"):  # else a file that cannot be imported
        item.time_limit.cancel()
    return True


def _end(nodeid, timeout_s):
    """Prints where this rank is, gives the others time to do so too, and ends the process, and so the job."""
    _print(f"{nodeid} has not ended in {timeout_s} s")
    faulthandler.dump_traceback(_stderr)
    time.sleep(PRINT_S)
    os._exit(1)


def _print(text):
    os.write(_stderr, f"[rank {MPI.COMM_WORLD.rank}] {text}\n".encode())


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests marked `ranks(n)` in a launch of fewer ranks, where they would have nothing to test."""
    few = [item for item in items if any(mark.args[0] > MPI.COMM_WORLD.size for mark in item.iter_markers("ranks"))]
    config.hook.pytest_deselected(items=few)
    items[:] = [item for item in items if item not in few]


@pytest.fixture
def comm():
    """All ranks of the launch."""
    return MPI.COMM_WORLD


@pytest.fixture
def duplicate(comm):
    """A communicator that the test may spoil or free."""
    duplicate = comm.Dup()
    yield duplicate
    if duplicate:
        duplicate.Free()


@pytest.fixture
def raised(comm):
    """Calls a function on every rank; returns the class and the message of what each rank raised, by rank."""

    def errors_of(call):
        try:
            call()
        except ms.MpishareError as error:
            return comm.allgather((type(error).__name__, str(error)))
        return comm.allgather(("nothing", ""))

    return errors_of


@pytest.fixture
def configured(comm, monkeypatch):
    """Duplicates the communicator of all ranks, with other settings: `chunk="64K"` is MPISHARE_CHUNK=64K."""
    duplicates = []

    def duplicate(**settings):
        for name, value in settings.items():
            if value is None:
                monkeypatch.delenv(f"MPISHARE_{name.upper()}", raising=False)
            else:
                monkeypatch.setenv(f"MPISHARE_{name.upper()}", value)
        duplicates.append(comm.Dup())
        ms.topology(duplicates[-1])  # which reads the settings
        return duplicates[-1]

    yield duplicate
    gc.collect()
    for other in filter(None, duplicates):  # those that the test has not freed
        other.Free()


@pytest.fixture(scope="session")
def build_folder():
    """A folder that all hosts see, the same one for all ranks."""
    comm, build = MPI.COMM_WORLD, Path(__file__).parent.parent.parent / "build"
    build.mkdir(exist_ok=True)
    folder = Path(comm.bcast(tempfile.mkdtemp(prefix="tests-", dir=build) if comm.rank == 0 else None))
    yield folder
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


@pytest.fixture
def shared_folder(comm, build_folder):
    """An empty folder that all hosts see, in which a test may leave no temporary file of a save."""
    folder = Path(comm.bcast(tempfile.mkdtemp(dir=build_folder) if comm.rank == 0 else None))
    yield folder
    comm.Barrier()
    assert not list(folder.rglob("*.tmp.*"))


@pytest.fixture(scope="session", autouse=True)
def _connections():
    """Makes what MPI makes once, before maps and descriptors are counted: connections of all ranks, and so on."""
    comm = MPI.COMM_WORLD
    if comm.size > 1:
        side = comm.Split(comm.rank == 0, comm.rank)
        side.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0).Free()  # type: ignore[attr-defined]
        side.Free()
    for step in range(comm.size):
        comm.sendrecv(None, (comm.rank + step) % comm.size, source=(comm.rank - step) % comm.size)
    ms.map(abs, ())  # the file of the counters from which ranks take tasks, one for each communicator


def _held():
    """Segments, descriptors and maps of unlinked shared files that this process holds, but for those kept for later."""
    gc.collect()
    config = context_of().config
    keeps_maps = config.recycle != "0"
    maps = 0 if keeps_maps else Path("/proc/self/maps").read_text().count("(deleted)")
    files = sum(not (keeps_maps and _is_unlinked(entry)) for entry in Path("/proc/self/fd").iterdir())
    return len(live_segments()), files, maps


def _is_unlinked(entry):
    """Whether an entry of /proc/self/fd is that of a file without a name, such as a kept segment's."""
    try:
        return str(entry.readlink()).endswith("(deleted)")
    except FileNotFoundError:  # that of the listing itself
        return False


@cache
def _job():
    """The number of this job in the names of the files that Open MPI maps; None with another MPI."""
    match = re.search(r"sm_segment\.[\w.-]+\.([0-9a-f]+)\.\d+", Path("/proc/self/maps").read_text())
    return match and match[1]


def _windows():
    """The files of this job's windows in /dev/shm. Open MPI names them by its job number."""
    return {file.name for file in Path("/dev/shm").iterdir() if _job() and f".{_job()}." in file.name}


@pytest.fixture(autouse=True)
def _leaves_nothing():
    """Fails a test that leaves ranks out of step, a message, a segment, a descriptor or a map."""
    ms.topology()
    MPI.COMM_WORLD.Barrier()
    before, files = _held(), _windows()
    gc.freeze()  # the objects of modules that tests import need not be searched each time
    yield
    assert ms.map(abs, range(-3, 3), gather="all") == [3, 2, 1, 0, 1, 2]
    assert not MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    MPI.COMM_WORLD.Barrier()
    assert _windows() <= files
    assert _held() == before
