"""The formats of files that can be read: the one Protocol of their readers, and which of them a file has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mpishare.files.fits import FitsFile
from mpishare.files.hdf5_read import Hdf5File
from mpishare.files.input_file import InputFile
from mpishare.files.npy import NpyFile
from mpishare.files.npz import NpzFile
from mpishare.files.safetensors import SafetensorsFile, SafetensorsIndex
from mpishare.files.stored import Listing
from mpishare.files.tiles import Reader, Selection
from mpishare.files.zarr_read import METADATA_FILES, ZarrFile

_MAGIC_BYTES = 16


class FormatReader(Reader, Protocol):
    """An open file of one format: it describes the arrays in the file, and reads a tile of one into memory.

    A new format is a class of this Protocol and an entry in `FORMATS`. An array whose bytes lie in a file as in memory
    has an `offset`: `InputFile.read` reads it. What another library reads by slices is read by `sliced.read_tile`.
    The `file` closes what the reader has opened: `file.callback`.
    """

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """Describes the arrays in an object of the file, or the one array of that name.

        Args:
            name: A dataset or a group; None for the whole file.
            attributes: Whether to read the attributes as well.

        Raises:
            FileError: There is no such object, or the file is damaged.
            SpecError: No array in memory can be as the one in the file.
            BackendError: A package that reads the format is not installed.
        """

    def check(self) -> None:
        """Returns if the file is as it was inspected; every rank calls it last.

        Raises:
            FileError: It has changed.
        """


@runtime_checkable
class TextReader(FormatReader, Protocol):
    """A reader of a format that has strings of any length."""

    def dtype_of_longest(self, selection: Selection) -> np.dtype[Any]:
        """The dtype of the selected items with strings as wide as the longest of them."""


def _reader_of_zip(file: InputFile) -> FormatReader:
    """What reads an archive: of .npy files, or of a zarr folder."""
    archive = NpzFile(file)
    return archive if METADATA_FILES.isdisjoint(archive.members) else ZarrFile(file)


FORMATS: tuple[tuple[bytes, Callable[[InputFile], FormatReader]], ...] = (
    (rb"\x93NUMPY", NpyFile),
    (rb"PK(\x03\x04|\x05\x06)", _reader_of_zip),
    (rb"SIMPLE  =", FitsFile),
    (rb".{4}\0{4}\{", SafetensorsFile),
    (rb"\s*\{", SafetensorsIndex),
    (rb"", Hdf5File),  # whose signature may lie behind other bytes
)
"""What the first bytes of a file must match, as a regular expression, and the reader; the first match counts."""


def reader_of(file: InputFile) -> FormatReader:
    """What reads the format of a file, by its first bytes.

    Raises:
        FileError: It cannot be opened.
    """
    if any(os.path.lexists(f"{file.path}/{name}") for name in METADATA_FILES):
        return ZarrFile(file)
    magic = file.read_bytes(0, min(file.stamp.nbytes, _MAGIC_BYTES))
    return next(make(file) for pattern, make in FORMATS if re.match(pattern, magic, re.DOTALL))
