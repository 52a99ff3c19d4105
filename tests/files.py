"""Loads without MPI: what one rank of one node would read, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.files.hdf5_read import Tree
from mpishare.files.inspect import Contents, look
from mpishare.files.parallel_read import laid_out
from mpishare.files.pieces import Cuttable, pieces
from mpishare.files.source import Source

SMALL_PIECE_BYTES = 64


def loaded(path: Path, dataset: str | None = None, region: Any = None, *, piece_bytes: int = SMALL_PIECE_BYTES) -> Any:
    """What `load` gives, read in small pieces, the last one first."""
    with Source(str(path)) as source:
        contents = look(source, dataset, region, attributes=False)
        offsets, nbytes = laid_out(contents.parts)
        block = np.full(nbytes, 0xEE, np.uint8)
        arrays = [Cuttable(at, part.cuts, part.cut_bytes) for at, part in zip(offsets, contents.parts, strict=True)]
        for piece in reversed(pieces(arrays, nbytes, piece_bytes)):
            part, at = contents.parts[piece.part], offsets[piece.part]
            part.read(source, piece.box, block[at : at + part.spec.nbytes])
        source.check()
    found = [part.spec.view(block[at:]) for part, at in zip(contents.parts, offsets, strict=True)]
    return arranged(contents.tree, found)


def arranged(tree: Tree, arrays: list[NDArray[Any]]) -> Any:
    """The one array, or those of a group by name."""
    if isinstance(tree, Mapping):
        return {name: arranged(below, arrays) for name, below in tree.items()}
    return arrays[tree]


def looked(path: Path, dataset: str | None = None, region: Any = None, *, attributes: bool = False) -> Contents:
    """What there is to load."""
    with Source(str(path)) as source:
        return look(source, dataset, region, attributes=attributes)


INDICES: dict[str, Any] = {
    "all": np.s_[...],
    "an item": np.s_[2, 3, 1],
    "a row": np.s_[3],
    "the last row": np.s_[-1],
    "rows": np.s_[2:5],
    "a plane": np.s_[:, 4],
    "columns": np.s_[..., 1:3],
    "steps": np.s_[1::3, ::2, ::2],
    "backwards": np.s_[::-1],
    "backwards by steps": np.s_[::-2, 5:0:-3, ::-1],
    "a new axis": np.s_[None, 1:3, None, 2],
    "nothing": np.s_[4:4],
    "beyond the end": np.s_[5:99, -99:2],
    "integers of NumPy": (np.int64(2), np.uint8(1)),
    "an empty tuple": (),
}
"""Of an array of three axes, (7, 6, 4)."""
