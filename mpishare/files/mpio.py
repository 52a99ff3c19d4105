"""Rows of all ranks into one dataset, by an h5py that was built to write through MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import BackendError
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_write import has_mpio
from mpishare.files.row_blocks import RowBlocks
from mpishare.files.source import import_h5py


def write(
    context: Context, file: Path, target: Path, dataset: str, blocks: RowBlocks, array: NDArray[Any] | None
) -> None:
    """Writes this rank's rows to their place. Each rank writes independently, so that none waits for one that fails.

    Args:
        context: The context of the communicator.
        file: The HDF5 file that has the dataset.
        target: The file to name in errors.
        dataset: The dataset.
        blocks: Which rank has which rows.
        array: This rank's rows.

    Raises:
        BackendError: This rank's h5py cannot write through MPI, but the root's can.
        FileError: The rows cannot be written.
        PeerError: Another rank raised one of these.

    Collective:
        Over the communicator.

    Source:
        The HDF5 reference, H5Pset_fapl_mpio and H5Pset_dxpl_mpio.
    """
    comm = context.collective_comm
    outcome = "it was not saved"
    with agree(comm):
        if not has_mpio():
            raise BackendError("h5py cannot write through MPI on this rank, but can on the root: use one build.")
    with agree(comm), file_errors(target, dataset, outcome):
        opened = import_h5py().File(file, "r+", driver="mpio", comm=context.data_comm)
    with agree(comm), file_errors(target, dataset, outcome), opened:  # all ranks close it, which flushes it
        if array is not None and array.nbytes:
            _write_rows(opened[dataset].id, blocks, context.topology.rank, array)


def _write_rows(dataset: Any, blocks: RowBlocks, rank: int, array: NDArray[Any]) -> None:
    """Writes some rows at a time, so that a copy in C order takes little memory."""
    row_bytes = array.nbytes // len(array)
    first = blocks.starts[rank] // row_bytes
    for part in slices.chunks(len(array), max(blocks.block_bytes // row_bytes, 1)):
        rows = np.ascontiguousarray(array[part])
        space = dataset.get_space()
        space.select_hyperslab((first + part.start, *(0,) * (rows.ndim - 1)), rows.shape)
        dataset.write(import_h5py().h5s.create_simple(rows.shape), space, rows, dataset.get_type())
