"""The formats of files that can be read, and which of them a file has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial

from mpishare.errors import FileError
from mpishare.files.fits import FitsFile
from mpishare.files.hdf5_read import Hdf5File
from mpishare.files.input_file import FormatReader, InputFile
from mpishare.files.netcdf import Netcdf3File, NetcdfFile, is_netcdf
from mpishare.files.npy import NpyFile, NpzFile
from mpishare.files.safetensors import SafetensorsFile, SafetensorsIndex
from mpishare.files.stored import shown_names
from mpishare.files.zarr_read import METADATA_FILES, ZarrFile, folder_in_zip

_MAGIC_BYTES = 16


def _reader_of_zip(file: InputFile) -> FormatReader:
    """What reads an archive: of .npy files, or of a zarr folder."""
    archive = NpzFile(file)
    names = [info.filename for info in archive.members.values()]
    if not names or any(name.endswith(".npy") for name in names):
        return archive
    if folder_in_zip(names) is not None:
        return ZarrFile(file)
    reason = f"is a zip archive of neither .npy files nor a zarr folder: it has {shown_names(names)}"
    raise FileError(file.path, None, f"{reason}. {_CURE}")


def _reader_of_hdf5(file: InputFile) -> FormatReader:
    """What reads an HDF5 file: by the rules of netCDF-4 if that has written it."""
    reader = Hdf5File(file)
    if not is_netcdf(reader.handle):
        return reader
    netcdf = NetcdfFile(file)
    netcdf.handle = reader.handle  # which is open
    return netcdf


def _refuse_compressed(by: str, command: str, file: InputFile) -> FormatReader:
    raise FileError(file.path, None, f"is compressed by {by}. Decompress it first, for example with {command}.")


_HDF5 = b"\x89HDF\r\n\x1a\n"

FORMATS: tuple[tuple[bytes, Callable[[InputFile], FormatReader]], ...] = (
    (rb"\x93NUMPY", NpyFile),
    (rb"PK(\x03\x04|\x05\x06)", _reader_of_zip),
    (rb"SIMPLE  =", FitsFile),
    (rb"CDF[\x01\x02\x05]", Netcdf3File),
    (re.escape(_HDF5), _reader_of_hdf5),
    (rb"\x1f\x8b", partial(_refuse_compressed, "gzip", "gunzip")),
    (rb"BZh[1-9]", partial(_refuse_compressed, "bzip2", "bunzip2")),
    (rb"\xfd7zXZ\0", partial(_refuse_compressed, "xz", "unxz")),
    (rb"\x28\xb5\x2f\xfd", partial(_refuse_compressed, "zstd", "unzstd")),
    (rb"\x04\x22\x4d\x18", partial(_refuse_compressed, "lz4", "unlz4")),
    (rb"\x1f\x9d", partial(_refuse_compressed, "compress", "uncompress")),
    (rb".{4}\0{4}\{", SafetensorsFile),
    (rb"\s*\{", SafetensorsIndex),
)
"""What the first bytes of a file must match, as a regular expression, and the reader; the first match counts."""

_READ = ".npy, .npz, HDF5, netCDF, FITS, safetensors and zarr"
_CURE = "Read it with the library of its format, in a function for share(call=…)."


def reader_of(file: InputFile) -> FormatReader:
    """What reads the format of a file, by its first bytes.

    Raises:
        FileError: It cannot be opened, or is of no format that is read.
    """
    if any(os.path.lexists(f"{file.path}/{name}") for name in METADATA_FILES):
        return ZarrFile(file)
    magic = file.read_bytes(0, min(file.stamp.nbytes, _MAGIC_BYTES))
    for pattern, make in FORMATS:
        if re.match(pattern, magic, re.DOTALL):
            return make(file)
    if _has_user_block(file):
        return _reader_of_hdf5(file)
    reason = f"is of none of the formats that load reads: {_READ}. Its {file.stamp.nbytes:,} bytes begin with {magic!r}"
    raise FileError(file.path, None, f"{reason}. {_CURE}")


def _has_user_block(file: InputFile) -> bool:
    """Whether the signature of HDF5 is behind other bytes, at 512 times a power of 2."""
    longest = (file.stamp.nbytes - len(_HDF5)).bit_length()
    return any(file.read_bytes(1 << power, len(_HDF5)) == _HDF5 for power in range(9, longest))
