"""An array is read piece by piece, whatever region of it; a contiguous one without a library."""

import h5py
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

NAMES = ["?", "f8", ">c16", "S5", "V7", "struct", "gaps", "subarray", "unicode names"]
FILTERS = [{}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf", "fletcher32": True}]


@pytest.mark.filterwarnings("ignore:Stored array in format")
@given(data=st.data(), kind=st.sampled_from(["npy", "h5", "chunked"]))
@settings(max_examples=400, deadline=None)
def test_any_region_is_read_and_mapped(data, kind, tmp_path_factory):
    """As NumPy and h5py read it."""
    path, dataset = tmp_path_factory.getbasetemp() / "any.npy", None if kind == "npy" else "a"
    is_chunked = kind == "chunked"
    shape = data.draw(hnp.array_shapes(min_dims=int(is_chunked), max_dims=4, min_side=int(is_chunked), max_side=9))
    array = filled(DTYPES[data.draw(st.sampled_from(NAMES))], shape)
    if dataset is None:
        expected = np.asarray(array, order=data.draw(st.sampled_from("CF")))
        np.save(path, expected)
    else:
        options = data.draw(st.sampled_from(FILTERS)) if is_chunked else {}
        chunks = tuple(data.draw(st.integers(1, n)) for n in shape) if is_chunked else None
        with h5py.File(path, "w") as file:
            expected = np.asarray(file.create_dataset("a", data=array, chunks=chunks, **options)[...])
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True).filter(lambda index: index is not None))
    result = loaded(path, dataset, index, piece_bytes=data.draw(st.integers(1, 300)))
    assert_same(result, np.asarray(expected[index]).astype(array.dtype, copy=False))
    contents = inspected(path, dataset, index)
    (part,) = contents.parts
    assert isinstance(part, ContiguousPart) == (kind == "npy" or (array.size > 0 and not is_chunked))
    if isinstance(part, ContiguousPart):
        with Source(str(path)) as source:
            mapped = part.map(source, Origin("mapped file", 1), 0)[contents.view]
        assert_same(mapped, result)
        assert not mapped.flags.writeable


FAR_APART = [(np.s_[:, 5:7], 300), (np.s_[::2, ::300_001], 4 << 20), (np.s_[:, ::-2], 7 << 20), (np.s_[2, 3], 300)]


@pytest.mark.parametrize(("index", "most_bytes"), FAR_APART)
def test_items_that_lie_far_apart(tmp_path, monkeypatch, index, most_bytes):
    """They are read without what lies between, and near ones by one call."""
    array = np.arange(6 << 20, dtype="u1").reshape(3, 2 << 20)
    np.save(tmp_path / "a.npy", array)
    calls = []
    read = Source.read

    def counted(source, offset, buffer):
        calls.append(buffer.nbytes)
        read(source, offset, buffer)

    monkeypatch.setattr(Source, "read", counted)
    assert_same(loaded(tmp_path / "a.npy", region=index, piece_bytes=4 << 20), np.asarray(array[index]))
    assert sum(calls) <= most_bytes
    assert len(calls) <= 20
