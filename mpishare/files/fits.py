"""A FITS file as astropy reads it: what lies there as in memory is read in place, the rest is converted by tiles."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.errors import file_errors, imported, noted
from mpishare.files.input_file import InputFile
from mpishare.files.sliced import LibraryFile
from mpishare.files.stored import NO_DTYPE, Listing, Stored, listed
from mpishare.host.procfs import reopening_path

_OPTIONS = {"uint": True, "character_as_bytes": True}
"""How astropy reads: unsigned integers as such, which is its default, and strings as bytes."""

_BLOCK_BYTES = 2880
_VARIABLE_LENGTH = "column {!r}: its items are arrays of variable length. Store them in columns of a fixed length."


class FitsFile(LibraryFile):
    """A FITS file.

    astropy is imported by the rank that inspects the file, and by ranks that read what it converts.
    """

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._arrays: dict[str, _Image | _Table] = {}
        self._unread: list[str] = []

    @contextmanager
    def _errors(self, name: str | None) -> Iterator[None]:
        """A block whose errors name the file and the HDU. astropy warns of nothing: what is lost, the errors say."""
        with file_errors(self.file.path, name, what="it"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                yield
            except SpecError as error:  # of a length that no array has
                raise FileError(self.file.path, name, str(error)) from error

    def _open(self, *, memmap: bool | None = None) -> Any:
        fits = imported("astropy.io.fits", "FITS files")
        path = Path(reopening_path(self.file.descriptor, self.file.path))  # opened, it has a position of its own
        return self.file.enter_context(fits.open(self.file.enter_context(path.open("rb")), memmap=memmap, **_OPTIONS))

    @cached_property
    def _hdus(self) -> Any:
        return self._open(memmap=False)

    @cached_property
    def _mapped(self) -> Any:
        """The HDUs for compressed images, of which astropy reads all tiles at once where it does not map them."""
        return self._open()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each HDU by EXTNAME; by itself as a string, where that is none, a number, or an earlier one's.

        An EXTNAME that cannot be parsed is none.

        Raises:
            FileError: The first HDU cannot be read. What cannot be read behind it joins `_unread`.
        """
        cannot_be_parsed = imported("astropy.io.fits", "FITS files").VerifyError
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
                    name = ""
                    with suppress(cannot_be_parsed):
                        name = hdu.name
                    is_name = name and not name.isdecimal() and name not in numbers
                    numbers[name if is_name else str(number)] = number
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
        key = (inner, int(version)) if version.isdecimal() else name
        with self._errors(name), suppress(LookupError):
            if name not in names:
                return names[int(name) if name.isdecimal() else self._hdus.index_of(key)]
        return name

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the HDUs, and the headers of all. See `FormatReader`."""
        listing = super().listing(name and self._name_of(name), attributes=attributes and name is not None)
        unread = [*self._unread, *listing.unread]
        of_all = self._numbers if attributes and name is None else ()
        found = {inner: self.attributes(inner, None, unread) for inner in of_all}
        return listing._replace(attributes=listing.attributes | found, unread=unread)

    def member(self, name: str) -> _Image | _Table | Any:
        """See `LibraryFile`: the array of an HDU, if it has one."""
        if name not in self._arrays and name in self._numbers:
            number = self._numbers[name]
            with self._errors(name):
                hdu = self._hdus[number]
                if not (hdu.shape if getattr(hdu, "is_image", False) else getattr(hdu, "columns", True)):
                    return None
                if not hasattr(hdu, "columns") and not hasattr(hdu, "section"):
                    raise TypeError(f"XTENSION = {hdu.header['XTENSION']!r} is neither an image nor a table")
                make = _Table if hasattr(hdu, "columns") and not hasattr(hdu, "compression_type") else _Image
                self._arrays[name] = make(self.file, name, self._mapped[number] if hasattr(hdu, "tile_shape") else hdu)
        return self._arrays.get(name) if name else self._numbers

    def stored(self, name: str, array: Any) -> Stored:
        """See `LibraryFile`."""
        if array.dtype.names == ():
            return Stored(name, Spec(NO_DTYPE, ()), 0, "sliced", reason=listed(array.left_out))
        stored = super().stored(name, array)
        if array.in_place is not None:
            return replace(stored, layout="contiguous", offset=array.in_place)
        return replace(stored, filters=array.filters, left_out=array.left_out)

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """The values of a header by keyword; of commentary such as HISTORY, the lines of all cards."""
        values: dict[str, Any] = {}
        header = self._hdus[self._numbers[name]].header
        for keyword in dict.fromkeys(header):
            with noted(unread, f"attribute {keyword!r} of {name!r}: "), self._errors(name):
                value = header[keyword]
                is_plain = isinstance(value, str | bool | int | float | complex | None)
                values[keyword] = value if is_plain else str(value)
        return values

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`."""
        with self._errors(stored.name):
            super().read(stored, ranges, out)


class _Image:
    """An image, of which astropy reads, decompresses and scales a section at a time.

    Attributes:
        shape: The lengths of its axes.
        dtype: The dtype that astropy gives its items.
        chunks: The lengths of a tile that is compressed as one.
        filters: How the tiles are compressed.
        in_place: Where the items begin in the file, if they lie there as in memory; else None.
        left_out: The columns that cannot be loaded, each with the reason.
    """

    left_out = ()

    def __init__(self, file: InputFile, name: str, hdu: Any) -> None:
        self._section, self.shape, header, place = hdu.section, hdu.shape, hdu.header, hdu.fileinfo()
        is_compressed = hasattr(hdu, "compression_type")
        self.chunks = hdu.tile_shape if is_compressed else ()
        self.filters = (hdu.compression_type,) if is_compressed else ()
        pixel_bytes = math.prod(self.shape) * abs(header["BITPIX"]) // 8
        nbytes = place["datSpan"] - _BLOCK_BYTES if is_compressed else pixel_bytes
        file.check_end(place["datLoc"] + nbytes, name)
        is_scaled = (header.get("BSCALE", 1), header.get("BZERO", 0), "BLANK" in header) != (1, 0, False)
        self.in_place = None if is_compressed or is_scaled else place["datLoc"]
        self.dtype = self._section[... if 0 in self.shape else (slice(0, 1),) * len(self.shape)].dtype

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        spans = tuple(slice(axis.start, axis.stop) for axis in index)  # with a step, astropy makes another dtype
        items: NDArray[Any] = self._section[spans][tuple(slice(None, None, axis.step) for axis in index)]
        return items


class _Table:
    """A table, or random groups. Some rows at a time become a table in memory, which astropy converts. See `_Image`.

    So no rank holds the whole table, as `hdu.data` would, and a file that is cut meanwhile is an error.
    """

    chunks, filters = (), ()

    def __init__(self, file: InputFile, name: str, hdu: Any) -> None:
        self._file, self._make, is_groups = file, type(hdu).fromstring, hasattr(hdu, "parnames")
        self._key, self._header = "GCOUNT" if is_groups else "NAXIS2", hdu.header.copy()
        if not is_groups:
            self._header["PCOUNT"] = 0  # no heap, which has the items of variable length
        rows = hdu.header[self._key]
        row_bytes = hdu.size // (rows or 1) if is_groups else hdu.header["NAXIS1"]
        start, self.shape = hdu.fileinfo()["datLoc"], (rows,)
        self._rows = Stored(name, Spec.make(self.shape, f"V{row_bytes}"), 1, "contiguous", start)
        file.check_end(start + self._rows.nbytes, name)
        zero = b"0" if hdu.header.get("XTENSION") == "TABLE" else b"\0"
        row = np.frombuffer(zero * row_bytes, self._rows.dtype)
        content, data = self._data(row)
        columns: dict[str, NDArray[Any]] = {}
        reasons: list[str] = []
        for column in data.dtype.names:
            with noted(reasons), file_errors(file.path, name, what=f"column {column!r}"):
                columns[column] = np.asarray(data.field(column))
            if column in columns and columns[column].dtype.hasobject:
                reasons.append(_VARIABLE_LENGTH.format(column))
                del columns[column]
        self.left_out = tuple(reasons)
        self.dtype = np.dtype([(key, values.dtype, values.shape[1:]) for key, values in columns.items()])
        # astropy returns a view of the file's bytes where it converts nothing, so no rule of the format is needed here.
        is_view = all(np.may_share_memory(values, content) for values in columns.values())
        self.in_place = start if is_view and self.dtype.itemsize == row_bytes else None

    def _data(self, rows: NDArray[np.void]) -> tuple[NDArray[np.uint8], Any]:
        """The bytes of a table of these rows, and what astropy makes of them."""
        self._header[self._key] = len(rows)
        header = self._header.tostring().encode("ascii")
        content = header + rows.tobytes() + bytes(-rows.nbytes % _BLOCK_BYTES)
        data = self._make(content, **_OPTIONS).data
        if data.dtype.itemsize != rows.itemsize:
            raise ValueError(f"a row has {rows.itemsize} bytes, and its columns have {data.dtype.itemsize}")
        return np.frombuffer(content, np.uint8), data

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        ranges = [range(axis.start, axis.stop, axis.step) for axis in index]
        rows = np.empty([*map(len, ranges)], self._rows.dtype)
        self._file.read(self._rows, ranges, rows)
        data, items = self._data(rows)[1], np.empty(rows.shape, self.dtype)
        for column in self.dtype.names or ():
            items[column] = data.field(column)
        return items
