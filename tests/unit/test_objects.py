"""Objects taken apart, laid out in one segment, and what of them must be copied."""

from __future__ import annotations

import sys
from array import array as array_of_python
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from mpishare.arrays.spec import Spec
from mpishare.errors import SpecError
from mpishare.objects.packing import PackedHeader, PackedObject, is_packed_header
from mpishare.objects.pickled import pack_specs, unpack_specs
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.objects.unshared import UnsharedParts, describe


def copied(obj: object) -> list[str]:
    copies = UnsharedParts()
    pickle_object(obj, copies)
    return [one.description.removesuffix(" holds Python objects") for one in copies.parts]


def test_what_holds_no_objects_is_not_describe() -> None:
    frame = pd.DataFrame({"a": [1.0], "b": pd.Categorical(["x"]), "c": pd.array(["y"], dtype="string[pyarrow]")})
    few = np.array(["x", None])
    assert copied({"a": np.zeros(3), "b": [None, "text"], "c": frame, "d": few}) == []


def test_columns_are_told_once_and_by_name() -> None:
    names, mixed = pd.Series([None, "x"], dtype=object), pd.Series([1, "y"], dtype=object)
    frame = pd.DataFrame({"a": [1.0, 2.0], 7: names, "c": mixed})
    assert copied(frame) == ["column 7 of a DataFrame", "column 'c' of a DataFrame"]
    assert copied(frame[7]) == ["column 7 of a Series"]
    assert copied([frame, lambda: 0]) == copied(frame)  # cloudpickle has pickled it once more
    by_name = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index(["x", "y"], dtype=object))
    assert copied(by_name) == ["the index of a DataFrame"]


def test_the_cost_counts_each_object_once() -> None:
    text = "a long text" * 100
    copies = UnsharedParts()
    pickle_object({"names": np.array([text] * 1000, object)}, copies)
    assert copies.parts[0].nbytes == 8 * 1000 + -(-sys.getsizeof(text) // 16) * 16


def test_labels() -> None:
    label = PackedHeader(1 << 40, 4096, 100, 50, 7)
    assert is_packed_header(label.pack())
    assert len(label.pack()) == 64
    assert PackedHeader.unpack(label.pack()) == label
    assert not is_packed_header(Spec.of(np.zeros(3)).packed[0])


def laid_out(obj: object) -> Any:
    """The object, written where a crate says and read from there."""
    crate = PackedObject(obj)
    memory = np.full(crate.header.nbytes, 0xAA, np.uint8)
    crate.write(memory[: crate.header.prefix_bytes].data)
    specs = unpack_specs(memory[: crate.header.contents_bytes].tobytes())
    placement = crate._layout
    taken = [(0, crate.header.contents_bytes + crate.header.skeleton_bytes)]
    for number, (spec, at) in enumerate(zip(specs, placement.offsets, strict=True)):
        taken.append((at, at + spec.nbytes))
        assert at % 64 == 0
        assert (at >= placement.prefix_bytes) == (number in placement.large) or not spec.nbytes
    taken = sorted(span for span in taken if span[0] < span[1])
    assert all(one[1] <= other[0] for one, other in pairwise(taken))
    assert taken[-1][1] <= crate.header.nbytes
    return memory, specs, placement


@settings(max_examples=50, deadline=None)
@given(some.lists(some.sampled_from([0, 1, 63, 64, 65, (4 << 20) - 1, 4 << 20, (4 << 20) + 1]), max_size=8))
def test_arrays_lie_apart_and_aligned(lengths: list[int]) -> None:
    arrays = [np.full(length, number + 1, np.uint8) for number, length in enumerate(lengths)]
    memory, _, placement = laid_out(arrays)
    for number, (array, at) in enumerate(zip(arrays, placement.offsets, strict=True)):
        if number not in placement.large:
            assert (memory[at : at + array.nbytes] == number + 1).all()


def test_lists_that_are_cut_are_refused() -> None:
    contents, specs = pack_specs([np.zeros(3), np.zeros((1,) * 7), np.zeros(2, [("a", "i4")])])
    assert unpack_specs(contents) == specs
    with pytest.raises(SpecError):
        unpack_specs(contents + b"more")
    for end in range(len(contents)):
        with pytest.raises(SpecError):
            unpack_specs(contents[:end])


def test_dtypes_of_other_libraries() -> None:
    """What NumPy's description does not carry is pickled with the dtype, not with the bytes."""
    titled = np.dtype({"names": ["a"], "formats": ["f8"], "titles": [b"x"]})
    array = np.zeros(100_000, titled)
    array["a"] = np.arange(100_000)
    parcel = pickle_object([array])
    assert len(parcel.skeleton) < 1000
    (found,) = unpickle_object(parcel)
    assert found.dtype == titled
    assert found["a"][-1] == 99_999


def test_what_cannot_be_pickled_says_why() -> None:
    with pytest.raises(SpecError, match="list cannot be pickled: cannot pickle 'generator' object"):
        pickle_object([1, 2, (number for number in range(3))])


def test_frames_with_several_levels() -> None:
    rows = pd.MultiIndex.from_product([[1, 2], pd.Index(["a", "b", "c"], dtype=object)])
    frame = pd.DataFrame(np.ones((6, 2)), index=rows)
    assert copied(frame) == ["the index of a DataFrame"]
    assert copied(frame[0]) == ["the index of a Series"]
    for one in (frame, frame.T, frame[0]):
        assert type(unpickle_object(pickle_object(one, UnsharedParts()))) is type(one)


def test_what_an_object_costs_does_not_decide_whether_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: UnsharedParts, obj: object) -> None:
        raise ValueError("no idea")

    monkeypatch.setattr(UnsharedParts, "note", fail)
    assert unpickle_object(pickle_object({"a": np.array([None] * 3)}, UnsharedParts()))["a"].tolist() == [None] * 3


def test_bytes_in_an_array_of_python_are_describe() -> None:
    assert copied([array_of_python("d", bytes(800))]) == ["an array.array"]


def test_only_the_costliest_are_named() -> None:
    frame = pd.DataFrame({number: pd.Series([None] * (number + 1), dtype=object) for number in range(9)})
    copies = UnsharedParts()
    pickle_object(frame, copies)
    words = describe(copies.parts)
    assert len(copies.parts) == 9
    assert words.startswith("column ")
    assert words.count("holds Python objects") == 5
    assert "And 4 more, " in words


class Field(np.ndarray[Any, Any]):
    """An array with attributes."""

    unit: str
    mesh: dict[str, Any]


def test_arrays_with_attributes_that_refer_back() -> None:
    field = np.ones(3).view(Field)
    field.unit, field.mesh = "K", {}
    field.mesh["fields"] = [field]
    (found,) = unpickle_object(pickle_object([field]))
    assert (type(found), found.unit) == (Field, "K")
    assert found.mesh["fields"][0] is found
