"""A packed object: its header, and where its arrays lie."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError
from mpishare.objects.packing import PackedHeader, PackedObject, is_packed_header, lay_out
from mpishare.objects.pickled import pack_specs, unpack_specs
from mpishare.transfer.plan import MIN_CMA_BYTES as LARGE


def test_headers():
    header = PackedHeader(1 << 40, 4096, 100, 50, 7)
    note = header.packed[0]
    assert (len(note), is_packed_header(note)) == (64, True)  # as an agreement wants it
    assert PackedHeader.unpack(note) == header
    assert not is_packed_header(Spec.of(np.zeros(3)).packed[0])


def test_contents_that_are_cut_are_refused():
    contents, specs = pack_specs([np.zeros(3), np.zeros((1,) * 7), np.zeros(2, [("a", "i4")])])
    assert unpack_specs(contents) == specs
    for broken in (contents + b"more", *(contents[:end] for end in range(len(contents)))):
        with pytest.raises(SpecError, match="cannot be read"):
            unpack_specs(broken)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 63, 64, 65, LARGE - 1, LARGE, LARGE + 1]), max_size=8))
def test_arrays_lie_apart_and_aligned(lengths):
    """Small arrays lie in the prefix, which is written whole; large ones begin on pages behind it."""
    packed = PackedObject([np.full(length, number + 1, np.uint8) for number, length in enumerate(lengths)])
    header = packed.header
    memory = np.zeros(header.nbytes, np.uint8)
    packed.write(memory[: header.prefix_bytes].data)
    text_bytes = header.contents_bytes + header.skeleton_bytes
    specs = unpack_specs(memory[: header.contents_bytes].tobytes())
    assert [spec.nbytes for spec in specs] == lengths
    ranges = [(0, text_bytes)]
    for number, (length, start) in enumerate(zip(lengths, lay_out(text_bytes, specs)[0], strict=True)):
        is_large = length >= LARGE
        assert start % (4096 if is_large else 64) == 0
        assert (start >= header.prefix_bytes) == is_large or not length
        assert (memory[start : start + length] == (0 if is_large else number + 1)).all()
        ranges += [(start, start + length)] if length else []
    assert all(first[1] <= second[0] for first, second in pairwise(sorted(ranges)))
    assert max(ranges)[1] <= header.nbytes < sum(lengths) + text_bytes + 64 + 4096 * len(lengths) + 64
