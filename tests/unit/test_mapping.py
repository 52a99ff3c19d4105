"""Mapping: the system calls on maps, without MPI."""

from __future__ import annotations

import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from mpishare.segments.mapping import Mapping
from mpishare.segments.segment import Segment
from mpishare.spec import Block


def bytes_at(mapping: Mapping, nbytes: int) -> Block:
    """The bytes of a mapping as a view that keeps it."""
    return Segment(mapping, nbytes, kind="test", label="test", node_size=1, key=None).block()


def test_a_second_map_shows_the_same_pages_and_outlives_the_first() -> None:
    first = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = np.frombuffer(first, np.uint8).ctypes.data
    second = bytes_at(Mapping.second(address + 100, 5000), 5000)
    first[100:104] = b"here"
    assert second[:4].tobytes() == b"here"
    first.close()
    assert second[:4].tobytes() == b"here"


def test_private_memory_has_no_second_map() -> None:
    private = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with pytest.raises(OSError, match="Invalid argument"):
        Mapping.second(np.frombuffer(private, np.uint8).ctypes.data, 100)


def test_reserving_what_cannot_be_had_is_an_error_and_no_signal() -> None:
    """Pages behind the end of a file cannot be had, as those of a full file system."""
    descriptor = os.memfd_create("short")
    os.ftruncate(descriptor, 4 * mmap.PAGESIZE)
    file = mmap.mmap(descriptor, 4 * mmap.PAGESIZE)
    mapping = Mapping.second(np.frombuffer(file, np.uint8).ctypes.data, 4 * mmap.PAGESIZE)
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
