"""Handles: node-shared arrays in processes that are not ranks."""

import gc
import os
import pickle
import re
from multiprocessing import Pipe, get_context

import numpy as np
import pytest

import mpishare as ms
from tests.arrays import REPRESENTATIVES, assert_same
from tests.mpi.memory.conftest import MAKES_WINDOWS
from tests.mpi.objects import children
from tests.mpi.objects.children import ask
from tests.processes import in_child, open_files

LARGE = 3 << 17
"""Float64 items of an array that is too large for a slot: 3 MiB."""

METHODS = ("spawn", "forkserver", "fork")

pytestmark = pytest.mark.filterwarnings("ignore:handle.* bytes were copied into a nameless file")


@pytest.fixture(scope="module", autouse=True)
def _helpers():
    """Starts what multiprocessing starts once, before descriptors are counted."""
    for method in METHODS:
        assert ask(method, abs, -1) == 1


def shared(comm, count, value=None, **options):
    values = np.arange(float(count)) if value is None else np.full(count, value)
    return ms.share(values if comm.rank == 0 else None, comm=comm, **options)


@pytest.mark.parametrize(("method", "backend"), [("spawn", None), ("forkserver", "memmap"), ("fork", "private")])
def test_a_child_reads_the_array_without_mpi_and_is_no_rank(comm, method, backend):
    for count in (1000, LARGE):
        array = shared(comm, count, backend=backend)
        handle = ms.handle(array[1::2])
        total, writable, has_mpi, said = ask(method, children.look, handle)
        assert total == array[1::2].sum()
        assert not writable
        assert has_mpi == (method == "fork")
        assert "is not a rank of its own" in said
        assert (array == np.arange(count)).all()


@pytest.mark.parametrize("backend", [None, "memmap"])
def test_an_object_comes_with_all_its_arrays(comm, backend):
    obj = {**REPRESENTATIVES, "large": np.arange(LARGE), "objects": np.array([{"x": 1}, None])}
    shared_obj = ms.share(obj if comm.rank == 0 else None, backend=backend)
    own = {**shared_obj, "own": np.arange(5), "of rank": comm.rank}
    handle = ms.handle(own)
    assert handle.get() is own

    def has_all():
        found = handle.get()
        for name, value in own.items():
            if isinstance(value, np.ndarray) and not value.dtype.hasobject:
                assert_same(found[name], value)
                assert not found[name].flags.writeable or not value.nbytes
        return found is not own and found["objects"].tolist() == [{"x": 1}, None] and found["of rank"] == comm.rank

    assert in_child(has_all) == 1


def test_a_pickle_has_no_array_bytes_and_comes_back_as_the_same_object(comm):
    for array in (shared(comm, 10), shared(comm, LARGE, backend="memmap"), np.arange(100_000)):
        handle = ms.handle(array)
        dumped = pickle.dumps(handle)
        assert len(dumped) < 1024
        assert pickle.loads(dumped) is handle
        assert handle.get() is array


def test_a_child_passes_a_handle_on_and_makes_private_views(comm):
    handle = ms.handle(shared(comm, LARGE, backend="memmap"))
    assert ask("spawn", children.pass_on, handle) == np.arange(float(LARGE)).sum()
    assert ask("spawn", children.again_private, handle) == (1.0, 0.0)
    assert handle.get()[0] == 0.0


@pytest.mark.parametrize(("count", "backend"), [(100, None), (LARGE, None), (LARGE, "memmap")])
def test_a_child_keeps_the_memory_that_its_rank_has_dropped(configured, backend, count):
    comm = configured(recycle="64M")
    array = shared(comm, count, -1.0, backend=backend)
    handle = ms.handle(array)
    context, (here, there), (ours, theirs) = get_context("spawn"), Pipe(), Pipe()
    process = context.Process(target=children.keep, args=(there, theirs, handle))
    process.start()
    assert here.poll(children.LIMIT_S)
    assert here.recv() == "has it"
    del array, handle
    gc.collect()
    for number in range(40):
        kept = [shared(comm, count, float(number), backend=backend) for _ in range(3)]
        assert all((one == number).all() for one in kept)
    ours.send("look")
    assert here.poll(children.LIMIT_S)
    assert here.recv()
    process.join()
    process.close()
    for end in (here, there, ours, theirs):
        end.close()


def test_a_task_gets_a_handle_from_another_rank_and_gives_it_to_its_children(comm):
    """The ranks are on one host, whatever node each of them is on."""
    handle = ms.handle(shared(comm, LARGE, backend="memmap"))
    total = np.arange(float(LARGE)).sum()
    tasks = [handle] * comm.size
    assert ms.map(children.total, tasks, comm=comm, gather="all") == [total] * comm.size
    assert ms.map(children.pass_on, tasks, comm=comm, gather="all", chunk=1) == [total] * comm.size
    with ms.Pool(comm) as pool:
        if pool is not None:
            assert pool.submit(children.total, handle).result() == total


def test_what_ranks_write_is_seen_or_refused(comm):
    grid = ms.zeros(LARGE, backend="memmap")
    handle = ms.handle(grid)
    if ms.topology().is_leader:
        grid[:] = 2.0
    ms.fence()
    assert ask("spawn", children.total, handle) == 2.0 * LARGE
    for count in (10, LARGE) if MAKES_WINDOWS else ():
        error = 'other processes would not see what ranks write.*Make it with backend="memmap"'
        with pytest.raises(ms.SpecError, match=error):
            ms.handle(ms.zeros(count, backend="window"))


def test_a_handle_that_cannot_be_opened_says_why(comm):
    handle = ms.handle(shared(comm, LARGE, backend="memmap"))
    dumped = pickle.dumps(handle)
    assert children.said_by(dumped) == f"{handle.get().sum()}\n"
    del handle
    gc.collect()
    assert re.match(r"BackendError the memory of a handle of process \d+ .* is gone: ", children.said_by(dumped))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users and hosts")
def test_another_user_or_host_has_no_access(comm):
    handle = ms.handle(shared(comm, LARGE, backend="memmap"))
    dumped = pickle.dumps(handle)
    said = children.said_by(dumped, "unshare", "--uts", "sh", "-c", 'hostname other && exec "$@"', "sh")
    assert "is not on host other, or in another container" in said
    del handle

    def is_refused():
        os.setgroups([])
        os.setresuid(65_532, 65_532, 65_532)
        copy = pickle.loads(dumped)
        with pytest.raises(ms.BackendError, match=r"Permission denied\. Only processes of the same user"):
            copy.get()
        return True

    assert in_child(is_refused) == 1


def test_handles_leave_no_descriptors(comm):
    array = shared(comm, LARGE, backend="memmap")
    before = open_files()
    for number in range(300):
        handles = [ms.handle(array), ms.handle(np.full(10, number)), ms.handle(shared(comm, 10))]
        assert open_files() <= before + 3
    del handles
    assert open_files() == before
