"""buffer_pool: memory of received arrays, used again within a limit, and never while a view of it lives."""

import random
from collections.abc import Iterator

import pytest

from mpishare.arrays.raw import Block, address_of
from mpishare.memory import buffer_pool
from mpishare.memory.buffer_pool import acquire

MIB = 1 << 20
LIMIT = 64 * MIB
SIZES = [MIB - 1, MIB, 4 * MIB, 5 * MIB, 5 * MIB + 1, 6 * MIB, 20 * MIB, 25 * MIB, 30 * MIB, LIMIT, LIMIT + 1]
"""Too small and too large for the pool, at most 1.25 times another one and more, and many that exceed the limit."""


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    buffer_pool.clear()
    yield
    buffer_pool.clear()
    assert buffer_pool.free_bytes() == 0


def test_the_newest_buffer_that_fits_is_used_again_and_the_oldest_is_released() -> None:
    """As in a plain list of free buffers."""
    chance, free, live = random.Random(5), list[tuple[int, int]](), list[tuple[Block, int]]()
    for _ in range(2000):
        if live and chance.random() < 0.5:
            block, size = live.pop(chance.randrange(len(live)))
            address = address_of(block)
            del block
            if MIB <= size <= LIMIT:
                while sum(nbytes for _, nbytes in free) > LIMIT - size:
                    free.pop(0)
                free.append((address, size))
        else:
            nbytes = chance.choice(SIZES)
            block = acquire(nbytes, LIMIT)
            fitting = [item for item in free if MIB <= nbytes <= item[1] <= nbytes * 1.25]
            if fitting:
                free.remove(fitting[-1])
                assert address_of(block) == fitting[-1][0]
            assert (block.nbytes, block.flags.writeable) == (nbytes, True)
            live.append((block, fitting[-1][1] if fitting else nbytes))
            del block
        assert buffer_pool.free_bytes() == sum(nbytes for _, nbytes in free)


def test_a_buffer_is_not_used_again_while_a_view_lives() -> None:
    block = acquire(8 * MIB, LIMIT)
    block[:] = 7
    view, address = block.reshape(1024, -1)[3:5, ::2], address_of(block)
    del block
    other = acquire(8 * MIB, LIMIT)
    other[:] = 1
    assert address_of(other) != address
    assert (view == 7).all()
