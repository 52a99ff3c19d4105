"""buffer_pool: memory of received arrays, used again within a limit, and never while a view of it lives."""

import gc
import random

from mpishare.arrays.raw import Block, address_of
from mpishare.memory import buffer_pool

MIB = 1 << 20
LIMIT = 64 * MIB
SMALLEST = MIB // 4
SIZES = [SMALLEST - 1, SMALLEST, 4 * MIB, 5 * MIB, 5 * MIB + 1, 6 * MIB, 20 * MIB, 25 * MIB, 30 * MIB, LIMIT, LIMIT + 1]
"""Too small and too large for the pool, at most 1.25 times another one and more, and many that exceed the limit."""


def test_the_newest_buffer_that_fits_is_used_again_and_the_oldest_is_released():
    """As in a plain list of free buffers. Views keep their bits."""
    buffer_pool.clear()
    chance, free, live = random.Random(5), list[tuple[int, int]](), list[tuple[Block, int, int, int]]()
    for number in range(2000):
        if live and chance.random() < 0.5:
            view, byte, *buffer = live.pop(chance.randrange(len(live)))
            assert (view == byte).all()
            del view
            if SMALLEST <= buffer[1] <= LIMIT:
                while sum(nbytes for _, nbytes in free) > LIMIT - buffer[1]:
                    free.pop(0)
                free.append((buffer[0], buffer[1]))
        else:
            nbytes = chance.choice(SIZES)
            block = buffer_pool.acquire(nbytes, LIMIT)
            fitting = [item for item in free if SMALLEST <= nbytes <= item[1] <= nbytes * 1.25]
            address, size = fitting[-1] if fitting else (address_of(block), nbytes)
            free = [item for item in free if item[0] != address]
            assert (address_of(block), block.nbytes, block.flags.writeable) == (address, nbytes, True)
            block[:64] = number % 256
            live.append((block[:64].reshape(8, 8)[3:, ::2], number % 256, address, size))
            del block
        assert buffer_pool.free_bytes() == sum(nbytes for _, nbytes in free)
    live.clear()
    buffer_pool.clear()
    assert buffer_pool.free_bytes() == 0


def test_the_collector_returns_a_buffer_while_another_is_sought():
    """It runs after each number of allocations in turn, of which the tuples that Python keeps for later save none."""
    thresholds, tuples = gc.get_threshold(), list[object]()
    gc.disable()
    gc.freeze()  # the objects of all modules need not be searched each time
    try:
        for allocations in range(20):
            buffer_pool.clear()
            views = [buffer_pool.acquire(SMALLEST, LIMIT) for _ in range(12)]
            garbage: list[object] = [views.pop()]
            garbage.append(garbage)
            del views, garbage
            tuples += [(number, number) for number in range(4000)]
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            block = buffer_pool.acquire(SMALLEST, LIMIT)
            gc.disable()
            gc.collect()
            assert block.nbytes == SMALLEST
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.enable()
