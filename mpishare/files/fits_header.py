"""The headers of a FITS file: which arrays it has, and which of them lie in the file as in memory."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from mpishare.arrays.slices import round_up
from mpishare.arrays.spec import Spec
from mpishare.files.input_file import InputFile

_BLOCK_BYTES, _CARD_BYTES = 2880, 80
_LARGEST_HEADER_BYTES = 10_000 * _BLOCK_BYTES
_NUMBERS = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
"""The dtypes by BITPIX."""

_COLUMNS = {"B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16"}
"""The dtypes by the letter of TFORM, of columns that are not converted. Strings, "A", stay bytes."""

_KINDS = ("IMAGE", "BINTABLE", "TABLE")


class Hdu(NamedTuple):
    """A header and its data.

    Attributes:
        number: Its number in the file.
        header: The values by keyword.
        offset: Where the data begin in the file.
    """

    number: int
    header: dict[str, Any]
    offset: int

    def integer(self, key: str, default: int | None = None) -> int:
        """The value of a keyword that counts something.

        Raises:
            ValueError: It is missing, or is no such number.
        """
        value = self.header.get(key, default)
        if type(value) is not int or value < 0:
            raise ValueError(f"HDU {self.number} has {key} = {value!r}; expected an integer >= 0")
        return value

    @property
    def number_dtype(self) -> np.dtype[Any]:
        """The dtype that BITPIX says.

        Raises:
            ValueError: It says none.
        """
        bitpix = self.header.get("BITPIX")
        if bitpix not in _NUMBERS:
            raise ValueError(f"HDU {self.number} has BITPIX = {bitpix!r}; expected one of {[*_NUMBERS]}")
        return np.dtype(_NUMBERS[bitpix])

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes of the data, the slowest first."""
        return tuple(self.integer(f"NAXIS{axis}") for axis in range(self.integer("NAXIS"), 0, -1))

    @property
    def nbytes(self) -> int:
        """The bytes of the data."""
        items = self.integer("PCOUNT", 0) + (math.prod(self.shape) if self.shape else 0)
        return self.number_dtype.itemsize * self.integer("GCOUNT", 1) * items

    @property
    def kind(self) -> str:
        """The type of the array; empty where there is none."""
        kind = str(self.header.get("XTENSION", "IMAGE"))
        return kind if kind in _KINDS and self.shape and self.header.get("GROUPS") is not True else ""

    def spec(self) -> Spec | None:
        """What the array is, if its bytes lie in the file as in memory; else None."""
        if self.kind == "IMAGE":
            is_plain = self.header.get("BSCALE", 1) == 1 and self.header.get("BZERO", 0) == 0
            return Spec.make(self.shape, self.number_dtype) if is_plain else None
        columns = [self._column(number) for number in range(1, self.integer("TFIELDS") + 1)]
        if self.kind != "BINTABLE" or self.header.get("ZIMAGE") is True or None in columns:
            return None
        dtype = np.dtype(columns)
        if dtype.itemsize != self.shape[-1]:
            raise ValueError(
                f"HDU {self.number} has NAXIS1 = {self.shape[-1]}; its columns have {dtype.itemsize} bytes"
            )
        return Spec.make(self.shape[:1], dtype)

    def _column(self, number: int) -> tuple[Any, ...] | None:
        """The name, the dtype and the shape of a column; None if it is converted."""
        name, form = self.header.get(f"TTYPE{number}") or f"col{number}", str(self.header.get(f"TFORM{number}"))
        found = re.fullmatch(r"(\d{0,9})([ABCDEIJKM]).*", form)
        if found is None or self.header.keys() & {f"TSCAL{number}", f"TZERO{number}"}:
            return None
        lengths = [int(length) for length in re.findall(r"\d+", str(self.header.get(f"TDIM{number}", "")))[::-1]]
        lengths = lengths or [int(found[1] or 1)]
        if found[2] == "A":
            return name, f"S{lengths.pop()}", tuple(lengths)
        return name, _COLUMNS[found[2]], () if lengths == [1] else tuple(lengths)


def hdus_of(file: InputFile) -> dict[str, Hdu]:
    """The HDUs that have arrays, by EXTNAME; by their number, where it is missing or an earlier one has it.

    Raises:
        ValueError: A header is damaged.

    Source:
        The FITS standard 4.0, sections 3 and 4.
    """
    hdus: dict[str, Hdu] = {}
    number = start = 0
    while start < file.stamp.nbytes and (not number or _block(file, start).startswith(b"XTENSION")):
        hdu = _hdu(file, start, number)
        name = str(hdu.header.get("EXTNAME", "" if number else "PRIMARY"))
        if hdu.kind:
            hdus[name if name and name not in hdus else str(number)] = hdu
        number, start = number + 1, hdu.offset + round_up(hdu.nbytes, _BLOCK_BYTES)
    return hdus


def _block(file: InputFile, start: int) -> bytes:
    return file.read_bytes(start, min(_BLOCK_BYTES, file.stamp.nbytes - start))


def _hdu(file: InputFile, start: int, number: int) -> Hdu:
    """The HDU whose header begins at a byte of a file."""
    header: dict[str, Any] = {}
    for offset in range(start, start + _LARGEST_HEADER_BYTES, _BLOCK_BYTES):
        block = file.read_bytes(offset, _BLOCK_BYTES).decode("latin-1")
        for card in re.findall(f"(?s).{{{_CARD_BYTES}}}", block):
            if card.rstrip() == "END":
                return Hdu(number, header, offset + _BLOCK_BYTES)
            if card[8:10] == "= ":
                header.setdefault(card[:8].rstrip(), _value(card[10:]))
    raise ValueError(f"HDU {number} has no END within {_LARGEST_HEADER_BYTES:,} bytes")


def _value(text: str) -> Any:
    """The value of a card: a string, a boolean or a number; else its text."""
    string = re.match(r" *'((?:[^']|'')*)'", text)
    if string is not None:
        return string[1].replace("''", "'").rstrip()
    word = text.partition("/")[0].strip()
    if word in ("T", "F"):
        return word == "T"
    for make in (int, float):
        with suppress(ValueError):
            return make(word.replace("D", "E"))
    return word
