"""buffer_pool: memory of received arrays, used again within a limit, and never while a view of it lives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mpishare.arrays.raw import address_of
from mpishare.memory import buffer_pool
from mpishare.memory.buffer_pool import acquire

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    buffer_pool.clear()
    yield
    buffer_pool.clear()


def put_back(*sizes: int, limit: int = LIMIT) -> list[int]:
    """Acquires buffers of so many bytes, deletes them in this order, and returns where they were."""
    blocks = [acquire(size, limit) for size in sizes]
    assert tuple(block.nbytes for block in blocks) == sizes
    addresses = [address_of(block) for block in blocks]
    while blocks:
        del blocks[0]
    return addresses


@pytest.mark.parametrize("size", [8, 7])
def test_a_buffer_is_used_again(size: int) -> None:
    (address,) = put_back(8 * MIB)
    block = acquire(size * MIB, LIMIT)
    assert (address_of(block), block.nbytes, block.flags.writeable) == (address, size * MIB, True)


def test_a_buffer_is_not_used_again_while_a_view_lives() -> None:
    block = acquire(8 * MIB, LIMIT)
    block[:] = 7
    view = block.reshape(1024, -1)[3:5, ::2]
    address = address_of(block)
    del block
    other = acquire(8 * MIB, LIMIT)
    other[:] = 1
    assert address_of(other) != address
    assert (view == 7).all()


@pytest.mark.parametrize(("size", "limit"), [(8 * MIB, 0), (65 * MIB, LIMIT), (8 * MIB, 8 * MIB - 1), (MIB - 1, LIMIT)])
def test_small_buffers_and_those_beyond_the_limit_are_not_kept(size: int, limit: int) -> None:
    put_back(size, limit=limit)
    assert buffer_pool.free_bytes() == 0


def test_the_oldest_goes_first() -> None:
    put_back(30 * MIB, 20 * MIB, 40 * MIB)
    assert buffer_pool.free_bytes() == 60 * MIB


def test_the_newest_is_used_first_and_none_that_is_much_too_large() -> None:
    _, newest = put_back(8 * MIB, 8 * MIB)
    assert address_of(acquire(8 * MIB, LIMIT)) == newest
    acquire(6 * MIB, LIMIT)
    assert buffer_pool.free_bytes() == (8 + 8 + 6) * MIB
