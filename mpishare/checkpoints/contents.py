"""What a checkpoint's file has, how it is made, and how its arrays are read: as they were saved, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.checkpoints.manifest import Entry, Gap, Manifest, gaps_between
from mpishare.errors import FileError
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.hdf5_write import METADATA_BYTES, lay_out
from mpishare.files.pieces import Hyperslab, Piece
from mpishare.files.replace_file import Checksums
from mpishare.files.row_blocks import RowBlocks, Run
from mpishare.files.source import Source, read_bytes

DAMAGE = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a damaged file raises. An OSError that has an errno is no damage: the file may be good."""


@dataclass(frozen=True)
class ChecksummedPart:
    """An array of a checkpoint, each run of which is read whole and must fit its checksum. It satisfies `Part`.

    Attributes:
        name: Its name.
        spec: What a load of it returns.
        runs: Its bytes in the file, in order. They take the place of items.
        checksums: The CRC-32 of each run.
    """

    name: str
    spec: Spec
    runs: tuple[Run, ...]
    checksums: NDArray[np.uint32]

    def pieces(self, largest_bytes: int) -> Iterator[Piece]:
        """See `Part`. A piece is a run, however long: one that is cut would be read twice."""
        for number, run in enumerate(self.runs):
            yield Piece((slice(number, number + 1),), run.offset - self.runs[0].offset)

    def read(self, source: Source, items: Hyperslab, block: Block) -> None:
        """See `Part`.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        number = items[0].start
        start = self.runs[number].offset - self.runs[0].offset
        self._read_run(source, number, block[start : start + self.runs[number].nbytes].data)

    def read_range(self, source: Source, start: int, buffer: memoryview) -> None:
        """Fills `buffer` with the bytes of the array from `start` on. All runs that they are in are checked.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        for number, run in enumerate(self.runs):
            offset = run.offset - self.runs[0].offset - start  # in the buffer
            target = buffer[max(offset, 0) : max(offset + run.nbytes, 0)]
            if target.nbytes == run.nbytes:
                self._read_run(source, number, target)
            elif target.nbytes:
                whole = memoryview(bytearray(run.nbytes))
                self._read_run(source, number, whole)
                target[:] = whole[max(-offset, 0) :][: target.nbytes]

    def verify(self, source: Source, parts: int, part: int) -> None:
        """Reads part number `part` of `parts` of the array.

        Raises:
            FileError: The bytes are not those that were saved, or cannot be read.
        """
        for number in range(len(self.runs))[slices.balanced_slice(len(self.runs), parts, part)]:
            self._read_run(source, number, memoryview(bytearray(self.runs[number].nbytes)))

    def _read_run(self, source: Source, number: int, buffer: memoryview) -> None:
        run = self.runs[number]
        source.read(run.offset, buffer)
        if crc32(buffer) != self.checksums[number]:
            reason = f"its {run.nbytes:,} bytes from {run.offset:,} on are not those that were saved"
            raise FileError(source.path, self.name, reason)


class Contents(NamedTuple):
    """What the file of a checkpoint has, but for the bytes of the arrays.

    Attributes:
        path: The file.
        manifest: What its user block says.
        arrays: The arrays by name.
    """

    path: Path
    manifest: Manifest
    arrays: Mapping[str, ChecksummedPart]

    @classmethod
    def read(cls, source: Source) -> Contents:
        """Reads and checks all of a file but the arrays.

        Raises:
            DAMAGE: The file is not a checkpoint, or has been cut or altered; or it cannot be read.
        """
        manifest = Manifest.read(source.descriptor)
        arrays = {}
        for name, (blocks, offset) in manifest.arrays.items():
            runs = tuple(blocks.all_runs())
            checksums = np.frombuffer(read_bytes(source.descriptor, offset, 4 * len(runs)), "<u4")
            arrays[name] = ChecksummedPart(name, blocks.spec, runs, checksums)
        return cls(Path(source.path), manifest, arrays)


class CheckpointWriter:
    """How the file of one checkpoint is laid out, and completed when the arrays are in it. On the root alone."""

    def __init__(self, step: int, values: str, blocks: Mapping[str, RowBlocks]) -> None:
        """`values` is JSON; `blocks` are the arrays by name, without their offsets."""
        self._step = step
        self._values = values
        self._blocks = blocks
        self._user_block_bytes = Manifest.user_block_bytes(step, values, blocks)
        self._checksum_offsets: list[int] = []

    def lay_out(self, new: AtomicFile) -> list[int]:
        """Makes room for the arrays and their checksums; returns the offsets of the arrays. See `Replacement`."""
        new.check_room(sum(blocks.spec.nbytes for blocks in self._blocks.values()) + METADATA_BYTES)
        specs = {f"arrays/{name}": blocks.spec for name, blocks in self._blocks.items()}
        for name, blocks in self._blocks.items():
            specs[f"checksums/{name}"] = Spec(np.dtype("<u4"), (len(list(blocks.all_runs())),))
        small = {"step": np.array(self._step), "values": np.array(self._values.encode())}
        offsets = lay_out(new.fd, specs, small=small, user_block_bytes=self._user_block_bytes)
        self._checksum_offsets = [offsets[f"checksums/{name}"] for name in self._blocks]
        return [offsets[f"arrays/{name}"] for name in self._blocks]

    def complete(self, new: AtomicFile, blocks: Sequence[RowBlocks], checksums: Checksums) -> None:
        """Writes the checksums of the arrays, and at last the manifest. See `Replacement`."""
        for offset, numbers in zip(self._checksum_offsets, checksums, strict=True):
            write_exactly(new.fd, offset, memoryview(numbers.astype("<u4").tobytes()))
        entries = dict(zip(self._blocks, map(Entry, blocks, self._checksum_offsets), strict=True))
        size = os.fstat(new.fd).st_size
        gaps = [
            Gap(offset, nbytes, crc32(read_bytes(new.fd, offset, nbytes)))
            for offset, nbytes in gaps_between(blocks, self._user_block_bytes, size)
        ]
        content = Manifest(self._step, self._values, size, entries, gaps).pack(self._user_block_bytes)
        write_exactly(new.fd, 0, memoryview(content))
