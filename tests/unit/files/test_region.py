"""A region is NumPy's index within the array, with at most one list or mask; and which items are read for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.errors import ArgumentError
from mpishare.files.region import checked_region, parse_region, text_of_region
from tests.arrays import assert_same
from tests.unit.files.reading import regions

BAD = [
    (5, "index 5 is outside of axis 0, which has 5 items"),
    (np.s_[0, -4], "index -4 is outside of axis 1, which has 3 items"),
    (np.s_[0, 0, 0], "has 3 indices; expected at most 2, one for each axis"),
    ((..., ...), "has several Ellipses; expected at most one"),
    (True, "True is not an index"),
    ("a", "'a' is not an index"),
    (1.5, "1.5 is not an index"),
    (slice(0, 5, 0), "zero"),
    (slice("a"), "slice indices must be integers"),
    ([0, 1, 5], "index 5 is outside of axis 0, which has 5 items"),
    (np.s_[:, [-4]], "index -4 is outside of axis 1, which has 3 items"),
    (np.array([2**64 - 1], "u8"), f"index {2**64 - 1} is outside"),
    ([0.0, 1.0], "[0.0, 1.0] is not an index: it has dtype float64"),
    (np.array([]), "is not an index: it has dtype float64"),
    ([[0], [1, 2]], "[[0], [1, 2]] is not an index"),
    (["a"], "is not an index"),
    (np.array([True]), "the mask has 1 items; expected 5, as axis 0 has"),
    (np.ones((5, 3), bool), "is not an index: a mask has one axis"),
    (([0], [1]), "has several lists or masks; expected at most one"),
]


@pytest.mark.parametrize(("index", "message"), BAD)
def test_bad_indices(index, message):
    with pytest.raises(ArgumentError, match="region") as caught:
        parse_region(index, (5, 3))
    assert message in str(caught.value)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_regions_are_numpys_indices(data):
    """The stored items are read once, in rising order; the result is a view of the items in the order asked for."""
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    region = data.draw(regions(shape))
    axes, view = parse_region(region, shape)
    read = array
    for number, axis in enumerate(axes):
        indices = np.asarray(axis.indices, int)
        assert (np.diff(indices) > 0).all()
        read = read.take(indices if axis.places is None else indices[axis.places], number)
    result = view(read)
    assert_same(result, np.asarray(array[region]))
    assert not result.size or np.shares_memory(result, read)


def test_what_names_a_region_differs_where_regions_differ():
    indices = np.arange(10_000)
    others = [
        np.s_[:],
        np.s_[0],
        indices,
        indices[::-1],
        indices.reshape(2, -1),
        indices > 5,
        np.s_[None, 0],
        np.s_[0, :],
    ]
    assert len({text_of_region(checked_region(region)) for region in others}) == len(others)
    assert text_of_region(checked_region([1, 2])) == text_of_region(checked_region(np.array([1, 2])))
