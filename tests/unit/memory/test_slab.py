"""slab: slots hold their arrays and waste little."""

from __future__ import annotations

import pytest

from mpishare.memory.slab import LARGEST_SLOT_BYTES, slot_bytes


@pytest.mark.parametrize("nbytes", [*range(1, 3000, 7), 64, 512, 513, 65_537, 200_000, LARGEST_SLOT_BYTES])
def test_slots_hold_their_arrays_and_waste_little(nbytes: int) -> None:
    slot = slot_bytes(nbytes)
    assert slot % 64 == 0
    assert nbytes <= slot <= max(nbytes + 63, nbytes * 1.25)
    assert slot_bytes(slot) == slot


def test_there_are_few_sizes_of_slots() -> None:
    assert len({slot_bytes(nbytes) for nbytes in range(1, LARGEST_SLOT_BYTES + 1, 61)}) < 80
