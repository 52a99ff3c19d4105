"""The header of a safetensors file, or of the shards that an index names."""

from __future__ import annotations

import json
import operator
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError
from mpishare.files.errors import file_errors
from mpishare.files.input_file import InputFile, OpenFormat
from mpishare.files.stored import Listing, Stored

_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER_BYTES = 100_000_000
"""As the library of the format allows."""

_OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu"}
"""Dtypes that ml_dtypes has under another name than float8_…."""


class SafetensorsFile(OpenFormat):
    """A safetensors file. It satisfies `FormatReader`."""

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the file, or of all shards. See `FormatReader`.

        Source:
            The safetensors documentation, "Format".
        """
        with file_errors(self.file.path):
            arrays, metadata = self._contents()
        return Listing.of_names(self.file.absolute_path, arrays, name, {"": metadata} if attributes else {})

    def _contents(self) -> tuple[list[Stored], dict[str, Any]]:
        return _contents_of(self.file, None)


class SafetensorsIndex(SafetensorsFile):
    """The shards that an index, a JSON file, names; each tensor is in one of them."""

    def _contents(self) -> tuple[list[Stored], dict[str, Any]]:
        index = dict(json.loads(self.file.read_bytes(0, self.file.stamp.nbytes)))
        if "weight_map" not in index:
            raise ValueError("is a JSON file, but no index of safetensors files: it has no 'weight_map'")
        shard_of = dict(index["weight_map"])
        arrays: dict[str | None, Stored] = {}
        for shard in dict.fromkeys(shard_of.values()):
            path = str(Path(self.file.absolute_path).parent / shard)
            with file_errors(path):
                found, _ = _contents_of(self.file.other(path), path)
            arrays.update((array.name, array) for array in found if shard_of.get(array.name) == shard)
        missing = [name for name in shard_of if name not in arrays]
        if missing:
            raise FileError(self.file.path, missing[0], f"the file {shard_of[missing[0]]!r} has no such tensor.")
        return [*arrays.values()], dict(index.get("metadata", {}))


def _contents_of(file: InputFile, shard: str | None) -> tuple[list[Stored], dict[str, Any]]:
    """The arrays of a file and its metadata; `shard` is its path where another file names it.

    Raises:
        ValueError, TypeError, LookupError: The header is damaged.
    """
    (nbytes,) = _LENGTH.unpack(file.read_bytes(0, _LENGTH.size))
    if nbytes > _LARGEST_HEADER_BYTES:
        raise ValueError(f"its header has {nbytes:,} bytes; {_LARGEST_HEADER_BYTES:,} are allowed")
    start = _LENGTH.size + nbytes
    file.check_end(start)
    header = dict(json.loads(file.read_bytes(_LENGTH.size, nbytes)))
    metadata = header.pop("__metadata__", {})
    arrays, end = [], start
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        with file_errors(file.path, name):
            array = _stored(name, entry, start, shard)
            if array.offset != end:
                raise ValueError(f"begins at byte {array.offset:,}; the one before it ends at {end:,}")
            end += array.nbytes
            file.check_end(end, name)
        arrays.append(array)
    if end != file.stamp.nbytes:
        raise ValueError(f"has {file.stamp.nbytes:,} bytes, but its last tensor ends at byte {end:,}")
    return arrays, dict(metadata)


def _stored(name: str, entry: Any, start: int, shard: str | None) -> Stored:
    """The array that an entry of a header describes; the arrays begin at byte `start` of the file."""
    spec = Spec.make(list(entry["shape"]), _dtype_of(entry["dtype"]))
    first, last = map(operator.index, entry["data_offsets"])
    if last - first != spec.nbytes:
        raise ValueError(f"has {last - first:,} bytes; its shape and dtype need {spec.nbytes:,}")
    target = None if shard is None else (shard, name)
    return Stored(name, spec, len(spec.shape), "contiguous", start + first, target=target)


def _dtype_of(name: str) -> np.dtype[Any]:
    """The dtype that a header names.

    Raises:
        ValueError, TypeError: There is no such dtype.
        SpecError: It needs ml_dtypes, which is not installed.
    """
    number = re.fullmatch(r"([UIFC])(8|16|32|64)", name)
    if number is not None:
        return np.dtype(f"<{number[1].lower()}{int(number[2]) // 8}")
    if name == "BOOL":
        return np.dtype(bool)
    if name != "BF16" and not name.startswith("F8_"):
        raise ValueError(f"dtype {name!r} is unknown to mpishare. Use load(call=…) with a library that has it")
    return rebuild({"module": "ml_dtypes", "name": _OF_ML_DTYPES.get(name, f"float8_{name[3:].lower()}")})
