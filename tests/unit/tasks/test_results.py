"""Results as the rows of one array, where they are alike."""

import numpy as np
import pytest

from mpishare.tasks.errors import ItemFailed
from mpishare.tasks.results import RankResults, stack

VECTORS, MATRIX = [np.arange(3.0), np.ones(3)], np.arange(6).reshape(2, 3)
SCALARS = [[np.float32(1.5), np.float32(2.5)], [np.True_, np.False_]]
STACKED = [np.zeros((0, 3)), np.asfortranarray(MATRIX), np.array(["ab", "c"]), np.arange(3, dtype=">f8")]
COLUMN = np.zeros(2, [("a", "S0")])["a"]
KEPT = [np.array(1.5), np.zeros(2, "O"), np.zeros(2, [("a", "i4")]), COLUMN, np.ma.zeros(2), np.datetime64(1, "s"), 1.5]
UNLIKE = [[], [1, np.int64(1)], [np.zeros(2), np.zeros(3)], [np.zeros(2), np.zeros(2, "f4")]]


@pytest.mark.parametrize("values", [VECTORS, *SCALARS, *([array] * 3 for array in STACKED)])
def test_alike(values):
    rows = stack(values)
    assert isinstance(rows, np.ndarray)
    assert (rows.dtype, rows.shape) == (values[0].dtype, (len(values), *values[0].shape))
    for row, value in zip(rows, values, strict=True):
        assert type(row) is type(value)
        assert row.tobytes() == value.tobytes()


@pytest.mark.parametrize("values", [*UNLIKE, *([value] * 2 for value in KEPT)])
def test_unlike(values):
    assert stack(values) is values


def test_content():
    results = RankResults()
    results.add(range(4, 6), [np.int8(1), np.int8(2)])
    results.add(range(9, 10), [np.int8(3)])
    chunks, values = results.content
    assert (chunks, list(values)) == ([(4, 6), (9, 10)], [1, 2, 3])
    assert RankResults().content == ([], [])


def test_the_item_whose_result_cannot_be_pickled_is_named():
    results = RankResults()
    results.add(range(4, 5), [1])
    results.add(range(7, 9), ["a", (number for number in range(3))])
    with pytest.raises(ItemFailed) as raised:
        results.pickled()
    assert raised.value.args == (8,)
