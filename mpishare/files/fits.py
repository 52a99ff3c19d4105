"""A FITS file as astropy reads it: what lies there as in memory is read in place, the rest is converted by tiles."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.errors import imported, library_errors
from mpishare.files.input_file import InputFile, OpenFormat
from mpishare.files.sliced import described_or_reason, read_tile
from mpishare.files.stored import NO_DTYPE, Listing, Stored, listed

_OPTIONS = {"uint": True, "character_as_bytes": True}
"""How astropy reads: unsigned integers as such, which is its default, and strings as bytes."""

_OF_DATA = re.compile("SIMPLE|XTENSION|BITPIX|NAXIS[0-9]*|[PG]COUNT|GROUPS|BSCALE|BZERO|BLANK|TFIELDS|[PT][A-Z]+[0-9]+")
"""The keywords that say how data are stored, of which astropy makes an HDU of some items. A header can have thousands
of others."""

_BLOCK_BYTES = 2880
_VARIABLE_LENGTH = "column {!r}: its items are arrays of variable length. Store them in columns of a fixed length."


class FitsFile(OpenFormat):
    """A FITS file. It satisfies `FormatReader`.

    astropy is imported by the rank that inspects the file, and by ranks that read what it converts.
    """

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._arrays: dict[str, _Items | _Compressed] = {}
        self._kinds: dict[Any, _Kind] = {}  # by the cards of their headers
        self._unread: list[str] = []

    @contextmanager
    def _errors(self, name: str | None) -> Iterator[None]:
        """A block whose errors name the file and the HDU. astropy warns of nothing: what is lost, the errors say."""
        try:
            with library_errors(self.file.path, name, "it"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except SpecError as error:  # of a length that no array has
            raise FileError(self.file.path, name, str(error)) from error

    @cached_property
    def _fits(self) -> Any:
        return imported("astropy.io.fits", "FITS files")

    @cached_property
    def _hdus(self) -> Any:
        opened = self._fits.open(open(self.file.descriptor, "rb", closefd=False), **_OPTIONS)  # noqa: SIM115
        self.file.callback(opened.close)
        return opened

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each HDU by EXTNAME; by itself as a string, where that is missing or an earlier one has it.

        Raises:
            FileError: The first HDU cannot be read. What cannot be read behind it joins `_unread`.
        """
        numbers: dict[str, int] = {}
        end, reason = 0, "no HDU begins there"
        try:
            with self._errors(None):
                for number, hdu in enumerate(self._hdus):
                    if not hasattr(hdu, "fileinfo"):
                        raise ValueError(f"HDU {number} has SIMPLE = F, so it is not of standard FITS")
                    start, end = end, hdu.fileinfo()["datLoc"] + hdu.fileinfo()["datSpan"]
                    if end <= start:
                        raise ValueError(f"HDU {number} ends at byte {end:,}, before it begins")
                    name = hdu.name
                    numbers[name if name and name not in numbers else str(number)] = number
        except FileError as error:
            if not numbers:
                raise
            reason = error.reason
        if end < self.file.stamp.nbytes:
            self._unread.append(f"what follows HDU {len(numbers) - 1} at byte {end:,}: {reason}")
        return numbers

    def _name_of(self, name: str) -> str:
        """The name of the HDU that has a name, or has it in another case, or "name,EXTVER"; or of a number."""
        names, (inner, _, version) = [*self._numbers], name.rpartition(",")
        if name in names:
            return name
        with suppress(LookupError):
            if name.isdecimal():
                return names[int(name)]
            number: int = self._hdus.index_of((inner, int(version)) if version.isdecimal() else name)
            return names[number]
        return name

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the HDUs. See `FormatReader`."""
        chosen = None if name is None else self._name_of(name)
        arrays: list[Stored] = []
        errors: list[FileError] = []
        for inner in [chosen] if chosen in self._numbers else self._numbers:
            try:
                arrays += self._described(inner)
            except FileError as error:
                errors.append(error)
                arrays.append(Stored(inner, Spec(NO_DTYPE, ()), 0, "sliced", reason=error.reason))
        if errors and all(array.reason for array in arrays):
            raise errors[0]
        headers = {inner: self._header(inner) for inner in self._numbers} if attributes else {}
        listing = Listing.of_names(self.file.absolute_path, arrays, chosen, headers)
        return listing._replace(unread=self._unread)

    def _described(self, name: str) -> list[Stored]:
        """What an HDU has: an array, or nothing.

        Raises:
            FileError: It is damaged, or is of a kind that astropy does not know.
        """
        with self._errors(name):
            hdu = self._hdus[self._numbers[name]]
            if not (hdu.shape if getattr(hdu, "is_image", False) else getattr(hdu, "columns", True)):
                return []
            if not hasattr(hdu, "columns") and not hasattr(hdu, "section"):
                raise TypeError(f"XTENSION = {hdu.header['XTENSION']!r} is neither an image nor a table")
            array = self._array(name)
            if array.dtype.names == ():
                return [Stored(name, Spec(NO_DTYPE, ()), 0, "sliced", reason=listed(array.left_out))]
            stored = described_or_reason(self.file.path, name, array)
            if array.in_place is not None:
                return [replace(stored, layout="contiguous", offset=array.in_place)]
            return [replace(stored, filters=array.filters, left_out=array.left_out)]

    def _header(self, name: str) -> dict[str, Any]:
        """The values of a header by keyword; of commentary such as HISTORY, the lines of all cards."""
        values: dict[str, Any] = {}
        header = self._hdus[self._numbers[name]].header
        for keyword in dict.fromkeys(header):
            try:
                with self._errors(name):
                    value = header[keyword]
                    is_plain = isinstance(value, (str, bool, int, float, complex))
                    values[keyword] = (
                        value if is_plain else None if isinstance(value, self._fits.Undefined) else str(value)
                    )
            except FileError as error:
                self._unread.append(f"attribute {keyword!r} of {name!r}: {error.reason}")
        return values

    def _array(self, name: str) -> _Items | _Compressed:
        if name not in self._arrays:
            hdu = self._hdus[self._numbers[name]]
            if hasattr(hdu, "compression_type"):
                self._arrays[name] = _Compressed(self.file, name, hdu)
            else:
                self._arrays[name] = _Items(self.file, name, hdu, self._kinds)
        return self._arrays[name]

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        with self._errors(stored.name):
            read_tile(self.file.path, stored, self._array(str(stored.name)), ranges, out)


class _Kind:
    """HDUs whose headers differ in the number of items alone: astropy converts any items of one as if it had no others.

    Attributes:
        dtype: The dtype that astropy gives an item.
        is_as_stored: Whether the items lie in the file as in memory.
        left_out: The columns that cannot be loaded, each with the reason.
    """

    def __init__(self, place: tuple[str, str], hdu: Any, cards: Sequence[str], keys: list[str], itemsize: int) -> None:
        """See `_lengths_of` and `_cards_of`; `place` is the file, and the name of the first such HDU."""
        self._make, self._card, self._cards, self._keys = type(hdu).fromstring, type(hdu.header.cards[0]), cards, keys
        zero = b"0" if hdu.header.get("XTENSION") == "TABLE" else b"\0"
        content, data = self._data(np.frombuffer(zero * itemsize, f"V{itemsize}").reshape((1,) * len(keys)))
        columns: dict[str, NDArray[Any]] = {}
        reasons: list[str] = []
        for column in data.dtype.names or [""]:
            try:
                with library_errors(*place, f"column {column!r}"):
                    columns[column] = _field(data, column)
            except FileError as error:
                reasons.append(error.reason)
            if column in columns and columns[column].dtype.hasobject:
                reasons.append(_VARIABLE_LENGTH.format(column))
                del columns[column]
        self.left_out = tuple(reasons)
        kept = [(name, array.dtype, array.shape[1:]) for name, array in columns.items()]
        self.dtype = columns[""].dtype if [*columns] == [""] else np.dtype(kept)
        self.is_as_stored = self.dtype.itemsize == itemsize and _is_view(content, self.dtype, columns)

    def _data(self, raw: NDArray[np.void]) -> tuple[memoryview, Any]:
        """The bytes of these items, as in an HDU of its own, and what astropy makes of them."""
        lengths = dict(zip(self._keys, raw.shape, strict=True))
        cards = [str(self._card(card, lengths[card])) if card in lengths else card for card in self._cards]
        header = "".join([*cards, "END".ljust(80)])
        header = header.ljust(len(header) + -len(header) % _BLOCK_BYTES)
        content = header.encode("ascii") + raw.tobytes() + bytes(-raw.nbytes % _BLOCK_BYTES)
        data = self._make(content, **_OPTIONS).data
        if data.dtype.names is not None and data.dtype.itemsize != raw.itemsize:
            raise ValueError(f"a row has {raw.itemsize} bytes, and its columns have {data.dtype.itemsize}")
        return memoryview(content)[len(header) :], data

    def converted(self, raw: NDArray[np.void]) -> NDArray[Any]:
        """The items as astropy converts them."""
        _, data = self._data(raw)
        if self.dtype.names is None:
            return _field(data, "")
        items = np.empty(raw.shape, self.dtype)
        for name in self.dtype.names:
            items[name] = _field(data, name)
        return items


class _Items:
    """An image or a table, of which astropy converts some items at a time.

    Attributes:
        shape: The lengths of its axes.
        dtype: The dtype that astropy gives its items.
        in_place: Where they begin in the file, if they lie there as in memory; else None.
        left_out: The columns that cannot be loaded, each with the reason.
    """

    chunks, filters = (), ()

    def __init__(self, file: InputFile, name: str, hdu: Any, kinds: dict[Any, _Kind]) -> None:
        keys, itemsize = _lengths_of(hdu)
        start, self.shape = hdu.fileinfo()["datLoc"], tuple(hdu.header[key] for key in keys)
        self._file = file
        self._stored = Stored(name, Spec.make(self.shape, f"V{itemsize}"), len(self.shape), "contiguous", start)
        file.check_end(start + self._stored.nbytes, name)
        cards = tuple(_cards_of(hdu, keys))
        if cards not in kinds:
            kinds[cards] = _Kind((file.path, name), hdu, cards, keys, itemsize)
        self._kind = kinds[cards]
        self.dtype, self.left_out = self._kind.dtype, self._kind.left_out
        self.in_place = start if self._kind.is_as_stored else None

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        ranges = [range(axis.start, axis.stop, axis.step) for axis in index]
        raw = np.empty([*map(len, ranges)], self._stored.dtype)
        self._file.read(self._stored, ranges, raw)
        return self._kind.converted(raw)


class _Compressed:
    """An image that astropy decompresses. See `_Items`."""

    in_place, left_out = None, ()

    def __init__(self, file: InputFile, name: str, hdu: Any) -> None:
        file.check_end(hdu.fileinfo()["datLoc"] + hdu.fileinfo()["datSpan"] - _BLOCK_BYTES, name)
        self._section, self.shape, self.chunks = hdu.section, hdu.shape, hdu.tile_shape
        self.dtype = hdu.section[(slice(0, 1),) * len(hdu.shape)].dtype
        self.filters = (hdu.compression_type,)

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        spans = tuple(slice(axis.start, axis.stop) for axis in index)  # with a step, astropy makes another dtype
        items: NDArray[Any] = self._section[spans][tuple(slice(None, None, axis.step) for axis in index)]
        return items


def _lengths_of(hdu: Any) -> tuple[list[str], int]:
    """The keywords that have the lengths of the axes, the slowest first, and the bytes of an item."""
    header = hdu.header
    if not hasattr(hdu, "columns"):
        return [f"NAXIS{axis}" for axis in range(header["NAXIS"], 0, -1)], abs(header["BITPIX"]) // 8
    if hasattr(hdu, "parnames"):  # of random groups
        return ["GCOUNT"], hdu.size // header["GCOUNT"]
    return ["NAXIS2"], header["NAXIS1"]


def _cards_of(hdu: Any, keys: Sequence[str]) -> Iterator[str]:
    """The cards that say how data are stored, in the order of the header: the keyword alone of each of `keys`.

    A table has no heap, which has the items of variable length.
    """
    for card in hdu.header.cards:
        if card.keyword in keys:
            yield card.keyword
        elif card.keyword == "PCOUNT" and "NAXIS2" in keys[:1]:
            yield str(type(card)("PCOUNT", 0))
        elif _OF_DATA.fullmatch(card.keyword):
            yield str(card)


def _field(data: Any, name: str) -> NDArray[Any]:
    """A column of astropy's data of a table, or "", the data of an image."""
    return np.asarray(data.field(name) if name else data)


def _is_view(content: memoryview, dtype: np.dtype[Any], columns: dict[str, NDArray[Any]]) -> bool:
    """Whether the columns of an item are views of its bytes, at the start of `content`, each behind the other.

    astropy returns a view of the file's bytes where it converts nothing, so no rule of the format is needed here.
    """
    item = np.frombuffer(content, dtype, 1)
    return all(_address(columns[name]) == _address(item[name] if name else item) for name in columns)


def _address(array: NDArray[Any]) -> int:
    """Where an array begins in memory."""
    address: int = array.__array_interface__["data"][0]
    return address
