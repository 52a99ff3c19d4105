"""An archive of .npy files, as numpy.savez and savez_compressed write it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import IO
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from mpishare.errors import FileError, SpecError
from mpishare.files.errors import library_errors
from mpishare.files.input_file import OpenFormat, read_items
from mpishare.files.npy import read_header
from mpishare.files.stored import Listing, Stored, stored_or_reason

_LOCAL_HEADER = struct.Struct("<26xHH")
"""What precedes the bytes of a member: at its end the lengths of the name and of the extra field, which follow."""

_COMPRESSIONS = {ZIP_DEFLATED: "deflate", ZIP_BZIP2: "bzip2", ZIP_LZMA: "lzma"}
_INFLATED_BYTES = 1 << 20
"""Inflated at a time: what a rank holds of its own."""


class NpzFile(OpenFormat):
    """An archive of .npy files. It satisfies `FormatReader`.

    A stored member is read in place, as a .npy file is, without its checksum. A deflated one is inflated by one rank,
    which compares the checksum if it reads to the end.
    """

    @cached_property
    def members(self) -> dict[str, ZipInfo]:
        """The members by the names of their arrays.

        Raises:
            FileError: The archive is truncated or damaged.
        """
        return {info.filename.removesuffix(".npy"): info for info in self._archive.infolist() if not info.is_dir()}

    @cached_property
    def _archive(self) -> ZipFile:
        with library_errors(self.file.path, None, "the archive"):
            return ZipFile(open(self.file.descriptor, "rb", closefd=False))

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays of the archive. See `FormatReader`."""
        path, members = self.file.absolute_path, self.members
        chosen = members if name not in members else {name: members[name]}
        arrays = [
            stored_or_reason(self.file.path, inner, "npy", partial(self._stored, inner, info))
            for inner, info in chosen.items()
        ]
        return Listing.of_names(path, arrays, name, {})

    def _stored(self, name: str, info: ZipInfo) -> Stored:
        """What the header of a member says.

        Raises:
            FileError: It is truncated.
            SpecError: It is no array, or one of Python objects.
            Exception: It is damaged, encrypted, or compressed in an unknown way.
        """
        with self._archive.open(info) as member:
            if member.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX:
                raise SpecError("it is not a .npy file.")
            spec, start = read_header(partial(_read_bytes, member))
        if start + spec.nbytes > info.file_size:
            reason = f"is truncated: it has {info.file_size:,} bytes; {start + spec.nbytes:,} are needed."
            raise FileError(self.file.path, name, reason)
        array = Stored(name, spec, len(spec.shape), "npy")
        if info.compress_type != ZIP_STORED:
            return replace(
                array, chunks=spec.shape, filters=(_COMPRESSIONS.get(info.compress_type, str(info.compress_type)),)
            )
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(self.file.read_bytes(info.header_offset, _LOCAL_HEADER.size))
        offset = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes + start
        self.file.check_end(offset + spec.nbytes, name)
        return replace(array, offset=offset)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        info = self.members[str(stored.name)]
        with library_errors(self.file.path, stored.name, "it"), self._archive.open(info) as member:
            _, start = read_header(partial(_read_bytes, member))
            read_items(partial(_read_exactly, member), replace(stored, offset=start), ranges, out)


def _read_exactly(member: IO[bytes], offset: int, buffer: memoryview) -> None:
    """See `ReadAt`. To go back means to inflate once more from the beginning."""
    member.seek(offset)
    while buffer.nbytes:
        count = member.readinto(buffer[:_INFLATED_BYTES])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("it ends before its array does")
        buffer = buffer[count:]


def _read_bytes(member: IO[bytes], offset: int, nbytes: int) -> bytes:
    member.seek(offset)
    return member.read(nbytes)
