"""What a file says of an array in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpishare.arrays.spec import Spec


@dataclass(frozen=True)
class Stored:
    """An array in a file. Those of one dataset that has several names are equal.

    Attributes:
        name: Its dataset, by its first name; None in a file of one array.
        spec: What a load of the whole array returns. The axes of a subarray dtype follow the others in its shape. Where
            no NumPy array can have the items, the dtype "V", whose items have no bytes.
        ndim: The number of axes that a region can index: all but those of a subarray dtype.
        layout: "npy"; or, of a dataset, "contiguous", "compact", "chunked", "virtual" or "external".
        offset: Where its bytes begin in its file, if they lie there as they would in memory; else None.
        chunks: The lengths of a chunk along each axis; None without chunks.
        filters: The filters of each chunk, by HDF5's names, such as "shuffle" and "deflate".
        is_text: Whether its items are strings of variable length, or have columns of them; a load makes all as wide as
            the longest.
        reason: Why it cannot be loaded; empty if it can.
        left_out: The columns that cannot be loaded, each with the reason.
        target: The file and the dataset in it that an external link leads to; None for a dataset of the file itself.
    """

    name: str | None
    spec: Spec
    ndim: int
    layout: str
    offset: int | None = None
    chunks: tuple[int, ...] | None = None
    filters: tuple[str, ...] = ()
    is_text: bool = False
    reason: str = ""
    left_out: tuple[str, ...] = ()
    target: tuple[str, str] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its items."""
        return self.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes, in items."""
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the memory of each node."""
        return self.spec.nbytes

    @property
    def own_name(self) -> str:
        """Its dataset, by the name in its own file."""
        return self.name or "" if self.target is None else self.target[1]
