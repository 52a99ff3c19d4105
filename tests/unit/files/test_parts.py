"""A contiguous array is read piece by piece without a library, whatever region of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.files.parts import ContiguousPart
from mpishare.files.source import Source
from mpishare.memory.kinds import Origin
from tests.arrays import DTYPES, assert_same, filled
from tests.unit.files.reading import inspected, loaded


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_region_is_read_and_mapped(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9))
    array = np.asarray(filled(DTYPES["gaps"], shape), order=data.draw(st.sampled_from("CF")))
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True).filter(lambda index: index is not None))
    np.save(path, array)
    assert_same(loaded(path, region=index, piece_bytes=data.draw(st.integers(1, 200))), np.asarray(array[index]))
    contents = inspected(path, region=index)
    (part,) = contents.parts
    assert isinstance(part, ContiguousPart)
    with Source(str(path)) as source:
        mapped = part.map(source, Origin("mapped file", 1), 0)
    assert_same(mapped[contents.view], np.asarray(array[index]))
    assert not mapped.flags.writeable


@pytest.mark.parametrize(
    ("index", "most_bytes"),
    [(np.s_[:, 5:7], 300), (np.s_[::2, ::300_001], 4 << 20), (np.s_[:, ::-2], 7 << 20), (np.s_[2, 3], 300)],
)
def test_items_that_lie_far_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Any, most_bytes: int) -> None:
    """They are read without what lies between, and near ones by one call."""
    array = np.arange(6 << 20, dtype="u1").reshape(3, 2 << 20)
    np.save(tmp_path / "a.npy", array)
    calls: list[int] = []
    read = Source.read

    def counted(source: Source, offset: int, buffer: memoryview) -> None:
        calls.append(buffer.nbytes)
        read(source, offset, buffer)

    monkeypatch.setattr(Source, "read", counted)
    assert_same(loaded(tmp_path / "a.npy", region=index, piece_bytes=4 << 20), np.asarray(array[index]))
    assert sum(calls) <= most_bytes
    assert len(calls) <= 20
