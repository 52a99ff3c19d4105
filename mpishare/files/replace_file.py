"""How all ranks write one file, which takes the place of another when it is whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

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
    specs_of_root: Mapping[str, Spec] = comm.bcast_obj(specs, ROOT)
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
    new = prepared = None
    with ExitStack() as stack:
        with agree(comm), replacement.errors():
            if context.topology.rank == ROOT:
                new = stack.enter_context(AtomicFile(replacement.path, replacement.leftovers))
                prepared = new.temporary, replacement.lay_out(new), _way(context, replacement, new)
        temporary, offsets, way = comm.bcast_obj(prepared, ROOT)
        blocks = [replace(array, offset=offset) for array, offset in zip(replacement.blocks, offsets, strict=True)]
        checksums: Checksums = []
        if way == "mpio" and replacement.dataset is not None:
            mpio.write(context, temporary, replacement.path, replacement.dataset, blocks[0], arrays[0])
        else:
            checksums = _write(context, replacement, temporary, way, blocks, arrays)
        with agree(comm), replacement.errors():
            if new is not None:
                if replacement.complete is not None:
                    replacement.complete(new, blocks, checksums)
                new.sync()
        with agree(comm), replacement.errors():  # no rank has failed, so that the new file may take the name
            if new is not None:
                new.commit()
    return cast("str", way)


def _way(context: Context, replacement: Replacement, new: AtomicFile) -> str:
    """How the bytes are written; see `choose_way`."""
    distributed = replacement.distributed
    writes_mpio = distributed and replacement.dataset is not None and has_mpio()
    filesystem = type_of(str(new.path.parent))  # the file may be behind a symbolic link
    return choose_way(context.topology.placement, filesystem, distributed=distributed, has_mpio=writes_mpio)


def _write(
    context: Context,
    replacement: Replacement,
    temporary: Path,
    way: str,
    blocks: Sequence[RowBlocks],
    arrays: Sequence[NDArray[Any] | None],
) -> Checksums:
    """Writes the bytes of all ranks. Returns their checksums if the file is to be completed with them."""
    comm = context.collective_comm
    nbytes = sum(array.spec.nbytes for array in blocks)
    ranks = writers(context.topology.placement, way)
    has_checksums = replacement.complete is not None
    with Bar(nbytes, "B", is_shown=replacement.progress and context.topology.rank == ROOT) as bar, ExitStack() as stack:
        with agree(comm), replacement.errors():
            writing = ParallelWrite(context, temporary, blocks, arrays, ranks, has_checksums, bar)
            stack.callback(writing.close)  # if another rank cannot open the file
        with agree(comm), replacement.errors(), closing(writing):
            writing.run()
            if way == "hosts":
                writing.sync()
    by_array = zip(*comm.allgather_obj(writing.checksums), strict=True)
    return [np.fromiter(chain.from_iterable(of_ranks), np.uint32) for of_ranks in by_array]
