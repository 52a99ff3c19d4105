"""What a file says of the arrays in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpishare.arrays.spec import Spec

Tree = Any
"""The number of an array among those of a file; or a dict of trees by name, for a group. Where a group or a dataset has
several names, the same object stands under each."""


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
    def itemsize(self) -> int:
        """Bytes of an item, with all of a subarray."""
        return self.spec.dtype.itemsize * math.prod(self.shape[self.ndim :])

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one item to the next along each of the `ndim` axes."""
        return strides_of(self.shape[: self.ndim], self.itemsize, self.spec.order)

    @property
    def own_name(self) -> str:
        """Its dataset, by the name in its own file."""
        return self.name or "" if self.target is None else self.target[1]


class Listing(NamedTuple):
    """What a file, or an object in it, has.

    Attributes:
        arrays: The arrays, each once.
        tree: Their numbers by name; an array alone is its number.
        attributes: Those of each array by its number, and of each group by the identity of its tree.
        left_out: The attributes that cannot be read, each with the reason.
    """

    arrays: list[Stored]
    tree: Tree
    attributes: dict[int, dict[str, Any]]
    left_out: list[str]


def strides_of(shape: Sequence[int], itemsize: int, order: str) -> tuple[int, ...]:
    """The bytes from one item to the next along each axis of a contiguous array."""
    inner = (shape[axis + 1 :] if order == "C" else shape[:axis] for axis in range(len(shape)))
    return tuple(itemsize * math.prod(lengths) for lengths in inner)
