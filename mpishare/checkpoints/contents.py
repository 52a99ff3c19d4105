"""What a checkpoint's file has, how it is made, and how its arrays are read: as they were saved, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.arrays.slices import balanced_slice
from mpishare.arrays.spec import Spec
from mpishare.checkpoints.manifest import CheckedRun, blocks_of, entry_of, gaps_between, pack, unpack
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_write import METADATA_BYTES, lay_out
from mpishare.files.pieces import Hyperslab, Piece
from mpishare.files.replace_file import Checksums
from mpishare.files.row_blocks import RowBlocks
from mpishare.files.source import Source, read_bytes

DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged file raises. An OSError that has an errno is not damage: the file may be good."""

_SMALLEST_USER_BLOCK_BYTES = 512
"""HDF5 wants a power of two from here on (H5Pset_userblock)."""

_LARGEST_NUMBER = 1 << 62


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

    def pieces(self, largest_bytes: int) -> Iterator[Piece]:
        """See `Part`. A piece is a run, however long: one that is cut would be read twice."""
        for number, run in enumerate(self.runs):
            yield Piece((slice(number, number + 1),), run.offset - self.runs[0].offset)

    def read(self, source: Source, items: Hyperslab, block: Block) -> None:
        """See `Part`.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        run = self.runs[items[0].start]
        start = run.offset - self.runs[0].offset
        with file_errors(source.path, self.name):
            run.read(source.descriptor, block[start : start + run.nbytes].data)

    def read_range(self, source: Source, start: int, buffer: memoryview) -> None:
        """Fills `buffer` with the bytes of the array from `start` on. All runs that they are in are checked.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        with file_errors(source.path, self.name):
            for run in self.runs:
                offset = run.offset - self.runs[0].offset - start  # in the buffer
                target = buffer[max(offset, 0) : max(offset + run.nbytes, 0)]
                if target.nbytes == run.nbytes:
                    run.read(source.descriptor, target)
                elif target.nbytes:
                    whole = memoryview(bytearray(run.nbytes))
                    run.read(source.descriptor, whole)
                    target[:] = whole[max(-offset, 0) :][: target.nbytes]

    def verify(self, source: Source, parts: int, part: int) -> None:
        """Reads part number `part` of `parts` of the array.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        with file_errors(source.path, self.name):
            for run in self.runs[balanced_slice(len(self.runs), parts, part)]:
                run.verify(source.descriptor)


class Contents(NamedTuple):
    """What the file of a checkpoint has, but for the bytes of the arrays.

    Attributes:
        path: The file.
        step: The step at which it was saved.
        values: The small values, as JSON.
        arrays: The arrays by name.
    """

    path: Path
    step: int
    values: str
    arrays: Mapping[str, ChecksummedPart]

    @classmethod
    def read(cls, source: Source) -> Contents:
        """Reads and checks all of a file but the arrays.

        Raises:
            DAMAGE: The file is not a checkpoint, or has been cut or altered; or it cannot be read.
        """
        fd = source.descriptor
        manifest, expected_bytes = unpack(fd)
        arrays = {}
        for name, entry in manifest["arrays"].items():
            blocks = blocks_of(entry)
            runs = list(blocks.all_runs())
            checksums = np.frombuffer(read_bytes(fd, entry["checks_at"], 4 * len(runs)), "<u4").tolist()
            checked = tuple(CheckedRun(*run, checksum) for run, checksum in zip(runs, checksums, strict=True))
            arrays[name] = ChecksummedPart(name, blocks.spec, checked)
            expected_bytes += blocks.spec.nbytes
        gaps = [CheckedRun(*gap) for gap in manifest["gaps"]]
        expected_bytes += sum(gap.nbytes for gap in gaps)
        if source.stamp.nbytes != expected_bytes:
            raise ValueError(f"it has {source.stamp.nbytes:,} bytes instead of {expected_bytes:,}")
        for gap in gaps:
            gap.verify(fd)
        return cls(Path(source.path), manifest["step"], manifest["values"], arrays)


class CheckpointWriter:
    """How the file of one checkpoint is laid out, and completed when the arrays are in it. On the root alone."""

    def __init__(self, step: int, values: str, blocks: Mapping[str, RowBlocks]) -> None:
        """`values` is JSON; `blocks` are the arrays by name, without their offsets."""
        self._step = step
        self._values = values
        self._blocks = blocks
        self._user_block_bytes = _SMALLEST_USER_BLOCK_BYTES
        self._checksum_offsets = [_LARGEST_NUMBER] * len(blocks)

    def lay_out(self, new: AtomicFile) -> list[int]:
        """Makes room for the arrays and their checksums; returns the offsets of the arrays. See `Replacement`."""
        specs = {f"arrays/{name}": blocks.spec for name, blocks in self._blocks.items()}
        new.check_room(sum(spec.nbytes for spec in specs.values()) + METADATA_BYTES)
        for name, blocks in self._blocks.items():
            specs[f"checksums/{name}"] = Spec(np.dtype("<u4"), (len(list(blocks.all_runs())),))
        small = {"step": np.array(self._step), "values": np.array(self._values.encode())}
        while self._user_block_bytes < self._largest_manifest_bytes():
            self._user_block_bytes *= 2
        offsets = lay_out(new.fd, new.path, specs, small=small, user_block_bytes=self._user_block_bytes)
        self._checksum_offsets = [offsets[f"checksums/{name}"] for name in self._blocks]
        return [offsets[f"arrays/{name}"] for name in self._blocks]

    def _largest_manifest_bytes(self) -> int:
        """What the manifest may take, wherever the arrays and their checksums will be."""
        blocks = [replace(array, offset=_LARGEST_NUMBER) for array in self._blocks.values()]
        gap = CheckedRun(_LARGEST_NUMBER, _LARGEST_NUMBER, _LARGEST_NUMBER)
        return len(self._manifest(blocks, _LARGEST_NUMBER, [gap] * (len(blocks) + 1)))

    def complete(self, new: AtomicFile, blocks: Sequence[RowBlocks], checksums: Checksums) -> None:
        """Writes the checksums of the arrays, and at last the manifest. See `Replacement`."""
        for offset, numbers in zip(self._checksum_offsets, checksums, strict=True):
            write_exactly(new.fd, offset, memoryview(numbers.astype("<u4").tobytes()))
        size = os.fstat(new.fd).st_size
        runs = gaps_between(blocks, self._user_block_bytes, size)
        gaps = [CheckedRun(*run, crc32(read_bytes(new.fd, *run))) for run in runs]
        write_exactly(new.fd, 0, memoryview(self._manifest(blocks, size, gaps)))

    def _manifest(self, blocks: Sequence[RowBlocks], nbytes: int, gaps: Sequence[CheckedRun]) -> bytes:
        entries = dict(zip(self._blocks, map(entry_of, blocks, self._checksum_offsets), strict=True))
        manifest = {"step": self._step, "values": self._values, "nbytes": nbytes, "arrays": entries, "gaps": gaps}
        return pack(manifest, self._user_block_bytes)
