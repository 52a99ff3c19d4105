"""What is no index into an array is refused as a region; test_parts reads the others."""

import numpy as np
import pytest

from mpishare.errors import ArgumentError
from mpishare.files.region import parse_region

BAD = [
    (5, "index 5 is outside of axis 0, which has 5 items"),
    (np.s_[0, -4], "index -4 is outside of axis 1, which has 3 items"),
    (np.s_[0, 0, 0], "has 3 indices, but the stored array has 2 axes"),
    ((..., ...), "more than one Ellipsis"),
    ([1, 2], "[1, 2] is not a basic index"),
    (True, "True is not a basic index"),
    (np.array([True]), "is not a basic index"),
    ("a", "'a' is not a basic index"),
    (1.5, "1.5 is not a basic index"),
    (slice(0, 5, 0), "zero"),
    (slice("a"), "slice indices must be integers"),
]


@pytest.mark.parametrize(("index", "message"), BAD)
def test_bad_indices(index, message):
    with pytest.raises(ArgumentError, match="region") as caught:
        parse_region(index, (5, 3))
    assert message in str(caught.value)
