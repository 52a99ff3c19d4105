"""What can be said of an array in a file before it is read: dtype, shape, bytes, and how they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpishare.arrays.spec import Spec


@dataclass(frozen=True)
class Stored:
    """An array in a file.

    Attributes:
        name: Its dataset, None where the file is one array.
        spec: What a load of all of it gives. The lengths of an array within an item join the shape at its end.
        ndim: How many axes a region can index: all but those of such arrays.
        layout: "npy"; or, of a dataset, "contiguous", "compact", "chunked", "virtual" or "external".
        offset: Where in the file its bytes begin, where they lie there as they would in memory; else None.
        chunks: The lengths of a chunk along each axis; None without chunks.
        filters: What each chunk went through, by the names of HDF5, such as "shuffle" and "deflate".
        is_text: Whether it has texts of any length, which a load makes as wide as the longest of them.
    """

    name: str | None
    spec: Spec
    ndim: int
    layout: str
    offset: int | None = None
    chunks: tuple[int, ...] | None = None
    filters: tuple[str, ...] = ()
    is_text: bool = False

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
        """How much memory of each node it takes."""
        return self.spec.nbytes
