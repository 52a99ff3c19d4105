"""How the file of a checkpoint is laid out, and completed when the arrays are in it. On the root alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from mpishare.arrays.spec import Spec
from mpishare.checkpoints.manifest import Entry, Gap, Manifest, gaps_between, read_bytes
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.hdf5_write import METADATA_BYTES, lay_out
from mpishare.files.replace_file import Checksums
from mpishare.files.row_blocks import RowBlocks


class CheckpointWriter:
    """The file of one checkpoint."""

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
