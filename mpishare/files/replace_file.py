"""How all ranks write one file, which takes the place of another when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.files import mpio
from mpishare.files.atomic_file import AtomicFile
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_write import has_mpio
from mpishare.files.parallel_write import ParallelWrite
from mpishare.files.row_blocks import ROOT, RowBlocks, choose_way, writers
from mpishare.host.filesystems import type_of
from mpishare.progress_bar import Bar

Checksums = Sequence[NDArray[np.uint32]]
"""For each array the CRC-32 of each of its runs."""


@dataclass(frozen=True)
class Replacement:
    """A file to write, as all ranks know it. The functions are for the root alone.

    Attributes:
        path: The file to replace or to make.
        blocks: Which rank has which bytes of each array. Their offsets in the file follow from `lay_out`.
        lay_out: Makes room for the arrays in the new file; returns their offsets.
        distributed: Whether ranks other than the root have bytes.
        dataset: The array that is saved in a file that may have others; None for the whole file.
        complete: Completes the new file when all arrays are in it; None if there is nothing to do.
        leftovers: See `AtomicFile`.
        progress: Whether the root shows a bar.
    """

    path: Path
    blocks: Sequence[RowBlocks]
    lay_out: Callable[[AtomicFile], Sequence[int]]
    distributed: bool
    dataset: str | None = None
    complete: Callable[[AtomicFile, Sequence[RowBlocks], Checksums], None] | None = None
    leftovers: str | None = None
    progress: bool = False

    def errors(self) -> AbstractContextManager[None]:
        """See `file_errors`."""
        return file_errors(self.path, self.dataset, "it was not saved")


class _Start(NamedTuple):
    """What the root has prepared: the temporary file, the offsets of the arrays in it, and how they are written."""

    temporary: Path
    offsets: Sequence[int]
    way: str


def gather_row_blocks(
    context: Context, specs: Mapping[str, Spec], distributed: Collection[str]
) -> dict[str, RowBlocks]:
    """Which rank has which bytes of each array.

    Args:
        context: The context of the communicator.
        specs: On the root that of each array, by name; on the others at least those of the distributed ones, which are
            those of this rank's rows.
        distributed: The names of the arrays of which each rank has rows.

    Collective:
        Over the communicator.
    """
    comm = context.collective_comm
    specs_of_root: dict[str, Spec] = comm.bcast_obj(specs, ROOT)
    counts = comm.allgather_obj({name: specs[name].shape[0] for name in distributed})
    return {
        name: RowBlocks.of_rows(spec, [count[name] for count in counts])
        if name in distributed
        else RowBlocks.of_root(spec, comm.size)
        for name, spec in specs_of_root.items()
    }


def replace_file(context: Context, replacement: Replacement, arrays: Sequence[NDArray[Any] | None]) -> str:
    """Writes a file, which takes the place of another at the end.

    Args:
        context: The context of the communicator.
        replacement: The file.
        arrays: This rank's part of each array, None where it has none.

    Returns:
        How it was written; see `row_blocks.choose_way`.

    Raises:
        FileError: The file cannot be written. The old one is still there, or the error says otherwise.
        PeerError: Another rank raised one.

    Collective:
        Over the communicator.
    """
    comm = context.collective_comm
    with ExitStack() as stack:
        with agree(comm), replacement.errors():
            is_root = context.topology.rank == ROOT
            new = stack.enter_context(AtomicFile(replacement.path, replacement.leftovers)) if is_root else None
            prepared = None if new is None else _prepare(context, replacement, new)
        start: _Start = comm.bcast_obj(prepared, ROOT)
        blocks = [
            replace(array, offset=offset) for array, offset in zip(replacement.blocks, start.offsets, strict=True)
        ]
        checksums: Checksums = []
        if start.way == "mpio" and replacement.dataset is not None:
            mpio.write(context, start.temporary, replacement.path, replacement.dataset, blocks[0], arrays[0])
        else:
            checksums = _write(context, replacement, start, blocks, arrays)
        with agree(comm), replacement.errors():
            if new is not None:
                if replacement.complete is not None:
                    replacement.complete(new, blocks, checksums)
                new.sync()
        with agree(comm), replacement.errors():  # no rank has failed, so that the new file may take the name
            if new is not None:
                new.commit()
    return start.way


def _prepare(context: Context, replacement: Replacement, new: AtomicFile) -> _Start:
    """Makes room in the new file, and chooses how it is written."""
    offsets = replacement.lay_out(new)
    distributed = replacement.distributed
    way = choose_way(
        context.topology.placement,
        type_of(str(new.path.parent)),  # the file may be behind a symbolic link
        distributed=distributed,
        has_mpio=distributed and replacement.dataset is not None and has_mpio(),
    )
    return _Start(new.temporary, offsets, way)


def _write(
    context: Context,
    replacement: Replacement,
    start: _Start,
    blocks: Sequence[RowBlocks],
    arrays: Sequence[NDArray[Any] | None],
) -> Checksums:
    """Writes the bytes of all ranks. Returns their checksums if the file is to be completed with them."""
    comm = context.collective_comm
    nbytes = sum(array.spec.nbytes for array in blocks)
    has_checksums = replacement.complete is not None
    with Bar(nbytes, "B", is_shown=replacement.progress and context.topology.rank == ROOT) as bar, ExitStack() as stack:
        with agree(comm), replacement.errors():
            ranks = writers(context.topology.placement, start.way)
            writer = ParallelWrite(
                context, start.temporary, blocks, arrays, ranks, has_checksums=has_checksums, bar=bar
            )
            stack.callback(writer.close)  # if another rank cannot open the file
        with agree(comm), replacement.errors(), closing(writer):
            writer.run()
            if start.way == "hosts":
                writer.sync()
    if not has_checksums:
        return []
    by_array = zip(*comm.allgather_obj(writer.checksums), strict=True)
    return [np.fromiter(chain.from_iterable(of_ranks), np.uint32) for of_ranks in by_array]
