"""Headers of safetensors files are read as their own library reads them; a damaged or hostile one is refused."""

import json
import struct
import sys

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mpishare.errors import FileError, SpecError
from tests.unit.files.reading import inspected, loaded


def file_of(header, data=b"", nbytes=None):
    """A file with that header, a string or what JSON makes of it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if nbytes is None else nbytes) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


A, B = entry(), entry(offsets=(8, 16))
DAMAGED = {
    "a header past the end": (file_of({"a": A}, bytes(8), 1000), "is truncated"),
    "no JSON": (file_of(b"{]      "), "Expecting property name"),
    "deep JSON": (file_of(b"{" + b'"a":{' * 50_000), ""),
    "no dtype": (file_of({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "dtype"),
    "a negative length": (file_of({"a": entry(shape=(-2,))}, bytes(8)), "shape (-2,) is negative"),
    "a huge shape": (file_of({"a": entry(shape=[2**62, 2**62])}, bytes(8)), "exceed the address space"),
    "an overlap": (file_of({"a": A, "b": entry(offsets=(4, 12))}, bytes(16)), "the one before it ends at"),
    "a gap": (file_of({"a": A, "b": entry(offsets=(12, 20))}, bytes(20)), "the one before it ends at"),
    "negative offsets": (file_of({"a": entry(offsets=(-8, 0))}, bytes(8)), "the one before it ends at"),
    "a wrong length": (file_of({"a": entry(offsets=(0, 12))}, bytes(12)), "has 12 bytes; its shape and dtype need 8"),
    "offsets of text": (file_of({"a": entry(offsets=("0", "8"))}, bytes(8)), "cannot be interpreted as an integer"),
    "bytes too few": (file_of({"a": A}, bytes(7)), "is truncated"),
    "bytes too many": (file_of({"a": A}, bytes(9)), "but its last tensor ends at byte"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_hostile_files_are_refused(tmp_path, name):
    """As the library of the format refuses them."""
    content, message = DAMAGED[name]
    (tmp_path / "a").write_bytes(content)
    with pytest.raises((FileError, SpecError)) as caught:
        inspected(tmp_path / "a")
    assert str(tmp_path / "a") in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(SafetensorError):
        safe_open(tmp_path / "a", "np")


INDICES = {
    "a map of no names": ({"weight_map": [1]}, "cannot convert dictionary update sequence"),
    "a tensor that is not there": ({"weight_map": {"b": "shard"}}, "'b' of .*index: the file 'shard' has no such"),
}


@pytest.mark.parametrize("name", INDICES)
def test_damaged_indices(tmp_path, name):
    content, message = INDICES[name]
    save_file({"a": np.arange(3)}, tmp_path / "shard")
    (tmp_path / "index").write_text(json.dumps(content))
    with pytest.raises(FileError, match=message):
        inspected(tmp_path / "index")


def test_attributes(tmp_path):
    save_file({"a": np.arange(3)}, tmp_path / "a", {"by": "me"})
    assert inspected(tmp_path / "a", attributes=True).attributes == {"": {"by": "me"}}
    assert inspected(tmp_path / "a").attributes == {}


def test_without_ml_dtypes(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(file_of({"a": entry("BF16", (4,))}, bytes(8)))
    assert loaded(tmp_path / "a")["a"].dtype.name == "bfloat16"
    (tmp_path / "a").write_bytes(file_of({"a": entry("BF16", (2, 2))}, bytes(8)))  # what is known is not imported again
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(SpecError, match=r"dtype bfloat16 is of module ml_dtypes, .* Install it for all ranks"):
        inspected(tmp_path / "a")
