"""Mapping: the system calls on maps, without MPI."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mpishare.arrays.raw import Block
from mpishare.memory.hugepages import huge_areas, huge_bytes
from mpishare.memory.mapping import Mapping
from mpishare.memory.segment import Origin, Segment


def bytes_at(mapping: Mapping, nbytes: int) -> Block:
    """The bytes of a mapping as a view that keeps it."""
    return Segment(mapping, nbytes, Origin(kind="test", label="test", node_size=1), key=None).block()


def test_a_second_map_shows_the_same_pages_and_outlives_the_first() -> None:
    first = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = np.frombuffer(first, np.uint8).ctypes.data
    second = bytes_at(Mapping.of_pages(address + 100, 5000), 5000)
    first[100:104] = b"here"
    assert second[:4].tobytes() == b"here"
    first.close()
    assert second[:4].tobytes() == b"here"


def test_private_memory_has_no_second_map() -> None:
    private = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with pytest.raises(OSError, match="Invalid argument"):
        Mapping.of_pages(np.frombuffer(private, np.uint8).ctypes.data, 100)


def test_reserving_what_cannot_be_had_is_an_error_and_no_signal() -> None:
    """Pages behind the end of a file cannot be had, as those of a full file system."""
    descriptor = os.memfd_create("short")
    os.ftruncate(descriptor, 4 * mmap.PAGESIZE)
    file = mmap.mmap(descriptor, 4 * mmap.PAGESIZE)
    mapping = Mapping.of_pages(np.frombuffer(file, np.uint8).ctypes.data, 4 * mmap.PAGESIZE)
    mapping.reserve(slice(0, 4 * mmap.PAGESIZE))
    os.ftruncate(descriptor, mmap.PAGESIZE)
    os.close(descriptor)
    mapping.reserve(slice(0, mmap.PAGESIZE))
    mapping.reserve(slice(5, 5))
    with pytest.raises(MemoryError, match="no pages for"):
        mapping.reserve(slice(0, 4 * mmap.PAGESIZE))


def test_more_than_any_address_space() -> None:
    with pytest.raises(OSError, match="Cannot allocate memory"):
        Mapping.anonymous(1 << 60)


def test_maps_go_with_their_objects() -> None:
    def count() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count("/dev/zero")

    before = count()
    views = [bytes_at(Mapping.anonymous(10_000), 10_000) for _ in range(10)]
    assert count() > before
    del views
    assert count() == before


HUGE = huge_bytes()
MERGES = tuple(int(number) for number in os.uname().release.split(".")[:2]) >= (6, 1)


@pytest.fixture
def memory_file() -> Iterator[int]:
    """A file in memory, of 5 huge pages and a bit."""
    descriptor = os.memfd_create("huge")
    os.ftruncate(descriptor, 5 * HUGE + 100)
    yield descriptor
    os.close(descriptor)


def test_large_maps_get_huge_pages(memory_file: int) -> None:
    mapping = Mapping.of_file(memory_file, 5 * HUGE + 100)
    block = bytes_at(mapping, 5 * HUGE + 100)
    block[7 :: HUGE // 2] = 3
    mapping.reserve(slice(0, block.size))
    assert mapping.address % HUGE == 0
    assert any(mapping.address in area for area in huge_areas()) == MERGES
    assert (block[7 :: HUGE // 2] == 3).all()
    assert np.count_nonzero(block) == 11


@pytest.mark.parametrize("offset", [0, 4096, HUGE - 4096, 123 * 4096])
def test_a_second_map_lies_so_that_huge_pages_fit(memory_file: int, offset: int) -> None:
    first = mmap.mmap(memory_file, 4 * HUGE)
    address = np.frombuffer(first, np.uint8).ctypes.data + offset
    mapping = Mapping.of_pages(address, 3 * HUGE)
    block = bytes_at(mapping, 3 * HUGE)
    first[offset] = 9
    assert block[0] == 9
    assert (mapping.address - offset) % HUGE == 0
    mapping.reserve(slice(0, block.size))
    assert any(mapping.address + HUGE in area for area in huge_areas()) == MERGES
    first[offset + 2 * HUGE] = 8
    assert block[2 * HUGE] == 8


def test_no_address_is_kept_but_those_of_the_map(memory_file: int) -> None:
    def size() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    before = size()
    mapping = Mapping.of_file(memory_file, 3 * HUGE + 5)
    assert size() - before == 3 * HUGE + mmap.PAGESIZE
    del mapping
    assert size() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping.of_file(999, 3 * HUGE)
    assert size() == before
