"""How all ranks write one file, which takes the place of another when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.files.atomic_file import AtomicFile
from mpishare.files.errors import file_errors, stall_errors
from mpishare.files.parallel_write import ParallelWrite
from mpishare.files.row_blocks import ROOT, RowBlocks, choose_way, writers
from mpishare.host.filesystems import IN_MEMORY, type_of
from mpishare.host.memory import check_memory
from mpishare.progress_bar import Bar

Checksums = Sequence[NDArray[np.uint32]]
"""For each array the CRC-32 of each of its runs."""


Blocks = Mapping[str, RowBlocks]
"""Which rank has which bytes of each array, by name."""


@dataclass
class Replacement:
    """A file that all ranks write, and that takes the place of another at the end. The functions are for the root.

    Attributes:
        context: The context of the communicator.
        path: The file to replace or to make.
        arrays: The arrays by name, the same names on all ranks.
        specs: On the root that of each array; on the others at least those of the distributed ones, which are those of
            this rank's rows.
        distributed: The names of the arrays of which each rank has rows.
        lay_out: Makes room for the arrays in the new file; returns their offsets.
        complete: Completes the new file when all arrays are in it; None if there is nothing to do.
        dataset: The only dataset that is written, for errors; None for the whole file.
        progress: Whether the root shows a bar.
        blocks: Which rank has which bytes of each array, and where in the file.
    """

    context: Context
    path: Path
    arrays: Mapping[str, NDArray[Any] | None]
    specs: Mapping[str, Spec]
    distributed: Collection[str]
    lay_out: Callable[[AtomicFile, Blocks], Sequence[int]]
    complete: Callable[[AtomicFile, Blocks, Checksums], None] | None = None
    dataset: str | None = None
    progress: bool = False
    blocks: dict[str, RowBlocks] = field(default_factory=dict)

    def run(self) -> str:
        """Writes the file.

        Returns:
            How it was written; see `row_blocks.choose_way`.

        Raises:
            FileError: The file cannot be written. The old one is still there, or the error says otherwise.
            StallError: The old file stays, or the error says otherwise.
            PeerError: Another rank raised one.

        Collective:
            Over the communicator.
        """
        comm = self.context.collective_comm
        new = prepared = None
        self.blocks = self._gather_blocks()
        with ExitStack() as stack:
            with agree(comm), self._errors():
                if comm.rank == ROOT:
                    new = stack.enter_context(AtomicFile(self.path))
                    prepared = new.temporary, self.lay_out(new, self.blocks), self._way(new)
            temporary, offsets, way = comm.bcast_obj(prepared, ROOT)
            for (name, array), offset in zip(list(self.blocks.items()), offsets, strict=True):
                self.blocks[name] = replace(array, offset=offset)
            checksums = self._write(temporary, way)
            with agree(comm), self._errors():
                if new is not None:
                    if self.complete is not None:
                        self.complete(new, self.blocks, checksums)
                    new.sync()
            with agree(comm):
                pass  # no rank has given up waiting for the disk: it would not come here
            outcome = f"the new file is on the disk, and takes its name unless rank {ROOT} reports an error"
            with stall_errors(outcome), agree(comm), self._errors():
                if new is not None:
                    new.commit()
        return str(way)

    def _gather_blocks(self) -> dict[str, RowBlocks]:
        comm = self.context.collective_comm
        specs_of_root: Mapping[str, Spec] = comm.bcast_obj(self.specs, ROOT)
        counts = comm.allgather_obj({name: self.specs[name].shape[0] for name in self.distributed})
        return {
            name: RowBlocks.of_rows(spec, [count[name] for count in counts])
            if name in self.distributed
            else RowBlocks.of_root(spec, comm.size)
            for name, spec in specs_of_root.items()
        }

    def _errors(self) -> AbstractContextManager[None]:
        return file_errors(self.path, self.dataset, "it was not saved")

    def _way(self, new: AtomicFile) -> str:
        """How the bytes are written; see `choose_way`. A file system in memory must have memory for them."""
        filesystem = type_of(str(new.path.parent))  # the file may be behind a symbolic link
        if filesystem in IN_MEMORY:
            check_memory(self.context.topology.host, sum(array.spec.nbytes for array in self.blocks.values()))
        return choose_way(self.context.topology.placement, filesystem, distributed=bool(self.distributed))

    def _write(self, temporary: Path, way: str) -> Checksums:
        """Writes the bytes of all ranks. Returns their checksums, to the root, if the file is completed with them."""
        comm, ranks = self.context.collective_comm, writers(self.context.topology.placement, way)
        blocks = list(self.blocks.values())
        arrays = [self.arrays[name] if name in self.specs else None for name in self.blocks]
        nbytes = sum(array.spec.nbytes for array in blocks)
        has_checksums = self.complete is not None
        with Bar(nbytes, "B", is_shown=self.progress and comm.rank == ROOT) as bar, ExitStack() as stack:
            with agree(comm), self._errors():
                writing = ParallelWrite(self.context, temporary, blocks, arrays, ranks, has_checksums)
                stack.enter_context(writing.file)  # closed here if another rank cannot open it
            with agree(comm), self._errors(), writing.file:  # closing it may report that bytes could not be written
                writing.run(bar)
                if way == "hosts":
                    os.fsync(writing.fd)
        if not has_checksums:
            return []
        by_rank = comm.gather_obj([np.array(checksums, np.uint32) for checksums in writing.checksums], ROOT)
        return [np.concatenate(of_ranks) for of_ranks in zip(*by_rank, strict=True)]
