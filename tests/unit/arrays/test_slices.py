"""slices: every item and every byte belongs to one part, whatever the numbers."""

from itertools import pairwise

import pytest

from mpishare.arrays import slices


def assert_cover(parts, count):
    assert (parts[0].start, parts[-1].stop) == (0, count)
    assert all(first.stop == second.start for first, second in pairwise(parts))


@pytest.mark.parametrize("n_parts", [1, 2, 3, 5, 128])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 100, 4095, 4096, 4097, 2**31 + 5, 2**40 + 3])
def test_parts_cover_and_balance(count, n_parts):
    parts = [slices.balanced_slice(count, n_parts, part) for part in range(n_parts)]
    assert_cover(parts, count)
    lengths = [part.stop - part.start for part in parts]
    assert max(lengths) - min(lengths) <= 1
    pages = [slices.byte_slice(count, n_parts, part, grain=4096) for part in range(n_parts)]
    assert_cover(pages, count)
    assert all(part.stop % 4096 == 0 for part in pages if part.stop != count)
    assert all(abs(part.start - page.start) <= 4096 + n_parts for part, page in zip(parts, pages, strict=True))
    assert lengths == sorted(lengths, reverse=True)


def test_chunks_and_rounded_numbers():
    for nbytes in (0, 1, 9, 10, 11, 1001):
        chunks = list(slices.chunks(nbytes, 10))
        assert [byte for chunk in chunks for byte in range(nbytes)[chunk]] == list(range(nbytes))
        assert len(chunks) == slices.round_up(nbytes, 10) // 10
    assert [slices.round_up(number, 64) for number in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]
