"""Small values: what a program keeps comes back equal and of the same class, or is refused by its name."""

import collections
import enum
import io
import random
from datetime import datetime, time, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpishare.checkpoints.values import dump, load
from mpishare.errors import SpecError
from tests.arrays import DTYPES, assert_same, filled

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.dates(),
    st.complex_numbers(allow_nan=False), st.datetimes(), st.timedeltas(), st.times(), st.just("@mpishare"),
    st.datetimes(timezones=st.timezones()), st.times(timezones=st.timezones()), st.timezones(),
)  # fmt: skip
KEYS = st.one_of(st.text(), st.integers(), st.just("@mpishare"), st.tuples(st.integers(), st.text()))
NESTED = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner) | st.lists(inner).map(tuple) | st.frozensets(SCALARS),
    max_leaves=20,
)


def there_and_back(value):
    return load(dump({"it": value}))["it"]


def classes(value):
    """The classes of a value and of all that is in it."""
    inner = [*value.items()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return type(value), [classes(item) for item in inner]


@given(NESTED)
def test_values_of_python(value):
    restored = there_and_back(value)
    assert (restored, classes(restored)) == (value, classes(value))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_arrays_and_numbers_of_numpy(dtype):
    for shape in ((4, 3), (), (0, 2)):
        restored = there_and_back(filled(dtype, shape))
        assert_same(restored, filled(dtype, shape))
        assert restored.flags.writeable
    if dtype.char not in "USgG":  # whose last bytes are nobody's
        number = filled(dtype, ())[()]
        restored = there_and_back({"deep": [number]})["deep"][0]
        assert_same(np.asarray(restored), np.asarray(number))
        assert isinstance(restored, np.generic)


class Color(enum.IntEnum):
    """A number with a name."""

    RED = 3


Point = collections.namedtuple("Point", "x y")
PLAIN = [
    (Color.RED, 3),
    (Point(1, [2]), (1, [2])),
    (collections.OrderedDict(a=1), {"a": 1}),
    (Path("/a/ä"), Path("/a/ä")),
    ({1, 2}, {1, 2}),
    (np.longdouble(1) / 3, np.longdouble(1) / 3),
    (random.Random(3).getstate(), random.Random(3).getstate()),
]


@pytest.mark.parametrize(("value", "restored"), PLAIN)
def test_what_is_derived_becomes_what_it_is_derived_from(value, restored):
    assert there_and_back(value) == restored
    assert type(there_and_back(value)) is type(restored)


BERLIN = ZoneInfo("Europe/Berlin")
TIMES = [
    datetime(2026, 10, 24, 12, tzinfo=BERLIN),  # the day before the clocks change
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),  # in the hour that there is twice
    datetime(2026, 10, 25, 2, 30, fold=1),
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5), "East")),
    datetime(2026, 1, 2, tzinfo=timezone.utc),
    time(12, 30, 5, 7, tzinfo=BERLIN, fold=1),
    time(12, tzinfo=timezone.utc),
]


@pytest.mark.parametrize("value", TIMES)
def test_times_keep_their_zone(value):
    assert repr(there_and_back(value)) == repr(value)


def test_times_that_were_saved_without_a_zone_are_read():
    """As versions wrote them that knew offsets alone."""
    text = '{"a": {"@mpishare": ["datetime", "2026-01-02T00:00:00+05:00"]}, "b": {"@mpishare": ["time", "12:30:00"]}}'
    assert load(text) == {"a": datetime(2026, 1, 1, 19, tzinfo=timezone.utc), "b": time(12, 30)}


BIT_GENERATORS = [np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64]


@pytest.mark.parametrize("kind", BIT_GENERATORS)
def test_random_generators_go_on(kind):
    """With the half of a number that is left, and with the children that are to come."""
    generator, state = np.random.Generator(kind(3)), np.random.RandomState(kind(3))
    generator.integers(9, dtype="u4")
    generator.spawn(2)
    state.normal()
    restored, restored_state, restored_bits = there_and_back([generator, state, generator.bit_generator])
    assert restored_bits.random_raw(5).tolist() == there_and_back(generator.bit_generator).random_raw(5).tolist()
    for _ in range(1000):
        assert restored.integers(9, dtype="u4") == generator.integers(9, dtype="u4")
        assert restored_state.normal() == state.normal()
    assert [child.random() for child in restored.spawn(2)] == [child.random() for child in generator.spawn(2)]


class Local(tzinfo):
    """A zone of another library."""


NAMELESS = ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(32) + b"\0\0\0\1\0\0\0\4" + bytes(6) + b"UTC\0"))
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
REFUSED = [
    ({"a": [{"b": object()}]}, r"^values\['a'\]\[0\]\['b'\] is of <class 'object'>, which cannot be saved. Give num"),
    ({"a": {object(): 1}}, r"^a key of values\['a'\] is of <class 'object'>"),
    ({"a": pd.Timestamp("2026")}, "Timestamp"),  # which is a datetime, and more
    ({"a": pd.Timestamp("2026", tz="Europe/Berlin")}, "Timestamp"),
    ({"a": time(tzinfo=Local())}, r"^values\['a'\]\['tzinfo'\] is of <class '.*Local'>.*zones of zoneinfo"),  # type: ignore[abstract]
    ({"a": [time(tzinfo=NAMELESS)]}, r"^values\['a'\]\[0\]\['tzinfo'\]: a zone that was read from a file has no"),
    ({"a": np.ma.ones(3)}, r"^values\['a'\]: numpy.ma.MaskedArray was given"),
    ({"a": np.array([None])}, r"^values\['a'\]: dtype object"),
    ({"a": (np.zeros(1 << 20),)}, r"^values\['a'\]\[0\]: it has 8,388,608 bytes, .* among the arrays"),
    ({"a": 10**5000}, "^values cannot be saved: Exceeds the limit"),
    ({"a": ENDLESS}, "nested too deep, or contain themselves"),
    ({1: 2}, "^values cannot be saved: expected a dict of values by name, not {1: 2}"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED)
def test_what_cannot_be_saved_is_named(values, message):
    with pytest.raises(SpecError, match=message):
        dump(values)
