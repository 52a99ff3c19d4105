"""The header of a .npy file. Formats 1, 2 and 3; never a pickle."""

from __future__ import annotations

import ast
import re
import struct
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import check_dtype
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.source import Source
from mpishare.files.stored import Stored

MAGIC = b"\x93NUMPY"

_LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
_ENCODINGS = {1: "latin1", 2: "latin1", 3: "utf8"}
_AT = len(MAGIC) + 2
_LARGEST_HEADER_BYTES = 1 << 20
"""A dtype of 20,000 columns. Python's parser takes hundreds of bytes for each one of a longer text."""

_LONG = re.compile(r"(?<=\d)L(?=\s*[,)])")
"""The end of a number as Python 2 wrote it."""


def stored_in(source: Source) -> Stored:
    """What a .npy file has.

    Raises:
        FileError: The header cannot be understood, or the file ends before the array does.
        SpecError: The array holds Python objects, which only a pickle could bring.

    Source:
        numpy.lib.format, "Format Version 1.0" to "3.0".
    """
    head = _read(source, 0, _AT + 4)
    form = _LENGTHS.get(head[len(MAGIC)])
    if form is None:
        raise FileError(source.path, None, f".npy format {head[len(MAGIC)]} is unknown; 1, 2 and 3 are known.")
    (length,) = form.unpack_from(head, _AT)
    if length > _LARGEST_HEADER_BYTES:
        raise FileError(source.path, None, f"its header of {length:,} bytes is longer than {_LARGEST_HEADER_BYTES:,}.")
    begin = _AT + form.size
    text = _read(source, begin, length)
    try:
        spec = parsed(text, head[len(MAGIC)])
    except SpecError as error:
        raise SpecError(f"{place_in(source.path, None)}: {error}") from error
    except (ValueError, TypeError, SyntaxError, LookupError, MemoryError, RecursionError) as error:
        raise FileError(source.path, None, f"its header is no .npy header: {error}") from error
    source.check_end(begin + length + spec.nbytes)
    return Stored(None, spec, len(spec.shape), "npy", offset=begin + length)


def _read(source: Source, offset: int, count: int) -> bytes:
    place = bytearray(count)
    source.read(offset, memoryview(place))
    return bytes(place)


def parsed(text: bytes, version: int) -> Spec:
    """The spec that a header tells.

    Raises:
        SpecError: The array holds Python objects.
        ValueError, TypeError, SyntaxError, LookupError, MemoryError, RecursionError: It is no header.
    """
    told = _literal(text.decode(_ENCODINGS[version]))
    if set(told) != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"it has the keys {sorted(map(str, told))}")
    shape, is_fortran = told["shape"], told["fortran_order"]
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError(f"its shape is {shape!r}")
    if not isinstance(is_fortran, bool):
        raise ValueError(f"fortran_order is {is_fortran!r}")
    dtype = np.lib.format.descr_to_dtype(told["descr"])
    if dtype.subdtype is not None:
        raise ValueError(f"its dtype is {dtype}, which has lengths of its own")
    if dtype.hasobject:
        raise SpecError("it is a pickle of Python objects, which is not read. Save it with a dtype of a fixed width.")
    check_dtype(dtype)
    return Spec.checked(shape, dtype, "F" if is_fortran and len(shape) > 1 else "C")


def _literal(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(text)
    except SyntaxError:
        found = ast.literal_eval(_LONG.sub("", text))
    if not isinstance(found, dict):
        raise ValueError(f"it is {type(found).__name__}, not a dict")
    return found
