"""A regular file is opened, and refused if it has changed; arrays are read piece by piece; errors are FileErrors."""

import errno
import os
import shutil
from contextlib import nullcontext
from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpishare.errors import ArgumentError, FileError
from mpishare.files.errors import file_errors
from mpishare.files.formats import reader_of
from mpishare.files.input_file import InputFile, read_exactly
from mpishare.files.listing import selections
from mpishare.files.parallel_read import map_part
from mpishare.memory.mapping import Origin
from tests.arrays import DTYPES, assert_same, filled
from tests.unit.files.reading import failing, inspected, loaded, regions


def test_read_exactly(tmp_path, monkeypatch):
    """Also where the system reads less than it was asked for."""
    path, preadv = tmp_path / "a", os.preadv
    path.write_bytes(bytes(range(100)))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:7]], at))
    buffer = bytearray(60)
    with path.open("rb") as file:
        read_exactly(file.fileno(), 40, memoryview(buffer))
        assert buffer == bytes(range(40, 100))
        with pytest.raises(EOFError, match="ends at byte 100, but its contents go on to byte 101"):
            read_exactly(file.fileno(), 41, memoryview(buffer))


CHANGES = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"!"),
    "written": lambda path: os.utime(path, ns=(1, 1)),
    "replaced": lambda path: shutil.copy2(path, path.with_suffix(".new")) and path.with_suffix(".new").replace(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed(tmp_path, change):
    """Whoever has the old file open may go on to read it."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100))
    with InputFile(str(path)) as source:
        stamps = {"": source.stamp}
    with InputFile(str(path), stamps) as source:
        source.read_bytes(0, 6)
        CHANGES[change](path)
        with nullcontext() if change == "replaced" else pytest.raises(FileError, match="was changed while"):
            source.check()
    with InputFile(str(path), stamps) as source, pytest.raises(FileError, match="was changed while"):
        source.read_bytes(0, 6)


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for name, message in {"": "is a folder, and not", "pipe": "is not a regular file", "none": "No such file"}.items():
        with pytest.raises(FileError, match=f"{tmp_path / name}: {message}"):
            inspected(tmp_path / name)
    np.save(tmp_path / "a.npy", np.zeros(3))
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(FileError, match=r"a\.npy: Permission denied") as caught:
        inspected(tmp_path / "a.npy")
    assert caught.value.errno == errno.EACCES


NAMES = ["?", "f8", ">c16", "S5", "V7", "struct", "gaps", "subarray", "unicode names"]
FILTERS = [{}, {"compression": "gzip", "shuffle": True}, {"compression": "lzf", "fletcher32": True}]


@pytest.mark.filterwarnings("ignore:Stored array in format")
@given(data=st.data(), kind=st.sampled_from(["npy", "h5", "chunked"]))
@settings(max_examples=150, deadline=None)
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
    index = data.draw(regions(shape))
    result = loaded(path, dataset, index, tile_bytes=data.draw(st.integers(1, 300)))
    as_bytes = expected.astype(array.dtype, copy=False).view((np.void, array.itemsize))  # NumPy takes no padding along
    assert_same(result, np.asarray(as_bytes[index]).view(array.dtype))
    contents = inspected(path, dataset, index)
    chosen, view = selections(contents, index)
    (selection,) = chosen.values()
    assert (selection.stored.offset is not None) == (kind == "npy" or (array.size > 0 and not is_chunked))
    if selection.stored.offset is not None:
        is_listed = any(
            isinstance(item, list | np.ndarray) for item in (index if isinstance(index, tuple) else (index,))
        )
        refused = pytest.raises(ArgumentError, match="map=True cannot pick items")
        with InputFile(str(path)) as file, refused if is_listed else nullcontext():
            mapped = view(map_part(reader_of(file), selection, Origin("mapped file", 1), 0))
            assert_same(mapped, result)
            assert not mapped.flags.writeable


FAR_APART = [
    (np.s_[:, 5:7], 300),
    (np.s_[::2, ::300_001], 4 << 20),
    (np.s_[[2, 0, 0], 3], 300),
    (np.s_[:, [2_000_000, 5, 6, 5, 1_000]], 400_000),
    (np.s_[1, np.arange(2 << 20) % 7 > 0], 3 << 20),
    (np.s_[:, np.arange(1 << 20) * 2][::1], 7 << 20),
]


@pytest.mark.parametrize(("index", "most_bytes"), FAR_APART)
def test_items_that_lie_far_apart(tmp_path, monkeypatch, index, most_bytes):
    """They are read without what lies between, and near ones by one call."""
    array = np.random.default_rng(5).integers(0, 255, (3, 2 << 20), "u1")
    np.save(tmp_path / "a.npy", array)
    calls = []
    preadv = os.preadv

    def counted(fd, buffers, offset):
        if offset >= 128:  # behind the header
            calls.append((offset, offset + buffers[0].nbytes))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    assert_same(loaded(tmp_path / "a.npy", region=index, tile_bytes=4 << 20), np.asarray(array[index]))
    assert sum(stop - start for start, stop in calls) <= most_bytes
    assert len(calls) <= 40
    calls.sort()
    assert all(stop <= start for (_, stop), (start, _) in pairwise(calls))  # each byte once


FOREIGN = [
    (OSError(errno.ENOSPC, "No space left on device"), "No space left on device", errno.ENOSPC),
    (OSError("HDF5 says so\nand how it came to it"), "HDF5 says so", None),
    (KeyError("no 'a'"), "no 'a'", None),
    (RuntimeError(), "RuntimeError", None),
]


@pytest.mark.parametrize(("error", "reason", "number"), FOREIGN)
def test_foreign_errors(error, reason, number):
    with pytest.raises(FileError) as caught, file_errors("/a.h5", "x", "it was not saved"):
        raise error
    assert str(caught.value) == f"dataset 'x' of /a.h5: {reason}; it was not saved"
    assert (caught.value.errno, caught.value.__cause__) == (number, error)
    with pytest.raises(FileError) as caught, file_errors("/a.npy"):
        raise error
    assert str(caught.value) == f"/a.npy: {reason}"
