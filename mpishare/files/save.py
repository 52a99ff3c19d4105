"""An array out of node memory into a file, once, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.dtypes import describe
from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.collective import collective
from mpishare.errors import SpecError, place_in
from mpishare.files.formats import Format, chosen
from mpishare.files.replace_file import Order, replace_file
from mpishare.files.row_blocks import ROOT, RowBlocks
from mpishare.progress_bar import check_tqdm
from mpishare.transfer.pipeline import broadcast_spec
from mpishare.transfer.rows import rows_of


@dataclass(frozen=True)
class Saved:
    """What `save` did.

    Attributes:
        path: The file.
        dataset: The dataset in it, None in a .npy file.
        shape: The shape of the array in the file.
        nbytes: Its bytes.
        way: Who wrote them. "root": rank 0. "node": all ranks, which are on one node, each its part. "hosts": all
            ranks, on a file system that lets several hosts write to one file at the same time. "streams": the ranks of
            rank 0's node, to which the others sent theirs. "mpio": all ranks, by HDF5 through MPI.
    """

    path: Path
    dataset: str | None
    shape: tuple[int, ...]
    nbytes: int
    way: str


def save(
    path: str | os.PathLike[str],
    array: NDArray[Any] | None,
    dataset: str | None = None,
    *,
    distributed: bool = False,
    progress: bool = False,
    comm: mpi.Comm | None = None,
) -> Saved:
    """Saves an array that all ranks have, or the rows that each of them has, as .npy or in HDF5.

    Whoever reads the file meanwhile, or after a rank or the host has died, sees what was there before, whole, or what
    is there now: the bytes go to a new file in the same folder, which takes the name when it is on the disk. What a
    killed save left there, the next one to `path` removes. No rank holds a second copy of the array.

    Args:
        path: The file. The suffix says the format: .npy; or .h5, .hdf5, .hdf, .he5, which takes h5py.
        array: Without `distributed`, the array on rank 0, and ignored elsewhere. With it, the rows of each rank; they
            are stacked in rank order, and may be none.
        dataset: The name of the dataset, with slashes between groups, in HDF5. What else is in the file stays: it is
            copied first, which takes time and room for all of it. What had the name before goes.
        distributed: Whether each rank has rows of its own.
        progress: Whether rank 0 shows a bar with bytes, rate and time left where standard error is a terminal; needs
            tqdm.
        comm: The ranks; MPI_COMM_WORLD when None.

    Returns:
        A `Saved`: what is in the file now, and in which way it came there. The way follows from what there is: the
        nodes, the file system and the build of h5py.

    Raises:
        SpecError: The array holds Python objects, or the format has no name for its dtype.
        ArgumentError: The suffix is unknown, or `dataset` is missing, or given for .npy.
        FileError: The file cannot be written: no such folder, no permission, no room, a folder in its place, a file
            that is no HDF5 or that another process writes to. It has the `errno`. What was there before is there still,
            or else the error says so: where only the folder could not be synced, the new file is there.
        BackendError: h5py or tqdm is wanted and not installed.
        MismatchError: The ranks gave different arguments, or rows of different dtype or shape.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        T. S. Pillai et al., "All file systems are not created equal", OSDI 2014; NumPy Enhancement Proposal 1.

    Example:
        >>> import mpishare as ms, numpy as np, os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "rows.npy")
        ...     saved = ms.save(file, np.arange(6.0).reshape(2, 3), distributed=True)
        ...     np.load(file).tolist(), saved.way
        ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 'node')
    """
    with collective("save", comm) as call:
        return _save(call, path, array, dataset, distributed=distributed, progress=progress)


def _save(
    call: collective,
    path: str | os.PathLike[str],
    array: NDArray[Any] | None,
    dataset: str | None,
    *,
    distributed: bool,
    progress: bool,
) -> Saved:
    context = call.context
    with call.begin() as agreement:
        file, place = chosen(path, dataset)
        extension, rows = b"", ""
        if distributed or context.topology.rank == ROOT:
            with _naming(file, place):
                mine = rows_of(array) if distributed else Spec.of(array)
                stored = place.stored(mine) if context.topology.rank == ROOT else mine
            if distributed:
                rows = f", rows of shape {mine.shape[1:]}, dtype {describe(mine.dtype)}"
            else:
                agreement.note, extension = stored.packed
        if progress and context.topology.rank == ROOT:
            check_tqdm()
        agreement.call = f"save({file}, {place.dataset}, distributed={distributed}, progress={progress}{rows})"
    if distributed:
        stack = RowBlocks.rows(mine, context.collective_comm.allgather_obj(mine.shape[0]))
    else:
        stack = RowBlocks.whole(broadcast_spec(context, agreement.note, extension, ROOT), context.topology.size)
    order = Order(
        path=file,
        stacks=[stack],
        lay_out=lambda new: [place.lay_out(new, stack.spec)],
        distributed=distributed,
        dataset=place.dataset,
        progress=progress,
    )
    way = replace_file(context, order, [array if distributed or context.topology.rank == ROOT else None])
    return Saved(file, place.dataset, stack.spec.shape, stack.spec.nbytes, way)


@contextmanager
def _naming(file: Path, place: Format) -> Iterator[None]:
    """Has a SpecError tell what was to be saved."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{place_in(str(file), place.dataset)} cannot be saved: {error}") from error
