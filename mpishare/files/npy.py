"""A .npy file, or an archive of them as numpy.savez writes it: headers read and written. It never reads a pickle."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import IO
from zipfile import ZIP_BZIP2, ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.errors import file_errors
from mpishare.files.input_file import FormatReader, read_items
from mpishare.files.stored import Listing, Stored, stored_or_reason

_LENGTHS = {1: struct.Struct("<H"), 2: struct.Struct("<I"), 3: struct.Struct("<I")}
"""How each version of the format stores the length of its header."""

_LARGEST_HEADER_BYTES = 128 << 10
"""A dtype of some 4,000 columns, and 13 times what numpy.load reads by default. A longer header of a hostile file would
take seconds in the parser."""

_LARGEST_OF_VERSION_1 = 0xFFFF
_ALIGNED_BYTES = 64
"""The array begins at a multiple of this, so that it can be mapped."""

_SHOWN_CHARACTERS = 200


_LOCAL_HEADER = struct.Struct("<26xHH")
"""What precedes the bytes of a member: at its end the lengths of the name and of the extra field, which follow."""

_COMPRESSIONS = {ZIP_DEFLATED: "deflate", ZIP_BZIP2: "bzip2", ZIP_LZMA: "lzma"}
_INFLATED_BYTES = 1 << 20
"""Inflated at a time: what a rank holds of its own."""


class NpyFile(FormatReader):
    """A .npy file."""

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The one array.

        Raises:
            FileError: A `name` is given; or the header is damaged or too long, or the file ends before the array does.
            SpecError: The array holds Python objects, which only a pickle could restore.

        Source:
            numpy.lib.format, "Format Version 1.0" to "3.0".
        """
        file = self.file
        if name is not None:
            reason = "is a .npy file, which has one array and no datasets. Leave dataset out."
            raise FileError(file.path, name, reason)
        with file_errors(file.path):
            spec, start = read_header(file.read_bytes)
        file.check_end(start + spec.nbytes)
        return Listing(file.absolute_path, [Stored(None, spec, len(spec.shape), "npy", offset=start)], 0, {})


class NpzFile(FormatReader):
    """An archive of .npy files.

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
        with file_errors(self.file.path, None, what="the archive"):
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
            if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
                raise SpecError("it is not a .npy file.")
            spec, start = read_header(partial(_read_bytes, member))
        if start + spec.nbytes > info.file_size:
            reason = f"is truncated: it has {info.file_size:,} bytes; {start + spec.nbytes:,} are needed."
            raise FileError(self.file.path, name, reason)
        array = Stored(name, spec, len(spec.shape), "npy")
        if info.compress_type != ZIP_STORED:
            compression = _COMPRESSIONS.get(info.compress_type, str(info.compress_type))
            return replace(array, chunks=spec.shape, filters=(compression,))
        name_bytes, extra_bytes = _LOCAL_HEADER.unpack(self.file.read_bytes(info.header_offset, _LOCAL_HEADER.size))
        offset = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes + start
        self.file.check_end(offset + spec.nbytes, name)
        return replace(array, offset=offset)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`."""
        info = self.members[str(stored.name)]
        with file_errors(self.file.path, stored.name, what="it"), self._archive.open(info) as member:
            _, start = read_header(partial(_read_bytes, member))
            read_items(partial(_read_exactly, member), replace(stored, offset=start), ranges, out)


def read_header(read_bytes: Callable[[int, int], bytes]) -> tuple[Spec, int]:
    """What a .npy file has, and where the bytes of the array begin.

    Args:
        read_bytes: Returns the bytes of the file from an offset on.

    Raises:
        ValueError: The header is damaged or too long.
        SpecError: The array holds Python objects.
    """
    version, start = read_bytes(0, npy.MAGIC_LEN)[len(npy.MAGIC_PREFIX)], npy.MAGIC_LEN
    if version not in _LENGTHS:
        raise ValueError(f".npy format {version} is unknown. Use format 1, 2 or 3.")
    (nbytes,) = _LENGTHS[version].unpack(read_bytes(start, _LENGTHS[version].size))
    start += _LENGTHS[version].size
    if nbytes > _LARGEST_HEADER_BYTES:
        raise ValueError(f"its header has {nbytes:,} bytes; {_LARGEST_HEADER_BYTES:,} are allowed.")
    content = read_bytes(start, nbytes)
    try:
        if version == 3:  # NumPy has no public reader of it. In Python's literals an escape is the same character.
            content = content.decode("utf-8").encode("ascii", "backslashreplace")
        file = io.BytesIO(struct.pack("<I", len(content)) + content)
        shape, is_fortran, dtype = npy.read_array_header_2_0(file, max_header_size=len(content))
    except Exception as error:  # of many classes: NumPy hands the header to Python's tokenizer and parser
        reason = f"{type(error).__name__}: {error}"[:_SHOWN_CHARACTERS]
        raise ValueError(f"its header is not a .npy header: {reason}") from error
    if min(shape, default=0) < 0:
        raise ValueError(f"its header has the negative shape {shape}")
    if dtype.subdtype is not None:
        raise ValueError(f"its header has the subarray dtype {dtype}, whose lengths belong in the shape")
    if dtype.hasobject:
        raise SpecError("it is a pickle of Python objects, which is not read. Save it with a dtype of fixed width.")
    check_dtype(dtype)
    return Spec.checked(shape, dtype, "F" if is_fortran and len(shape) > 1 else "C"), start + nbytes


def header_of(spec: Spec) -> bytes:
    """All that a .npy file has before the bytes of the array, in version 1 of the format where it can, else in 3.

    Raises:
        SpecError: The format cannot store the dtype.

    Source:
        NumPy Enhancement Proposal 1, and the documentation of `numpy.lib.format`.
    """
    plain = rebuild(describe(spec.dtype))  # without metadata, which NumPy 1 adds to a pickled datetime64, and warns of
    try:
        fields = {"descr": npy.dtype_to_descr(plain), "fortran_order": spec.order == "F", "shape": spec.shape}
        text = repr(fields)
        version = 1 if max(text) <= "\xff" and len(text) + _ALIGNED_BYTES <= _LARGEST_OF_VERSION_1 else 3
        content = text.encode("latin-1" if version == 1 else "utf-8")
        end = npy.MAGIC_LEN + _LENGTHS[version].size + len(content) + 1
        content += b" " * (-end % _ALIGNED_BYTES) + b"\n"
        header = npy.magic(version, 0) + _LENGTHS[version].pack(len(content)) + content
        restored, _ = read_header(lambda offset, nbytes: header[offset : offset + nbytes])
        if restored.dtype != spec.dtype:
            raise ValueError(f"it would come back as {restored.dtype}. Save its .view('V{spec.dtype.itemsize}')")
    except (ValueError, TypeError) as error:
        raise SpecError(f"dtype {spec.dtype} cannot be stored in a .npy file: {error}") from error
    return header


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
