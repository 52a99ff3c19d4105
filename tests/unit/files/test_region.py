"""A region is a basic index within the array."""

import numpy as np
import pytest

from mpishare.errors import ArgumentError
from mpishare.files.region import parse_region

BAD = [
    (5, "index 5 is outside of axis 0, which has 5 items"),
    (np.s_[0, -4], "index -4 is outside of axis 1, which has 3 items"),
    (np.s_[0, 0, 0], "has 3 indices; expected at most 2, one for each axis"),
    ((..., ...), "has 2 Ellipses; expected at most one"),
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
