"""The manifest at the front of a checkpoint's file: the step, the values, where each array is, and checksums.

The file is an HDF5 file, for whoever reads it, with a user block before HDF5's own bytes (H5Pset_userblock), which HDF5
leaves alone. So a checkpoint is read without HDF5, and a checksum covers each byte of it: the user block its own, the
arrays one for each run, and the gaps between them, HDF5's bytes and these checksums, one for each gap.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.files.row_blocks import RowBlocks, Run
from mpishare.files.source import read_bytes

HEADER = struct.Struct("<8sIIQQ")
"""Magic, version, CRC-32 of the JSON text that follows, its length, size of the user block."""

_MAGIC = b"mpishare"
_VERSION = 1
_SMALLEST_USER_BLOCK_BYTES = 512  # of HDF5
_LARGEST_USER_BLOCK_BYTES = 1 << 30
_LARGEST_NUMBER = 1 << 62


class Gap(NamedTuple):
    """Bytes of the file that belong to no array, and their CRC-32."""

    offset: int
    nbytes: int
    checksum: int


class Entry(NamedTuple):
    """One array: the places of its bytes, and the offset of the CRC-32 of each run, 4 bytes each, little-endian."""

    blocks: RowBlocks
    checksums_offset: int

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON has it."""
        blocks = self.blocks
        return {
            "dtype": describe(blocks.spec.dtype),
            "shape": blocks.spec.shape,
            "at": blocks.offset,
            "starts": blocks.starts,
            "checks_at": self.checksums_offset,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Entry:
        """The entry that `to_json` returned.

        Raises:
            ValueError, TypeError, KeyError: It did not.
        """
        spec = Spec(rebuild(entry["dtype"]), tuple(entry["shape"]))
        return cls(RowBlocks(spec, tuple(entry["starts"]), entry["at"]), entry["checks_at"])


class Manifest(NamedTuple):
    """What the user block of a checkpoint's file says.

    Attributes:
        step: The step of the computation.
        values: The small values, as JSON.
        nbytes: The size of the file.
        arrays: The arrays by name.
        gaps: All other bytes, but for the user block.
    """

    step: int
    values: str
    nbytes: int
    arrays: Mapping[str, Entry]
    gaps: Sequence[Gap] = ()

    def pack(self, user_block_bytes: int) -> bytes:
        """The user block, without the zeros that fill it up to `user_block_bytes`."""
        manifest = self._asdict() | {"arrays": {name: entry.to_json() for name, entry in self.arrays.items()}}
        text = json.dumps(manifest).encode()
        return HEADER.pack(_MAGIC, _VERSION, crc32(text), len(text), user_block_bytes) + text

    @classmethod
    def user_block_bytes(cls, step: int, values: str, blocks: Mapping[str, RowBlocks]) -> int:
        """A size of the user block, a power of two, that suffices wherever the arrays will be."""
        large = _LARGEST_NUMBER
        entries = {name: Entry(replace(array, offset=large), large) for name, array in blocks.items()}
        gaps = [Gap(large, large, large)] * (len(blocks) + 1)
        nbytes = len(cls(step, values, large, entries, gaps).pack(large))
        return max(_SMALLEST_USER_BLOCK_BYTES, 1 << (nbytes - 1).bit_length())

    @classmethod
    def read(cls, fd: int) -> Manifest:
        """The manifest of an open file, all of whose gaps fit their checksums.

        Raises:
            See `contents.DAMAGE`: The file is not a checkpoint, or has been cut or altered; or it cannot be read.
        """
        text, user_block_bytes = _user_block(fd)
        content = json.loads(text)
        entries = {name: Entry.from_json(entry) for name, entry in content["arrays"].items()}
        gaps = [Gap(*gap) for gap in content["gaps"]]
        size = os.fstat(fd).st_size
        if size != content["nbytes"]:
            raise ValueError(f"it has {size:,} bytes instead of {content['nbytes']:,}")
        for gap in gaps:
            if gap.offset + gap.nbytes > size or crc32(read_bytes(fd, gap.offset, gap.nbytes)) != gap.checksum:
                raise ValueError(f"its {gap.nbytes:,} bytes from {gap.offset:,} on are not those that were saved")
        if gaps[0].offset != user_block_bytes:
            raise ValueError("its user block has another size")
        return cls(content["step"], content["values"], size, entries, gaps)


def _user_block(fd: int) -> tuple[bytes, int]:
    """The text in the user block of a file, and the block's size in bytes.

    Raises:
        ValueError: There is none, or it has been altered.
        EOFError: The file is too short.
    """
    magic, version, checksum, length, nbytes = HEADER.unpack(read_bytes(fd, 0, HEADER.size))
    if magic != _MAGIC:
        raise ValueError("it does not begin as a checkpoint does")
    if version != _VERSION or not length <= nbytes <= min(_LARGEST_USER_BLOCK_BYTES, os.fstat(fd).st_size):
        raise ValueError(f"it begins as one of version {version}, with {length:,} bytes of text")
    block = read_bytes(fd, HEADER.size, nbytes - HEADER.size)
    if crc32(block[:length]) != checksum or any(block[length:]):
        raise ValueError("its user block is not what was saved")
    return block[:length], nbytes


def gaps_between(blocks: Sequence[RowBlocks], start: int, stop: int) -> Iterator[Run]:
    """The bytes of a file from `start` to `stop` that belong to no array."""
    for array in sorted((array for array in blocks if array.spec.nbytes), key=lambda array: array.offset):
        if array.offset > start:
            yield Run(start, array.offset - start)
        start = array.offset + array.spec.nbytes
    if stop > start:
        yield Run(start, stop - start)
