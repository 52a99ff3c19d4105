"""Alignment for huge pages, with the page sizes of x86 and of arm64."""

import mmap
import os
from itertools import pairwise

import pytest

from mpishare.arrays.slices import byte_slice
from mpishare.memory import hugepages, syscalls
from mpishare.memory.hugepages import aligned_bytes, fill_slice, is_aligned
from mpishare.memory.mapping import Mapping

MIB = 1 << 20


@pytest.fixture(params=[(4096, 2 * MIB), (16_384, 32 * MIB), (65_536, 512 * MIB)], ids=["4K", "16K", "64K"])
def sizes(request, monkeypatch):
    """The sizes of a page and of a huge page."""
    page, huge = request.param
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    monkeypatch.setattr(hugepages, "huge_bytes", lambda: huge)
    return page, huge


@pytest.fixture
def map_sizes(monkeypatch):
    """The sizes of the maps that are made, in the order of the calls."""
    made, map_file = [], syscalls.map_file

    def noted(address, length, *args, **options):
        made.append(length)
        return map_file(address, length, *args, **options)

    monkeypatch.setattr(syscalls, "map_file", noted)
    return made


@pytest.mark.parametrize("eighths", [1, 8, 9, 63, 64, 65, 1000])
def test_no_map_grows_by_more_than_an_eighth_or_2_mib(eighths, sizes, map_sizes):
    _, huge = sizes
    nbytes = eighths * huge // 8 - 100
    mapping = Mapping.of_file(-1, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | syscalls.MAP_NORESERVE)
    assert nbytes <= aligned_bytes(nbytes) <= nbytes + max(nbytes / 8, 2 * MIB)
    assert map_sizes == [aligned_bytes(nbytes)] * is_aligned(nbytes) + [nbytes]
    if eighths > 64:
        assert aligned_bytes(nbytes) == nbytes + huge
        assert mapping.address % huge == 0


def test_a_second_map_of_a_part_of_a_file_is_aligned_as_the_file_is(sizes):
    page, huge = sizes
    nbytes = 8 * huge
    descriptor = os.memfd_create("sparse")
    os.truncate(descriptor, nbytes + page)
    first = Mapping.of_file(descriptor, nbytes + page)
    second = Mapping.of_pages(first.address + page, nbytes)
    second.reserve(slice(page + 1, 3 * page + 1))
    allocated = os.fstat(descriptor).st_blocks * 512
    os.close(descriptor)
    assert (second.address - page) % huge == 0
    assert allocated == 2 * page + os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("n_parts", [1, 3, 7])
@pytest.mark.parametrize("eighths", [0, 1, 8, 9, 63, 64, 65, 1000])
def test_ranks_fill_whole_huge_pages_where_their_parts_have_enough(eighths, n_parts, sizes):
    page, huge = sizes
    nbytes = n_parts * eighths * huge // 8 + 100
    parts = [fill_slice(nbytes, n_parts, part) for part in range(n_parts)]
    grain = huge if eighths >= (8 if huge == 2 * MIB else 64) else page
    assert parts == [byte_slice(nbytes, n_parts, part, grain=grain) for part in range(n_parts)]
    assert (parts[0].start, parts[-1].stop) == (0, nbytes)
    assert all(first.stop == second.start for first, second in pairwise(parts))
