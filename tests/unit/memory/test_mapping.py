"""mapping: memory maps of this process, without MPI."""

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from mpishare.arrays.raw import address_of
from mpishare.memory.hugepages import huge_areas, huge_bytes
from mpishare.memory.kinds import Origin
from mpishare.memory.mapping import Mapping
from mpishare.memory.segment import Segment

PAGE, HUGE = mmap.PAGESIZE, huge_bytes()
MERGES = tuple(int(number) for number in os.uname().release.split(".")[:2]) >= (6, 1)


def bytes_at(mapping, nbytes):
    """The bytes of a mapping as a view that keeps it."""
    return Segment(mapping, nbytes, Origin("test", node_size=1), key=None, made_by="test").block()


def second_map(first, offset, nbytes):
    mapping = Mapping.of_pages(address_of(np.frombuffer(first, np.uint8)) + offset, nbytes)
    assert mapping is not None
    return mapping


@pytest.fixture
def memory_file():
    """A file in memory, of 5 huge pages and a bit."""
    descriptor = os.memfd_create("huge")
    os.ftruncate(descriptor, 5 * HUGE + 100)
    yield descriptor
    os.close(descriptor)


def test_private_memory_has_no_second_map():
    private = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert Mapping.of_pages(address_of(np.frombuffer(private, np.uint8)), 100) is None


def test_a_part_of_a_file_that_begins_within_a_page(memory_file):
    os.pwrite(memory_file, b"abcdef", PAGE + 7)
    block = bytes_at(Mapping.read_only(memory_file, slice(PAGE + 8, PAGE + 12)), 4)
    assert block.tobytes() == b"bcde"


def test_the_pages_of_a_part_alone_are_allocated(memory_file):
    Mapping.of_file(memory_file, 5 * PAGE).reserve(slice(2 * PAGE, 4 * PAGE))
    assert os.fstat(memory_file).st_blocks * 512 == 2 * PAGE


def test_missing_pages_are_an_error_and_no_signal(memory_file):
    """Pages behind the end of a file cannot be allocated, as those of a full file system."""
    mapping = Mapping.of_file(memory_file, 4 * PAGE)
    mapping.reserve(slice(0, 4 * PAGE))
    os.ftruncate(memory_file, PAGE)
    mapping.reserve(slice(0, PAGE))
    mapping.reserve(slice(5, 5))
    with pytest.raises(MemoryError, match="no pages for"):
        mapping.reserve(slice(0, 4 * PAGE))


def test_maps_go_with_their_objects(memory_file):
    """No address is left, also where a large map was aligned or could not be made."""

    def size():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE

    before = size()
    views = [bytes_at(Mapping.anonymous(2 * PAGE), 2 * PAGE) for _ in range(10)]
    mapping = Mapping.of_file(memory_file, 3 * HUGE + 5)
    assert size() - before == 3 * HUGE + 21 * PAGE
    del mapping, views
    assert size() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping.of_file(999, 3 * HUGE)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Mapping.anonymous(1 << 60)
    assert size() == before


def test_large_maps_get_huge_pages(memory_file):
    mapping = Mapping.of_file(memory_file, 5 * HUGE + 100)
    block = bytes_at(mapping, 5 * HUGE + 100)
    block[7 :: HUGE // 2] = 3
    mapping.reserve(slice(0, block.size))
    assert mapping.address % HUGE == 0
    assert any(mapping.address in area for area in huge_areas()) == MERGES
    assert (block[7 :: HUGE // 2] == 3).all()
    assert np.count_nonzero(block) == 11


@pytest.mark.parametrize("offset", [0, 100, 4096, HUGE - 4096, 123 * 4096])
def test_a_second_map_has_the_same_pages_in_huge_ones_and_outlives_the_first(memory_file, offset):
    first = mmap.mmap(memory_file, 4 * HUGE)
    mapping = second_map(first, offset, 3 * HUGE)
    block = bytes_at(mapping, 3 * HUGE)
    first[offset], first[offset + 2 * HUGE] = 9, 8
    first.close()
    assert (mapping.address - offset) % HUGE == 0
    mapping.reserve(slice(0, block.size))
    assert any(mapping.address + HUGE in area for area in huge_areas()) == MERGES
    assert (block[0], block[2 * HUGE]) == (9, 8)
