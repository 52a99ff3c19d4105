"""Memory of this process, without MPI: maps, files without a name, and sizes of slots."""

import gc
import mmap
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from mpishare.arrays.raw import address_of
from mpishare.memory.mapping import Mapping, Origin
from mpishare.memory.pages import dealt, domains_of_maps, huge_areas, huge_bytes
from mpishare.memory.pool import LARGEST_SLOT_BYTES, Slot, slot_bytes
from mpishare.memory.segment import Segment, segment_at
from mpishare.memory.shared_file import memory_file
from tests.processes import limited, open_files

PAGE, HUGE = mmap.PAGESIZE, huge_bytes()
MERGES = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 1)


def bytes_at(mapping, nbytes):
    """The bytes of a mapping as a view that keeps it."""
    return Segment(Slot(mapping, Origin("test", node_size=1), nbytes), nbytes, None, "test").block()


@pytest.fixture
def large_file():
    """A file in memory, of 5 huge pages and a bit."""
    descriptor = os.memfd_create("huge")
    os.ftruncate(descriptor, 5 * HUGE + 100)
    yield descriptor
    os.close(descriptor)


def test_the_pages_of_a_part_are_allocated_and_missing_ones_are_an_error_and_no_signal(large_file):
    """Pages behind the end of a file cannot be allocated, as those of a full file system."""
    mapping = Mapping.of_file(large_file, 2000 * PAGE)
    mapping.reserve(slice(PAGE, 1990 * PAGE))
    assert os.fstat(large_file).st_blocks * 512 // PAGE == 1989
    os.ftruncate(large_file, PAGE)
    mapping.reserve(slice(0, PAGE))
    mapping.reserve(slice(5, 5))
    with pytest.raises(MemoryError, match="no pages for"):
        mapping.reserve(slice(0, 4 * PAGE))


SIZES = [1, PAGE + 1, 3 * HUGE + 5, 32 * HUGE, 65 * HUGE + PAGE, 200 * HUGE]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("nbytes", SIZES, ids=lambda nbytes: f"{nbytes / HUGE:g}")
@pytest.mark.parametrize("start", [0, 4 * HUGE])
def test_each_page_is_dealt_once_and_a_quarter_of_them_to_a_quarter_of_the_ranks(nbytes, ranks, start):
    of_rank = [dealt(slice(start, start + nbytes), ranks, rank) for rank in range(ranks)]
    parts = sorted((part.start, part.stop) for own in of_rank for part in own if part.stop > part.start)
    ends = [start, *(stop for _, stop in parts)]
    assert [begin for begin, _ in parts] == ends[:-1]
    assert ends[-1] == start + nbytes
    assert all(begin % PAGE == 0 for begin, _ in parts)
    if ranks % 4 == 0 and nbytes >= 4 * HUGE:
        sizes = np.reshape([sum(part.stop - part.start for part in own) for own in of_rank], (4, -1)).sum(axis=1)
        assert sizes.max() <= 0.3 * nbytes
    if 1 < ranks <= nbytes // HUGE < 32 * ranks:
        assert [own[0].start for own in of_rank] == [start + rank * HUGE for rank in range(ranks)]


def test_the_domains_of_a_map_are_those_of_the_pages_that_were_used():
    mapping = Mapping.anonymous(3 * HUGE)
    bytes_at(mapping, 3 * HUGE)[: HUGE + 1] = 1
    starts, used = domains_of_maps()
    number = np.searchsorted(starts, mapping.address, side="right")
    assert starts[number - 1] == mapping.address
    assert HUGE + PAGE <= sum(used[number].values()) <= 2 * HUGE
    assert used[0] == {}


def test_maps_go_with_their_objects(large_file):
    """No address is left, also where a large map was aligned or could not be made."""

    def size():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE

    before = size()
    views = [bytes_at(Mapping.anonymous(2 * PAGE), 2 * PAGE) for _ in range(10)]
    mapping = Mapping.of_file(large_file, 3 * HUGE + 5)
    assert size() - before == 3 * HUGE + 21 * PAGE
    del mapping, views
    assert size() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping.of_file(999, 3 * HUGE)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Mapping.anonymous(1 << 60)
    assert size() == before


def test_large_maps_get_huge_pages(large_file):
    mapping = Mapping.of_file(large_file, 5 * HUGE + 100)
    block = bytes_at(mapping, 5 * HUGE + 100)
    block[7 :: HUGE // 2] = 3
    mapping.reserve(slice(0, block.size))
    assert mapping.address % HUGE == 0
    assert any(mapping.address in area for area in huge_areas()) == MERGES
    assert (block[7 :: HUGE // 2] == 3).all()
    assert np.count_nonzero(block) == 11


@pytest.mark.parametrize("offset", [0, 100, 4096, HUGE - 4096, 123 * 4096])
def test_a_second_map_has_the_same_pages_in_huge_ones_and_outlives_the_first(large_file, offset):
    first = mmap.mmap(large_file, 4 * HUGE)
    mapping = Mapping.of_pages(address_of(np.frombuffer(first, np.uint8)) + offset, 3 * HUGE, offset & -PAGE)
    block = bytes_at(mapping, 3 * HUGE)
    first[offset], first[offset + 2 * HUGE] = 9, 8
    first.close()
    assert (mapping.address - offset) % HUGE == 0
    mapping.reserve(slice(0, block.size))
    assert any(mapping.address + HUGE in area for area in huge_areas()) == MERGES
    assert (block[0], block[2 * HUGE]) == (9, 8)


@pytest.mark.parametrize(("limit", "kept"), [(1 << 10, 64), (320, 20)])
def test_the_files_of_the_newest_maps_stay_open_for_copy_on_write(limit, kept):
    """A limit on open files.

    Outcome: nothing: windows hold none, and nameless and mapped files at most 64 or a sixteenth of the limit.
    """
    before, mappings = open_files(), []
    with limited(resource.RLIMIT_NOFILE, limit):
        for number in range(70):
            file = memory_file(PAGE + 1)
            os.pwrite(file.descriptor, bytes([number]), PAGE)
            mappings.append(Mapping.of_file(file.descriptor, PAGE + 1))
            mappings[-1].keep_file(file)
            del file
    assert open_files() == before + kept
    views = [mapping.copy_on_write() for mapping in mappings]
    assert [view is not None for view in views] == [False] * (70 - kept) + [True] * kept
    block, source = bytes_at(views[-1], PAGE + 1), bytes_at(mappings[-1], PAGE + 1)
    del mappings, views
    assert open_files() == before + 1
    block[PAGE] += 1
    assert (block[PAGE], source[PAGE]) == (70, 69)
    del source
    assert open_files() == before
    assert block[PAGE] == 70


def test_a_file_in_memory_leaves_no_descriptor_where_it_is_refused():
    before = open_files()
    with limited(resource.RLIMIT_FSIZE, 4096):
        file = memory_file(1000)
        status = os.fstat(file.descriptor)
        with pytest.raises(OSError, match="File too large"):
            memory_file(10_000)
    del file
    assert (status.st_size, status.st_nlink) == (1000, 0)
    assert open_files() == before


def test_slots_of_few_sizes_hold_their_arrays_and_waste_little():
    for nbytes in [*range(1, 3000), 65_537, 200_000, LARGEST_SLOT_BYTES]:
        slot = slot_bytes(nbytes)
        assert slot % 64 == 0
        assert nbytes <= slot <= max(nbytes + 63, nbytes * 1.25)
        assert slot_bytes(slot) == slot
    assert len({slot_bytes(nbytes) for nbytes in range(1, LARGEST_SLOT_BYTES + 1, 61)}) < 80


def test_a_segment_with_memory_of_its_own_is_found_before_and_after_it_is_sealed():
    segment = Segment(Slot(Mapping.anonymous(PAGE), Origin("test", node_size=1), PAGE), PAGE, 1 << 61, "test")
    assert segment_at(np.frombuffer(segment.block().data, np.uint8)) is segment
    segment.seal()
    assert segment_at(np.frombuffer(segment.block().data, np.uint8)) is segment
