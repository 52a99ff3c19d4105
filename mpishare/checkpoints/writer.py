"""How the file of a checkpoint is laid out, and completed when the arrays are in it. On the root."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from zlib import crc32

import numpy as np

from mpishare.arrays.spec import Spec
from mpishare.checkpoints.manifest import Entry, Gap, Manifest, between, read_all
from mpishare.files.atomic_file import AtomicFile
from mpishare.files.formats import METADATA_BYTES
from mpishare.files.hdf5_write import lay_out
from mpishare.files.parallel_write import put
from mpishare.files.replace_file import Checks
from mpishare.files.row_blocks import RowBlocks


class Filing:
    """One checkpoint, from its arrays without places to the whole file."""

    def __init__(self, step: int, values: str, stacks: Mapping[str, RowBlocks]) -> None:
        self._step = step
        self._values = values
        self._names = list(stacks)
        self._front_bytes = Manifest.room(step, values, stacks)
        self._counts = {name: sum(1 for _ in Entry(stack, 0).runs()) for name, stack in stacks.items()}
        self._specs = {name: stack.spec for name, stack in stacks.items()}
        self._checks_at: dict[str, int] = {}

    def lay_out(self, new: AtomicFile) -> list[int]:
        """Makes room for the arrays and for their checksums; returns the places of the arrays."""
        new.check_room(sum(spec.nbytes for spec in self._specs.values()) + METADATA_BYTES)
        specs = {f"arrays/{name}": spec for name, spec in self._specs.items()}
        specs |= {f"checksums/{name}": Spec(np.dtype("<u4"), (count,)) for name, count in self._counts.items()}
        small = {"step": np.array(self._step), "values": np.array(self._values.encode())}
        places = lay_out(new.fd, specs, small=small, user_bytes=self._front_bytes)
        self._checks_at = {name: places[f"checksums/{name}"] for name in self._names}
        return [places[f"arrays/{name}"] for name in self._names]

    def complete(self, new: AtomicFile, stacks: Sequence[RowBlocks], checks: Checks) -> None:
        """Writes the checksums of the arrays, and then the front, with those of all else."""
        entries = {}
        for name, stack, sums in zip(self._names, stacks, checks, strict=True):
            entries[name] = Entry(stack, self._checks_at[name])
            put(new.fd, self._checks_at[name], memoryview(sums.astype("<u4").tobytes()))
        size = os.fstat(new.fd).st_size
        gaps = [
            Gap(at, nbytes, crc32(read_all(new.fd, at, nbytes)))
            for at, nbytes in between(stacks, self._front_bytes, size)
        ]
        front = Manifest(self._step, self._values, size, entries, gaps).pack(self._front_bytes)
        put(new.fd, 0, memoryview(front))
