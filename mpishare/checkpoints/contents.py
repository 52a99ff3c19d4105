"""The file of a checkpoint: how it is made, and how it is read, as it was saved or not at all.

It is an HDF5 file, for whoever reads it, with a user block before HDF5's own bytes (H5Pset_userblock), which HDF5
leaves alone. The user block holds a header and the manifest. So a checkpoint is read without HDF5, and a checksum
covers each byte of it: the user block has its own, the arrays one for each run, and the gaps between them, HDF5's
bytes, one each.

The manifest is JSON: "step"; "values", see `values`; "arrays", an entry for each name; "gaps", the offset, the length
and the CRC-32 of each. Format 1 has the checksums of the arrays in datasets of their own.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from mpishare._version import VERSION
from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.checkpoints.values import imported
from mpishare.errors import SpecError
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_write import lay_out
from mpishare.files.input_file import InputFile, Stamp, read_bytes, read_exactly
from mpishare.files.replace_file import Blocks, Checksums, RowBlocks, Run
from mpishare.files.tiles import Tile

HEADER = struct.Struct("<8sIIQQ")
"""Magic, format number, checksum of the JSON text that follows, its length, size of the user block.

Every format begins with this header. The checksum is a CRC-32 that starts with the format number less 1, so that an
altered number is not taken for the number of another format.
"""

FORMAT = 2
"""The number of the format that is written. See CONTRIBUTING.md, Versions, for when it changes."""

DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged file raises. An OSError that has an errno is not damage: the file may be good."""

_MAGIC = b"mpishare"
_SMALLEST_USER_BLOCK_BYTES = 512
"""HDF5 wants a power of two from here on (H5Pset_userblock)."""

_LARGEST_USER_BLOCK_BYTES = 1 << 30

_CHECKSUM_CHARACTERS = 12
"""How much of the manifest the checksum of a run takes at most."""

_GAP_CHARACTERS = 80
"""The same for the offset of an array, and the gap before it."""


class CheckedRun(NamedTuple):
    """Contiguous bytes of a file, and their CRC-32."""

    offset: int
    nbytes: int
    checksum: int

    def read(self, fd: int, buffer: memoryview | None = None) -> memoryview:
        """The bytes, in `buffer` if one is given.

        Raises:
            ValueError: They differ from the saved ones.
            OSError, EOFError: They cannot be read, or the file ends before them.
        """
        buffer = memoryview(bytearray(self.nbytes)) if buffer is None else buffer
        read_exactly(fd, self.offset, buffer)
        if crc32(buffer) != self.checksum:
            raise ValueError(f"its {self.nbytes:,} bytes from {self.offset:,} on differ from the saved ones")
        return buffer


@dataclass(frozen=True)
class ChecksummedPart:
    """An array of a checkpoint, each run of which is read whole and must fit its checksum. It satisfies `Part`.

    Attributes:
        name: Its name.
        spec: What a load of it returns.
        runs: Its bytes in the file, in order. They take the place of items.
    """

    name: str
    spec: Spec
    runs: tuple[CheckedRun, ...]

    def tiles(self, file: InputFile, largest_bytes: int) -> Iterator[Tile]:
        """See `Part`. A tile is a run, however long: one that is cut would be read twice."""
        for run in self.runs:
            yield Tile(run.offset - self.runs[0].offset, run.nbytes, partial(self.read, file, runs=[run]))

    def read(self, file: InputFile, block: Block, *, start: int = 0, runs: Sequence[CheckedRun] = ()) -> None:
        """Fills a block with the bytes of the array from `start` on, or of some runs alone.

        All runs that the bytes are in are checked.

        Raises:
            FileError: The bytes differ from the saved ones, or cannot be read.
        """
        with file_errors(file.path, self.name):
            for run in runs or self.runs:
                first = run.offset - self.runs[0].offset - start  # in the block
                target = block[max(first, 0) : max(first + run.nbytes, 0)].data
                if target.nbytes == run.nbytes:
                    run.read(file.descriptor, target)
                elif target.nbytes:
                    target[:] = run.read(file.descriptor)[max(-first, 0) :][: target.nbytes]


class CheckpointFile(NamedTuple):
    """What the file of a checkpoint has, but for the bytes of the arrays.

    Attributes:
        path: The file.
        step: The step at which it was saved.
        values: The small values, as JSON.
        arrays: The arrays by name.
        runs: All bytes of the file after the user block. Those of the arrays are checked again when they are loaded.
        stamp: What changes when another job replaces the file.
    """

    path: Path
    step: int
    values: str
    arrays: Mapping[str, ChecksummedPart]
    runs: Sequence[CheckedRun]
    stamp: Stamp

    @classmethod
    def read(cls, source: InputFile) -> CheckpointFile:
        """Reads the manifest of a file, and checks it, but not the `runs`.

        Raises:
            DAMAGE: The file is not a checkpoint, or has been cut or altered; or it cannot be read.
        """
        manifest, expected_bytes = _unpack(source.descriptor)
        arrays = {name: _part_of(source, name, entry) for name, entry in manifest["arrays"].items()}
        runs = [CheckedRun(*gap) for gap in manifest["gaps"]]
        for part in arrays.values():
            runs += part.runs
        expected_bytes += sum(run.nbytes for run in runs)
        if source.stamp.nbytes != expected_bytes:
            raise ValueError(f"it has {source.stamp.nbytes:,} bytes instead of {expected_bytes:,}")
        return cls(Path(source.path), manifest["step"], manifest["values"], arrays, runs, source.stamp)


def _unpack(fd: int) -> tuple[Any, int]:
    """The manifest of an open file, and the size of its user block in bytes.

    Raises:
        ValueError: There is none, or it has been altered.
        OSError, EOFError: It cannot be read, or the file is too short. Or it is whole, but of a format that a later
            version writes (ENOTSUP).
    """
    magic, number, checksum, length, nbytes = HEADER.unpack(read_bytes(fd, 0, HEADER.size))
    limit = min(_LARGEST_USER_BLOCK_BYTES, os.fstat(fd).st_size)
    if magic != _MAGIC or number < 1 or not length <= nbytes <= limit:
        raise ValueError(f"it begins with {magic!r}, format {number} and {length:,} bytes of text")
    block = read_bytes(fd, HEADER.size, nbytes - HEADER.size)
    if crc32(block[:length], number - 1) != checksum or any(block[length:]):
        raise ValueError("its user block is not what was saved")
    if number > FORMAT:
        reason = (
            f"it is of checkpoint format {number}; mpishare {VERSION} reads up to {FORMAT}. Install a later version."
        )
        raise OSError(errno.ENOTSUP, reason)
    return json.loads(block[:length]), nbytes


def _part_of(source: InputFile, name: str, entry: Mapping[str, Any]) -> ChecksummedPart:
    """The array that an entry of the manifest describes; its checksums are there, or in format 1 at "checks_at"."""
    spec = Spec(rebuild(entry["dtype"], imported), tuple(entry["shape"]))
    runs = list(RowBlocks(spec, tuple(entry["starts"]), entry["at"]).all_runs())
    checksums = entry.get("checks")
    if checksums is None:
        checksums = np.frombuffer(read_bytes(source.descriptor, entry["checks_at"], 4 * len(runs)), "<u4").tolist()
    return ChecksummedPart(
        name, spec, tuple(CheckedRun(*run, check) for run, check in zip(runs, checksums, strict=True))
    )


@dataclass
class CheckpointWriter:
    """How the file of one checkpoint is laid out, and completed when the arrays are in it. On the root alone.

    Attributes:
        step: The step.
        values: The small values, as JSON.
        user_block_bytes: The size of the user block.
    """

    step: int
    values: str
    user_block_bytes: int = _SMALLEST_USER_BLOCK_BYTES

    def lay_out(self, new: AtomicFile, blocks: Blocks) -> list[int]:
        """Makes room for the manifest and the arrays; returns the offsets of the arrays. See `Replacement`."""
        runs = sum(len(list(array.all_runs())) for array in blocks.values())
        known = len(self._user_block(blocks, [np.empty(0, np.uint32)] * len(blocks), []))
        needed = known + _CHECKSUM_CHARACTERS * runs + _GAP_CHARACTERS * (len(blocks) + 1)
        self.user_block_bytes = max(_SMALLEST_USER_BLOCK_BYTES, 1 << (needed - 1).bit_length())
        if self.user_block_bytes > _LARGEST_USER_BLOCK_BYTES:
            raise SpecError(f"values and names take more than {_LARGEST_USER_BLOCK_BYTES // 2:,} bytes. Save arrays.")
        specs = {f"arrays/{name}": array.spec for name, array in blocks.items()}
        small = {"step": np.array(self.step), "values": np.array(self.values.encode())}
        return lay_out(new.fd, new.path, specs, small=small, user_block_bytes=self.user_block_bytes, any_dtype=True)

    def complete(self, new: AtomicFile, blocks: Blocks, checksums: Checksums) -> None:
        """Writes the user block at last. See `Replacement`."""
        arrays = sorted(Run(array.offset, array.spec.nbytes) for array in blocks.values() if array.spec.nbytes)
        starts = [self.user_block_bytes, *(array.offset + array.nbytes for array in arrays)]
        stops = [*(array.offset for array in arrays), os.fstat(new.fd).st_size]
        runs = [Run(start, stop - start) for start, stop in zip(starts, stops, strict=True) if start < stop]
        gaps = [CheckedRun(*run, crc32(read_bytes(new.fd, *run))) for run in runs]
        write_exactly(new.fd, 0, memoryview(self._user_block(blocks, checksums, gaps)))

    def _user_block(self, blocks: Blocks, checksums: Checksums, gaps: Sequence[CheckedRun]) -> bytes:
        """The header and the manifest, without the zeros that follow."""
        entries = {
            name: {
                "dtype": describe(array.spec.dtype),
                "shape": array.spec.shape,
                "starts": array.starts,
                "at": array.offset,
                "checks": of_array.tolist(),
            }
            for (name, array), of_array in zip(blocks.items(), checksums, strict=True)
        }
        manifest = {"step": self.step, "values": self.values, "arrays": entries, "gaps": gaps}
        text = json.dumps(manifest).encode()
        return HEADER.pack(_MAGIC, FORMAT, crc32(text, FORMAT - 1), len(text), self.user_block_bytes) + text
