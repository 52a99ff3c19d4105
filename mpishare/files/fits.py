"""The arrays of a FITS file: in place where their bytes lie as in memory, else as astropy converts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.files.errors import file_errors, imported
from mpishare.files.fits_header import Hdu, hdus_of
from mpishare.files.input_file import InputFile, OpenFormat
from mpishare.files.sliced import described_or_reason, read_tile
from mpishare.files.stored import Listing, Stored


class FitsFile(OpenFormat):
    """A FITS file. It satisfies `FormatReader`."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._converted: dict[str, Any] = {}

    @cached_property
    def hdus(self) -> dict[str, Hdu]:
        """The HDUs that have arrays, by name."""
        with file_errors(self.file.path):
            return hdus_of(self.file)

    @cached_property
    def _opened(self) -> Any:
        use = "FITS images that are scaled or compressed, and tables with columns that are converted,"
        fits = imported("astropy.io.fits", use)
        opened = fits.open(open(self.file.descriptor, "rb", closefd=False))  # noqa: SIM115 - of the file
        self.file.callback(opened.close)
        return opened

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the HDUs. See `FormatReader`."""
        numbers = {str(hdu.number): inner for inner, hdu in self.hdus.items()}
        name = name if name in self.hdus else numbers.get(name or "", name)
        chosen = [name] if name in self.hdus else [*self.hdus]
        headers = {inner: self.hdus[inner].header for inner in chosen} if attributes else {}
        return Listing.of_names(self.file.absolute_path, [self._stored(inner) for inner in chosen], name, headers)

    def _stored(self, name: str) -> Stored:
        hdu = self.hdus[name]
        with file_errors(self.file.path, name):
            spec = hdu.spec()
            self.file.check_end(hdu.offset + hdu.nbytes, name)
            if spec is None:
                array = self._array(name)
                return replace(described_or_reason(self.file.path, name, array), filters=array.filters)
        return Stored(name, spec, len(spec.shape), "contiguous", hdu.offset)

    def _array(self, name: str) -> Any:
        """An array that astropy converts."""
        if name not in self._converted:
            hdu = self._opened[self.hdus[name].number]
            self._converted[name] = _Image(hdu) if hasattr(hdu, "section") else _Rows(hdu)
        return self._converted[name]

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        with file_errors(self.file.path, stored.name):
            array = self._array(str(stored.name))
        read_tile(self.file.path, stored, array, ranges, out)


class _Image:
    """An image as astropy scales and decompresses it."""

    def __init__(self, hdu: Any) -> None:
        self._section, self.shape = hdu.section, hdu.shape
        self.dtype = hdu.section[(slice(0, 1),) * len(hdu.shape)].dtype
        self.chunks = tuple(map(int, getattr(hdu, "tile_shape", ())))
        self.filters = (hdu.compression_type,) if hasattr(hdu, "compression_type") else ()

    def __getitem__(self, index: tuple[slice, ...]) -> NDArray[Any]:
        spans = tuple(slice(one.start, one.stop) for one in index)  # with a step, astropy makes another dtype
        items: NDArray[Any] = self._section[spans][tuple(slice(None, None, one.step) for one in index)]
        return items


class _Rows:
    """The rows of a table, with the columns as astropy converts them; strings stay bytes."""

    filters = ()

    def __init__(self, hdu: Any) -> None:
        self._table = hdu.data
        self.shape = (len(hdu.data),)
        columns = {name: self._column(hdu.data[:1], name) for name in hdu.columns.names}
        self.dtype = np.dtype([(name, column.dtype, column.shape[1:]) for name, column in columns.items()])

    @staticmethod
    def _column(rows: Any, name: str) -> NDArray[Any]:
        as_stored = np.asarray(rows)[name]
        return as_stored if as_stored.dtype.kind == "S" else np.asarray(rows[name])

    def __getitem__(self, index: tuple[slice]) -> NDArray[Any]:
        rows = self._table[index[0]]
        items = np.empty(len(rows), self.dtype)
        for name in items.dtype.names or ():
            items[name] = self._column(rows, name)
        return items
