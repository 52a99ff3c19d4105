"""Memory of a node: what every backend does, which is taken, and how arrays use it in turn."""

import errno
import gc
import os
import random
import warnings
from contextlib import nullcontext
from mmap import PAGESIZE
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pytest

import mpishare as ms
from mpishare.arrays.slices import LINE_BYTES
from mpishare.comm.agreement import Deferred
from mpishare.comm.context import context_of
from mpishare.memory import backends, pages, pool
from mpishare.memory.allocation import offered
from mpishare.memory.backends import Backend
from mpishare.memory.mapping import Mapping
from tests.mpi.memory.conftest import KINDS, MAKES_WINDOWS, REFUSAL, settings_of
from tests.processes import file_id, file_of_map, in_child, permissions, present_pages

LARGE = 3 << 17
"""Items of an array that is too large for a slot: 3 MiB."""
ROUNDS = {100: 150, LARGE: 8}
"""How many arrays of so many items are made, so that their memory must be used again. A slab has fewer slots."""

SHARED = {title: kind for title, kind in KINDS.items() if kind.is_shared}


@pytest.fixture
def keeping(configured):
    """The ranks of the launch, with enough cached memory for these tests."""
    return configured(recycle="64M")


def shared(comm, number, count=100):
    return ms.share(np.full(count, number) if comm.rank == 0 else None, comm=comm)


COUNTS = {"of few sizes": [8_000, 30_000], "of many sizes": [0, 1, 7, 100, 1000, 30_000, 100_000, 400_000]}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_live_arrays_keep_their_bits_whichever_are_deleted(kind, counts, configured):
    """Garbage collection in different orders on different ranks.

    Outcome: nothing: to release is local.
    """
    comm = configured(**settings_of(kind), recycle="64M")
    common, own = random.Random(comm.size), random.Random(comm.rank)
    live, addresses = [], set()
    for number in range(120):
        count, root = common.choice(counts), common.randrange(comm.size)
        array = ms.share(np.full(count, number) if comm.rank == root else None, root=root, comm=comm)
        live.append((number, array[: count // 2 + 1] if own.random() < 0.2 else array))
        addresses.add(array.ctypes.data)
        del array
        while live and own.random() < 0.5:
            live.pop(own.randrange(len(live)))
        if number % 10 == 0:
            assert all((array == number).all() for number, array in live)
    assert all((array == number).all() and not array.flags.writeable for number, array in live)
    assert len(addresses) < 120 or not kind.is_shared  # memory that nobody has is used again


@pytest.mark.parametrize("count", ROUNDS)
@pytest.mark.parametrize("kind", SHARED.values(), ids=SHARED)
def test_dropped_memory_is_used_again_writable_or_not_as_needed(kind, configured, count):
    comm = configured(**settings_of(kind), recycle="64M")
    addresses = set()
    for number in range(ROUNDS[count]):
        array, grid = shared(comm, number, count), ms.zeros(count, comm=comm)
        if number < 4:  # reading the maps takes long
            assert permissions(array.ctypes.data).startswith("r--")
            assert permissions(grid.ctypes.data).startswith("rw-")
        assert (array == number).all()
        assert not grid.any()
        ms.fence(comm=comm)
        grid[:] = 7.0
        ms.fence(comm=comm)
        addresses |= {array.ctypes.data, grid.ctypes.data}
        del array, grid
    assert len(addresses) < 2 * ROUNDS[count]
    assert any(map(permissions, addresses))


def test_each_share_of_a_small_array_finds_a_slot_that_its_root_may_fill(keeping):
    """A loop in which each array is dropped before the next one is made."""
    for number in range(40):
        shared(keeping, number, 4000)
        assert number < 20 or offered(context_of(keeping), 32_000, None) is not None  # until then, the pool grows


@pytest.mark.filterwarnings("ignore:private")
@pytest.mark.parametrize("count", ROUNDS)
def test_memory_that_a_child_or_a_private_view_shows_is_not_used_again(keeping, count):
    """A fork after MPI_Init.

    Outcome: the child reads the arrays as they were, as long as it lives.
    """
    array = shared(keeping, -1, count)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(0 if os.read(reader, 1) and (array == -1).all() else 1)
    del array
    view = ms.private(shared(keeping, -2, count))
    view[0] = 5
    for number in range(ROUNDS[count]):
        shared(keeping, number, count)
    os.write(writer, b"g")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reader)
    os.close(writer)
    assert view[0] == 5
    assert (view[1:] == -2).all()


def is_shared(address):
    """Whether shared memory is mapped there; memory that Python allocates meanwhile may lie at any address."""
    return "s" in permissions(address)


def test_no_more_is_cached_than_allowed(configured):
    comm = configured(recycle="12M")  # half of it for slabs
    nodes = ms.topology(comm)
    slot = shared(comm, 1).ctypes.data
    assert permissions(slot)
    arrays = [shared(comm, number, LARGE) for number in range(5)]
    addresses = [array.ctypes.data for array in arrays]
    while arrays:
        del arrays[0]
    assert list(map(is_shared, addresses)) == [False, False, False, True, True]
    too_large = shared(comm, 1, 3 * LARGE)
    addresses.append(too_large.ctypes.data)
    del too_large
    assert list(map(is_shared, addresses)) == [False, False, False, True, True, False]
    pool.free_idle()
    assert not any(map(is_shared, addresses))
    array = shared(comm, 3, LARGE)
    assert (array == 3).all()  # the ranks know what others have released
    address = array.ctypes.data
    del array
    assert permissions(address)
    comm.Free()  # which caches nothing any more
    gc.collect()
    assert not permissions(address)
    assert not permissions(slot), nodes


def test_free_slabs_are_released_where_there_is_no_room(keeping):
    """No room but that of segments kept for arrays to come (MPISHARE_RECYCLE).

    Outcome: they are given back, and the array fits.
    """
    live, arrays = shared(keeping, 1), [shared(keeping, number, 100_000) for number in range(5)]
    addresses = [array.ctypes.data for array in arrays]
    arrays.clear()
    assert all(map(permissions, addresses))
    with pytest.raises(ms.CapacityError):
        ms.zeros(1 << 50, comm=keeping)
    assert not any(map(permissions, addresses))
    assert (live == 1).all()
    arrays = [shared(keeping, number, 100_000) for number in range(5)]
    assert all((array == number).all() for number, array in enumerate(arrays))


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def only(request, configured):
    """The ranks of the launch with one kind alone, each in turn, and new memory for each array."""
    return configured(**settings_of(request.param), recycle="0"), request.param


def test_it_fits_and_the_report_names_it(only):
    comm, kind = only
    assert all(node.segments[kind.title].startswith("fits") for node in ms.info(probe=True, comm=comm).nodes)
    array, node_size = ms.share(np.arange(1000), comm=comm), ms.topology(comm).node_size
    segment = next(segment for segment in ms.report().segments if segment.nbytes == array.nbytes)
    copies = 1 if kind.is_shared else node_size
    assert (segment.backend, segment.copies) == (kind.title, copies)
    assert segment.bytes_saved == array.nbytes * (node_size - copies)


@pytest.mark.parametrize("nbytes", [1, 4095, 4097, 5 << 20])
def test_ranks_of_a_node_see_one_copy_or_each_its_own(only, nbytes):
    comm, kind = only
    nodes = ms.topology(comm)
    if not kind.is_shared and max(map(len, nodes.placement.nodes)) > 1:
        refused = r"write to a copy of its own.* allows private alone; leave it"
        with pytest.raises((ms.BackendError, ms.PeerError), match=refused):
            ms.empty(nbytes, "u1", comm=comm)
        return
    array = ms.empty(nbytes, "u1", comm=comm)
    assert array.ctypes.data % LINE_BYTES == 0
    if nodes.is_leader:
        array[:] = 1 + nodes.node
    ms.fence(comm=comm)
    assert (array == 1 + nodes.node).all()


def test_shared_bytes_are_on_read_only_pages_that_go_with_the_last_view(only):
    comm, _ = only
    for root in range(comm.size):
        source = np.random.default_rng(root).integers(0, 256, 100_000, np.uint8)
        block = ms.share(source if comm.rank == root else None, root=root, comm=comm)
        assert np.array_equal(block, source)
        view, address = block[::7].reshape(-1, 1), block.ctypes.data
        del block
        assert np.array_equal(view[:, 0], source[::7])
        assert permissions(address).startswith("r--")
        del view
        assert not permissions(address)


@pytest.mark.parametrize("title", [title for title in SHARED if title != "memmap in a folder"])
def test_new_pages_are_dealt_to_the_ranks_of_a_node_in_blocks(title, configured):
    """The kernel takes a page from the domain of memory of the core that uses it first."""
    comm = configured(**settings_of(KINDS[title]), recycle="0")
    nodes = ms.topology(comm)
    nbytes = (2 * comm.size + 1) * pages.huge_bytes()
    array = ms.empty(nbytes, "u1", comm=comm)
    used = comm.allgather((nodes.node, present_pages(array.ctypes.data, nbytes)))
    by_rank = np.array([of_rank for node, of_rank in used if node == nodes.node])
    if not pages.can_populate():
        pytest.skip("the kernel allocates the pages of the file, which are no rank's yet")
    assert (by_rank.sum(axis=0) == 1).all()
    block_ranks = by_rank.argmax(axis=0).reshape(2 * comm.size + 1, -1)
    assert (block_ranks == block_ranks[:, :1]).all()
    full_turns = block_ranks[: block_ranks.shape[0] // nodes.node_size * nodes.node_size, 0]
    assert full_turns.tolist() == [number % nodes.node_size for number in range(full_turns.size)]


@pytest.mark.ranks(2)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look at the file of a map")
@pytest.mark.parametrize("title", [title for title in ("window", "memmap in a folder") if title in KINDS])
def test_files_in_folders_are_for_their_owner_alone_and_have_no_name(title, configured):
    """The kernel's own nameless files are in no folder, and /proc refuses them to others (tests/unit/host)."""
    comm = configured(**settings_of(KINDS[title]), recycle="0")
    array = ms.zeros(LARGE, comm=comm)
    if ms.topology(comm).node_size > 1:
        status = file_of_map(array.ctypes.data).stat()
        assert (status.st_mode & 0o777, status.st_uid, status.st_nlink) == (0o600, os.geteuid(), 0)


def refuse(context, nbytes):
    """Fails late on the ranks of each node, in two ways."""
    failing = Deferred()
    context.node_collective_comm.barrier()
    with failing:
        raise OSError(errno.EIO, "the disk is broken") if context.topology.is_leader else MemoryError("no pages")
    failing.raise_first()


def break_down(context, nbytes):
    """Raises an unexpected error on the last rank of each node."""
    nodes = context.topology
    raise ZeroDivisionError if nodes.node_rank == nodes.node_size - 1 else ms.BackendError("only refused")


def with_failing(allocate):
    """All kinds, and before them one that allocates by `allocate`."""
    return Backend("refusing", "refusing", True, lambda context, nbytes: 1, allocate), *backends.BACKENDS


def test_the_next_kind_serves_where_one_fails(configured, monkeypatch):
    comm = configured(backend="", dir=None, recycle="0")
    monkeypatch.setattr(backends, "BACKENDS", with_failing(refuse))
    shared = ms.share(np.arange(1000) if comm.rank == 0 else None, comm=comm)
    assert shared.tolist() == list(range(1000))
    segment = next(segment for segment in ms.report().segments if segment.nbytes == 8000)
    assert next(iter(segment.refusals)) == "refusing"
    assert "the disk is broken" in str(ms.report()) or "no pages" in str(ms.report())


@pytest.mark.parametrize("count", [10, 1 << 20])
@pytest.mark.parametrize("recycle", ["0", "64M"])
def test_an_unexpected_error_ends_the_call_on_all_ranks(count, recycle, configured, monkeypatch):
    comm = configured(backend="", dir=None, recycle=recycle)
    monkeypatch.setattr(backends, "BACKENDS", with_failing(break_down))
    is_culprit = ms.topology(comm).node_rank == ms.topology(comm).node_size - 1
    with pytest.raises(ZeroDivisionError if is_culprit else ms.MpishareError):
        ms.zeros(count, comm=comm)


def test_a_folder_that_is_named_comes_first(configured, tmp_path, comm):
    """Named on each leader alone, to see that the ranks of a node agree."""
    comm = configured(backend="", dir=str(tmp_path) if ms.topology(comm).is_leader else None)
    array = shared(comm, 1, LARGE)
    assert [segment.backend for segment in ms.report().segments] == ["memmap in a folder"]
    assert (array == 1).all()


def no_room(context, nbytes):
    """Of a node whose memory is full."""
    raise ms.CapacityError(context.topology.host, "its memory", nbytes, 0, "Share less.")


def test_a_folder_that_nobody_names_is_a_warning_and_can_be_refused(configured, monkeypatch, raised):
    full = [backend._replace(check=no_room) for backend in backends.BACKENDS[:2]]
    monkeypatch.setattr(backends, "BACKENDS", (*full, backends.MEMMAP_IN_FOLDER))
    monkeypatch.setattr(backends, "_reported", set())
    comm = configured(backend="", dir=None, recycle="0")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arrays = [ms.zeros(LARGE, "i8", comm=comm) for _ in range(2)]
    assert [segment.backend for segment in ms.report().segments] == ["memmap in a folder"] * len(arrays)
    expected = [f"{LARGE * 8:,} bytes did not fit", f"in the folder {gettempdir()}"] if ms.topology().is_leader else []
    assert len(caught) == bool(expected)
    assert all(text in str(warning.message) and warning.filename == __file__ for warning in caught for text in expected)
    comm = configured(dir="")
    for error, text in raised(lambda: ms.zeros(LARGE, comm=comm)):
        assert error == "CapacityError"
        assert "memmap in a folder: MPISHARE_DIR is set and empty" in text


def test_where_no_kind_fits_the_error_names_each(configured):
    """No backend has room.

    Outcome: CapacityError on all ranks: host, directory, bytes wanted, bytes free, the cure.
    """
    comm = configured(backend="", dir=None)
    with pytest.raises(ms.CapacityError) as error:
        ms.share(np.broadcast_to(np.zeros(1), 1 << 57), comm=comm)
    assert error.value.wanted == 1 << 60
    assert 0 < error.value.free < 1 << 60
    assert error.value.host in ms.topology().hosts
    assert "MPISHARE_DIR" in str(error.value)
    unnamed = {kind.title for kind in backends.BACKENDS if f"{kind.title}: " not in str(error.value)}
    # The error's own text is about these, which take the same memory: private copies do on a node of one rank.
    assert unnamed
    assert "memmap in a folder" not in unnamed
    nodes = ms.topology(comm).placement.nodes
    assert ("private" in unnamed and 1 in map(len, nodes)) or any(
        f"private: {len(ranks) << 60:,} bytes do not fit" in str(error.value) for ranks in nodes
    )


FOLDERS = [("/none", "there is no folder"), ("/proc", "/proc is on proc"), ("/bin/sh", "/bin/sh: Not a directory")]


@pytest.mark.parametrize(("folder", "reason"), FOLDERS)
def test_folders_that_cannot_be_used(folder, reason, configured, comm):
    """MPISHARE_DIR missing, or in which no file can be made, or on a network file system (here /proc).

    Outcome: ArgumentError on all ranks at the first call: which folder, and why; never used.
    """
    is_last = comm.rank == comm.size - 1
    with pytest.raises(ms.ArgumentError if is_last else ms.PeerError, match=f"MPISHARE_DIR='{folder}' .*{reason}"):
        configured(dir=folder if is_last else None)


@pytest.mark.parametrize(
    ("mappable", "reason"),
    [(0, "the pages of MPI's windows cannot be mapped a second time"), (10_000, "see vm.max_map_count")],
    ids=["any", "one"],
)
def test_a_window_that_a_rank_cannot_map_again_is_left_to_the_next_kind(configured, monkeypatch, mappable, reason):
    comm = configured(backend="", dir=None, recycle="0")
    nodes, of_pages = ms.topology(comm), Mapping.of_pages

    def of_some_pages(address, nbytes, *offset):
        if nbytes > mappable:
            raise OSError(errno.ENOMEM, "no map is left")
        return of_pages(address, nbytes, *offset)

    if nodes.node_rank == nodes.node_size - 1:
        monkeypatch.setattr(Mapping, "of_pages", of_some_pages)
    shared = ms.share(np.arange(10_000), comm=comm)
    is_refused = nodes.node_size > 1
    assert permissions(shared.ctypes.data).startswith("r--")
    (segment,) = ms.report().segments
    assert segment.backend == ("memmap in memory" if is_refused else "window")
    reason = REFUSAL or reason
    assert (reason in str(ms.report())) == is_refused
    if max(map(len, nodes.placement.nodes)) > 1 and MAKES_WINDOWS:
        with pytest.raises(ms.MpishareError, match="window"):
            ms.share(np.arange(10_000), backend="window", comm=comm)


def test_a_kernel_that_cannot_populate_pages_starts_with_a_file_whose_pages_are_allocated(configured, monkeypatch):
    monkeypatch.setattr(pages, "can_populate", lambda: False)  # Linux before 5.14, and gVisor
    allocate, own_bytes = os.posix_fallocate, []

    def posix_fallocate(descriptor, offset, length):
        own_bytes.append(length)
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", posix_fallocate)
    comm = configured(backend="", dir=None, recycle="0")
    array = shared(comm, 1, LARGE)
    (segment,) = ms.report().segments
    assert segment.backend == "memmap in memory"
    assert "it is older than Linux 5.14" in str(ms.report())
    assert (array == 1).all()
    node_size = ms.topology(comm).node_size
    assert abs(sum(own_bytes) - array.nbytes / node_size) <= PAGESIZE  # each rank allocates its own
    if node_size > 1 and os.geteuid() == 0:
        assert file_of_map(array.ctypes.data).stat().st_blocks * 512 >= array.nbytes


def test_a_file_that_a_rank_cannot_receive_is_refused(configured, raised, monkeypatch):
    """The last rank of a node can do nothing with the leader's file."""
    comm = configured(dir=None, recycle="0")
    nodes = ms.topology(comm)
    if nodes.node == 0 and nodes.node_rank == nodes.node_size - 1 > 0:
        monkeypatch.setattr("mpishare.comm.descriptors.receive", lambda _: "it is not allowed")
    errors = raised(lambda: ms.zeros(1000, comm=comm, backend="memmap"))
    is_refused = len(nodes.placement.nodes[0]) > 1  # a leader receives no file
    assert all(("file of the node's leader cannot be shared" in message) == is_refused for _, message in errors)
    monkeypatch.undo()
    assert not ms.zeros(1000, comm=comm, backend="memmap").any()


def test_as_much_is_cached_over_all_communicators_as_is_allowed(configured):
    for comm in [configured(recycle="12M") for _ in range(4)]:
        shared(comm, 1, LARGE)
    cached = [slot.nbytes for one in pool.pools() if one.slot_bytes is None for slot in one.idle]
    assert cached == [LARGE * 8] * 2


def test_after_a_fork_the_report_lists_all_arrays_and_slots_return_to_the_limit(configured):
    """A child that ends at once, many times: what was in use is used no more, and its memory goes with its arrays."""
    comm, before = configured(recycle="8M"), sum(one.slab_bytes for one in pool.pools())
    small, large = shared(comm, 1), shared(comm, 2, LARGE)
    for number in range(20):
        array = shared(comm, number, 1 << 15)
        in_child(lambda: 0)
        assert sorted(segment.nbytes for segment in ms.report().segments) == [800, 1 << 18, LARGE * 8]
        assert (array == number).all()
    assert sum(one.slab_bytes for one in pool.pools()) <= max(4 << 20, before)
    assert ms.report().bytes_shared == small.nbytes + large.nbytes + array.nbytes


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("first", "later", "count"), [(512, 2000, 100), (1, 8, 1 << 17)])
def test_a_fork_of_one_rank_leaves_all_ranks_with_the_same_slots(configured, first, later, count, keeps):
    """The rank gives up more slots than one payload can name; the others keep the arrays, or drop them, too."""
    comm, of_others = configured(recycle="64M"), [*pool.pools()]
    arrays = [shared(comm, number, count) for number in range(first)]
    forks = comm.rank == comm.size - 1
    if forks:
        in_child(lambda: 0)
    if forks or not keeps:
        arrays.clear()
    later_arrays = []
    for number in range(later):
        later_arrays.append(shared(comm, number, count))
        assert later_arrays[-1][0] == number
    assert all((array == number).all() for number, array in enumerate(later_arrays))
    assert all((array == number).all() for number, array in enumerate(arrays))
    known = [
        (one.slot_bytes, one.slab_bytes, len(one.free))
        for one in pool.pools()
        if one.slot_bytes and one not in of_others
    ]
    assert all(each == known for each in comm.allgather(known))


def test_no_rank_keeps_what_a_forked_one_has_given_up(configured):
    comm = configured(recycle="64M")

    def kept_bytes():
        return sum(slot.nbytes for one in pool.pools() if one.slot_bytes is None for slot in one.idle)

    before = kept_bytes()
    for number in range(8):
        array = shared(comm, number, LARGE)
        if comm.rank == comm.size - 1:
            in_child(lambda: 0)
        del array
    assert kept_bytes() - before <= 2 * LARGE * 8


def test_the_ranks_of_a_node_move_an_array_into_one_file_for_handles(configured):
    """Its views stay where they are and read-only, and nothing of the old memory is mapped any more."""
    comm = configured(backend="window" if MAKES_WINDOWS else "private", recycle="64M")
    nodes, array = ms.topology(comm), shared(comm, 7.0, LARGE)
    old, address, view = file_id(array.ctypes.data), array.ctypes.data, array[5:]
    text = r"3,145,728 bytes were copied into a nameless file.*backend=.memmap. can"
    with pytest.warns(RuntimeWarning, match=text) if nodes.is_leader else nullcontext():  # any other is an error
        handle = ms.handle(array)
    new = file_id(address)
    assert new != old
    assert not any(line.split()[3:5] == list(old) for line in Path("/proc/self/maps").read_text().splitlines())
    assert permissions(address) == "r--s"
    assert (view == 7.0).all()
    assert handle.get() is array
    [segment] = ms.report().segments
    assert segment.backend == "memmap in memory"
    files = nodes.node_comm.allgather(new)
    assert len(set(files)) == (1 if MAKES_WINDOWS else nodes.node_size)
    assert len(set(comm.allgather(new))) == (nodes.n_nodes if MAKES_WINDOWS else comm.size)
