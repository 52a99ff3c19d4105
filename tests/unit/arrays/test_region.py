"""A region is NumPy's index within the array, with at most one list or mask; `tests/unit/files` reads such ones."""

import numpy as np
import pytest

from mpishare.arrays.region import parse_region
from mpishare.errors import ArgumentError

BAD = [
    (5, "5 is not within axis 0, of length 5"),
    (np.s_[0, -4], "-4 is not within axis 1, of length 3"),
    (np.s_[0, 0, 0], "has 3 indices; expected at most 2, one for each axis"),
    ((..., ...), "has several lists, masks or Ellipses"),
    (True, "True is not an index"),
    ("a", "'a' is not an index"),
    (1.5, "1.5 is not an index"),
    (slice(0, 5, 0), "zero"),
    (slice("a"), "slice indices must be integers"),
    ([0, 1, 5], "is not within axis 0, of length 5: index 5 is out of bounds"),
    (np.s_[:, [-4]], "is not within axis 1, of length 3: index -4 is out of bounds"),
    ([0.0, 1.0], "[0.0, 1.0] is not an index: it has dtype float64"),
    (np.array([]), "is not an index: it has dtype float64"),
    ([[0], [1, 2]], "[[0], [1, 2]] is not an index"),
    (["a"], "is not an index"),
    (np.array([True]), "boolean index did not match"),
    (np.ones((5, 3), bool), "is not an index: it has dtype bool and 2 axes"),
    (([0], [1]), "has several lists, masks or Ellipses"),
]


@pytest.mark.parametrize(("index", "message"), BAD)
def test_bad_indices(index, message):
    with pytest.raises(ArgumentError, match="region") as caught:
        parse_region(index, (5, 3))
    assert message in str(caught.value)
