"""The header of a safetensors file, or of the shards that an index names."""

from __future__ import annotations

import json
import operator
import re
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.errors import file_errors, reason_of
from mpishare.files.input_file import FormatReader, InputFile
from mpishare.files.stored import Listing, Stored, left_out

_LENGTH = struct.Struct("<Q")

_OF_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu"}
"""Dtypes that ml_dtypes has under another name than float8_…."""


class SafetensorsFile(FormatReader):
    """A safetensors file."""

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the file, or of all shards. See `FormatReader`.

        Source:
            The safetensors documentation, "Format".
        """
        with file_errors(self.file.path, None, what="its header"):
            arrays, metadata = self._contents(name)
        return Listing.of_names(self.file.absolute_path, arrays, name, {"": metadata} if attributes else {})

    def _contents(self, name: str | None) -> tuple[list[Stored], dict[str, Any]]:
        """The arrays and the metadata; of several shards at least the array of that name."""
        return _contents_of(self.file, None)


class SafetensorsIndex(SafetensorsFile):
    """The shards that an index, a JSON file, names; each tensor is in one of them."""

    def _contents(self, name: str | None) -> tuple[list[Stored], dict[str, Any]]:
        index = dict(json.loads(self.file.read_bytes(0, self.file.stamp.nbytes)))
        if "weight_map" not in index:
            raise FileError(self.file.path, None, "is a JSON file, but no index of safetensors files: no 'weight_map'.")
        tensors: dict[str, list[str]] = {}
        for tensor, shard in dict(index["weight_map"]).items():
            tensors.setdefault(str(shard), []).append(tensor)
        chosen = {shard: names for shard, names in tensors.items() if name in names} or tensors
        arrays = [array for shard, names in chosen.items() for array in self._in_shard(shard, names)]
        return arrays, dict(index.get("metadata", {}))

    def _in_shard(self, shard: str, names: list[str]) -> list[Stored]:
        """The tensors of these names, which a shard has; or the reason why it does not have them."""
        path = str(Path(self.file.absolute_path).parent / shard)
        error = FileError(self.file.path, None, f"the file {shard!r} has no such tensor.")
        found: dict[str | None, Stored] = {}
        try:
            with file_errors(path, None, what="its header"):
                found = {array.name: array for array in _contents_of(self.file.other(path), path)[0]}
        except FileError as of_shard:
            error = of_shard
        return [found.get(name) or left_out(self.file.path, name, "unknown", error) for name in names]


def _contents_of(file: InputFile, shard: str | None) -> tuple[list[Stored], dict[str, Any]]:
    """The arrays of a file and its metadata; `shard` is its path where another file names it.

    Raises:
        FileError: The header is damaged.
    """
    (nbytes,) = _LENGTH.unpack(file.read_bytes(0, _LENGTH.size))
    start = _LENGTH.size + nbytes
    file.check_end(start)
    header = dict(json.loads(file.read_bytes(_LENGTH.size, nbytes)))
    metadata = dict(header.pop("__metadata__", {}))
    arrays, end = [], 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        try:
            first, last = map(operator.index, entry["data_offsets"])
            if first != end:
                raise FileError(file.path, name, f"begins at byte {first:,}; the one before it ends at byte {end:,}.")
            arrays.append(_stored(file.path, name, entry, start, shard))
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise FileError(file.path, name, f"its entry in the header is damaged: {reason_of(error)}.") from error
        end = last
    file.check_end(start + end)
    if start + end < file.stamp.nbytes:
        reason = f"has {file.stamp.nbytes:,} bytes, but its last tensor ends at byte {start + end:,}."
        raise FileError(file.path, None, reason)
    return arrays, metadata


def _stored(path: str, name: str, entry: Any, start: int, shard: str | None) -> Stored:
    """The array that an entry of a header describes; the arrays begin at byte `start` of the file.

    Raises:
        FileError: The entry is damaged.
    """
    target = None if shard is None else (shard, name)
    first, last = entry["data_offsets"]
    try:
        spec = _spec(entry["dtype"], *entry["shape"])
    except SpecError as error:
        return left_out(path, name, "contiguous", error)
    if last - first != spec.nbytes:
        raise FileError(path, name, f"has {last - first:,} bytes; its shape and dtype need {spec.nbytes:,}.")
    return Stored(name, spec, len(spec.shape), "contiguous", start + first, target=target)


@lru_cache(maxsize=1024)
def _spec(dtype: str, *shape: int) -> Spec:
    """What a header says of a tensor. The tensors of a model have few dtypes and shapes.

    Raises:
        SpecError: There is no such dtype; or it needs ml_dtypes, which is not installed; or no array has such a shape.
    """
    number = re.fullmatch(r"([UIFC])(8|16|32|64)", dtype)
    if number is not None:
        return Spec.make(shape, np.dtype(f"<{number[1].lower()}{int(number[2]) // 8}"))
    if dtype == "BOOL":
        return Spec.make(shape, np.dtype(bool))
    if dtype != "BF16" and not dtype.startswith("F8_"):
        raise SpecError(f"dtype {dtype!r} is unknown to mpishare. Use load(call=…) with a library that has it.")
    name = _OF_ML_DTYPES.get(dtype, f"float8_{dtype[3:].lower()}")
    return Spec.make(shape, rebuild({"module": "ml_dtypes", "name": name}))
