"""The checksum of one process, and of its parts."""

import numpy as np
import pytest

from mpishare.kernels.node_parts import part_sum


def sum_in_numpy(block):
    """The checksum, less the number of bytes, as its docstring says it."""
    words = np.frombuffer(block.tobytes() + bytes(-block.size % 8), np.uint64)
    mixed = words + np.arange(1, words.size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 64, 1001])
def test_the_sum_of_parts(nbytes):
    room = np.random.default_rng(nbytes).integers(0, 256, nbytes + 1, np.uint8)
    for block in (room[:nbytes], room[1:]):  # one of them is not aligned
        for parts in range(1, 6):
            total = sum(part_sum(block, parts, part) for part in range(parts)) % 2**64
            assert total == sum_in_numpy(block)
