"""Rows of all ranks into one dataset, by an h5py of a build that writes through MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare import plan
from mpishare.agreement import agree
from mpishare.errors import BackendError
from mpishare.files.beside import telling
from mpishare.files.h5layout import check_h5py, has_mpio
from mpishare.files.stacks import BLOCK_BYTES, Stack
from mpishare.topology import Topology

__all__ = ["write"]


def write(here: Topology, file: Path, target: Path, dataset: str, stack: Stack, array: NDArray[Any] | None) -> None:
    """Writes this rank's rows to their place in `file`, which is to be `target` in the end.

    The ranks write by themselves, so that one that fails keeps none waiting.

    Raises:
        BackendError: h5py is of another build here than on the root.
        FileError: The rows cannot be written.
        PeerError: The same on another rank.

    Collective:
        Over `here.comm`.

    Source:
        The HDF5 reference, H5Pset_fapl_mpio and H5Pset_dxpl_mpio.
    """
    with agree(here.channel):
        h5py = check_h5py()
        if not has_mpio():
            raise BackendError("the root's h5py writes through MPI, but that of this rank does not: use one build.")
    with agree(here.channel), telling(target, dataset):
        made = h5py.File(file, "r+", driver="mpio", comm=here.parts)
    try:
        with agree(here.channel), telling(target, dataset):
            if array is not None and array.nbytes:
                _write_rows(h5py, made[dataset].id, stack, here.rank, array)
        with agree(here.channel), telling(target, dataset):
            made.flush()
    finally:
        made.close()


def _write_rows(h5py: Any, dataset: Any, stack: Stack, rank: int, array: NDArray[Any]) -> None:
    """Some rows at a time, so that those which must be put in order first take little memory."""
    row_bytes = array.nbytes // len(array)
    first = stack.starts[rank] // row_bytes
    for part in plan.chunks(len(array), max(BLOCK_BYTES // row_bytes, 1)):
        rows = np.ascontiguousarray(array[part])
        place = dataset.get_space()
        place.select_hyperslab((first + part.start, *(0,) * (rows.ndim - 1)), rows.shape)
        dataset.write(h5py.h5s.create_simple(rows.shape), place, rows, dataset.get_type())
