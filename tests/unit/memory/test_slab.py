"""slab: slots hold their arrays and waste little; slabs grow, and no two slots overlap. Without MPI."""

import numpy as np

from mpishare.memory.kinds import NodeMemory, Origin
from mpishare.memory.mapping import Mapping
from mpishare.memory.segment import Segment
from mpishare.memory.slab import LARGEST_SLOT_BYTES, SlotPool, slot_bytes

KIB = 1 << 10


def test_slots_of_few_sizes_hold_their_arrays_and_waste_little():
    for nbytes in [*range(1, 3000), 65_537, 200_000, LARGEST_SLOT_BYTES]:
        slot = slot_bytes(nbytes)
        assert slot % 64 == 0
        assert nbytes <= slot <= max(nbytes + 63, nbytes * 1.25)
        assert slot_bytes(slot) == slot
    assert len({slot_bytes(nbytes) for nbytes in range(1, LARGEST_SLOT_BYTES + 1, 61)}) < 80


def add_slab(slots):
    """Adds the slab that is missing; returns its size in KiB."""
    nbytes = slots.missing_bytes()
    slots.add(NodeMemory(Mapping.anonymous(nbytes), Origin("test", node_size=1)), nbytes)
    return nbytes // KIB


def test_slabs_double_the_slots_up_to_a_limit_when_less_than_a_quarter_is_free():
    slots, sizes = SlotPool(4 * KIB), list[int]()
    for _ in range(8):
        sizes.append(add_slab(slots))
        slots.free = slots.free[: sum(sizes) // 4 // 4]
        assert slots.missing_bytes() == 0
        slots.free.pop()
    assert sizes == [64, 64, 128, 256, 512, 1024, 2048, 2048]
    assert SlotPool(LARGEST_SLOT_BYTES).missing_bytes() == LARGEST_SLOT_BYTES


def test_slots_do_not_overlap_and_show_what_was_written_before():
    slots, segments = SlotPool(4 * KIB), []
    add_slab(slots)
    for number in range(16):
        slots.next_bytes(4 * KIB)[:] = bytes([number]) * (4 * KIB)
        segments.append(Segment(slots.acquire(), 4 * KIB, Origin("test", node_size=1), key=None, made_by="test"))
        segments[-1].seal()
    assert not slots.free
    blocks = [segment.block() for segment in segments]
    assert all(np.all(block == number) and not block.flags.writeable for number, block in enumerate(blocks))
