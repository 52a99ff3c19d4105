"""Rows of all ranks into one dataset, by an h5py of a build that writes through MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import BackendError
from mpishare.files.atomic_file import telling
from mpishare.files.hdf5_write import check_h5py, has_mpio
from mpishare.files.row_blocks import BLOCK_BYTES, RowBlocks


def write(
    context: Context, file: Path, target: Path, dataset: str, stack: RowBlocks, array: NDArray[Any] | None
) -> None:
    """Writes this rank's rows to their place in `file`, which is to be `target` in the end.

    The ranks write by themselves, so that one that fails keeps none waiting.

    Raises:
        BackendError: h5py is of another build here than on the root.
        FileError: The rows cannot be written.
        PeerError: The same on another rank.

    Collective:
        Over the communicator.

    Source:
        The HDF5 reference, H5Pset_fapl_mpio and H5Pset_dxpl_mpio.
    """
    with agree(context.collective_comm):
        h5py = check_h5py()
        if not has_mpio():
            raise BackendError("the root's h5py writes through MPI, but that of this rank does not: use one build.")
    with agree(context.collective_comm), telling(target, dataset):
        made = h5py.File(file, "r+", driver="mpio", comm=context.data_comm)
    try:
        with agree(context.collective_comm), telling(target, dataset):
            if array is not None and array.nbytes:
                _write_rows(h5py, made[dataset].id, stack, context.topology.rank, array)
        with agree(context.collective_comm), telling(target, dataset):
            made.flush()
    finally:
        made.close()


def _write_rows(h5py: Any, dataset: Any, stack: RowBlocks, rank: int, array: NDArray[Any]) -> None:
    """Some rows at a time, so that those which must be put in order first take little memory."""
    row_bytes = array.nbytes // len(array)
    first = stack.starts[rank] // row_bytes
    for part in slices.chunks(len(array), max(BLOCK_BYTES // row_bytes, 1)):
        rows = np.ascontiguousarray(array[part])
        place = dataset.get_space()
        place.select_hyperslab((first + part.start, *(0,) * (rows.ndim - 1)), rows.shape)
        dataset.write(h5py.h5s.create_simple(rows.shape), place, rows, dataset.get_type())
