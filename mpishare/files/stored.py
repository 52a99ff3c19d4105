"""What a file says of the arrays in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import file_errors

_MOST_NAMES = 1_000_000
"""Groups that link to each other can give a file of some KiB more names than any memory holds."""

_SHOWN_NAMES = 8

NO_DTYPE = np.dtype("V")
"""The dtype of items that no NumPy array can have."""

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
        layout: "npy"; or, of a dataset, "contiguous", "compact", "chunked", "virtual" or "external"; or "sliced" of
            what another library converts; or "unknown" of what cannot be read.
        offset: Where its bytes begin in its file, if they lie there as they would in memory; else None.
        chunks: The length of the chunks along each axis, or a tuple of their lengths where these differ; None without
            chunks.
        filters: The filters of each chunk, by the names of the format, such as "shuffle" and "deflate".
        is_text: Whether its items are strings of variable length, or have columns of them; a load makes all as wide as
            the longest.
        reason: Why it cannot be loaded; empty if it can.
        left_out: The columns that cannot be loaded, each with the reason.
        target: The file and the dataset in it that an external link or an index leads to; None for a dataset of the
            file itself.
    """

    name: str | None
    spec: Spec
    ndim: int
    layout: str
    offset: int | None = None
    chunks: tuple[int | tuple[int, ...], ...] | None = None
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

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an item, with all of a subarray."""
        return self.spec.dtype.itemsize * math.prod(self.shape[self.ndim :])

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one item to the next along each of the `ndim` axes."""
        return strides_of(self.shape[: self.ndim], self.itemsize, self.spec.order)


class Listing(NamedTuple):
    """What a file, or an object in it, has, as plain data that other ranks can be sent.

    Attributes:
        path: The absolute path of the file.
        arrays: The arrays, each once.
        tree: Their numbers by name; an array alone is its number.
        attributes: The attributes of the object under "", and of each member of a group by its name.
        unread: The attributes that cannot be read, each with the reason.
        root: The name of the object, in a file that has groups.
    """

    path: str
    arrays: Sequence[Stored]
    tree: Tree
    attributes: dict[str, dict[str, Any]]
    unread: Sequence[str] = ()
    root: str | None = None

    @classmethod
    def of_names(
        cls, path: str, arrays: Sequence[Stored], name: str | None, attributes: dict[str, dict[str, Any]]
    ) -> Listing:
        """What a file without groups has: all its arrays, or the one of that name.

        Args:
            path: The absolute path of the file.
            arrays: The arrays, each with a name.
            name: The name of one of them; None for all.
            attributes: The attributes by the names of the arrays; those of the file under "".

        Raises:
            FileError: There is no array of that name.
        """
        named = {array.name: array for array in arrays}
        if name is None:
            tree = {inner: number for number, inner in enumerate(named)}
            return cls(path, [*named.values()], tree, attributes)
        if name not in named:
            raise FileError(path, name, f"there is no such array; the file has {shown_names(named)}.")
        return cls(path, [named[name]], 0, {"": attributes.get(name, {})} if attributes else {})

    @property
    def is_group(self) -> bool:
        """Whether the object is a group, and not one array."""
        return isinstance(self.tree, dict)

    @property
    def left_out(self) -> list[str]:
        """What cannot be loaded, each with the reason."""
        arrays = [
            f"{'link' if array.layout == 'link' else 'dataset'} {array.name!r}: {reason}"
            for array in self.arrays
            for reason in (array.reason, *array.left_out)
            if reason
        ]
        return [*arrays, *self.unread]

    @property
    def description(self) -> str:
        """What must be the same on all nodes."""
        return "; ".join(f"{array.name or 'array'}: {array.spec}" for array in self.arrays)


def stored_or_reason(path: str, name: str, layout: str, describe: Callable[[], Stored]) -> Stored:
    """What `describe` says of an array, one of several in a file; or why it cannot be loaded, so that the others can.

    Args:
        path: The file.
        name: The name of the array.
        layout: The layout of an array that the file has, but no memory can have.
        describe: Asks the library of the format. It may raise any error.
    """
    try:
        with file_errors(path, name, what="it"):
            return describe()
    except (FileError, SpecError) as error:
        return left_out(path, name, layout, error)


def left_out(path: str, name: str, layout: str, error: FileError | SpecError) -> Stored:
    """What stands for an array that cannot be loaded. See `stored_or_reason`."""
    reason = str(error).removeprefix(f"{place_in(path, name)}: ")
    if isinstance(error, FileError) and layout != "link":
        layout = "unknown"
    return Stored(name, Spec(NO_DTYPE, ()), 0, layout, reason=reason)


def check_loadable(path: str, stored: Stored) -> None:
    """Returns if an array can be loaded.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
        FileError: It is damaged, or what is needed to decode it is missing.
    """
    if stored.reason and stored.dtype == NO_DTYPE and stored.layout != "unknown":
        raise SpecError(f"{place_in(path, stored.name)}: {stored.reason}")
    if stored.reason:
        raise FileError(path, stored.name, stored.reason)


def shown_names(names: Collection[object]) -> str:
    """The first of some names, for error messages."""
    return ", ".join(map(repr, islice(names, _SHOWN_NAMES))) + (", …" if len(names) > _SHOWN_NAMES else "") or "none"


def listed(reasons: Iterable[str]) -> str:
    """Several reasons, each a sentence, as one sentence for an error message or a warning."""
    return "; ".join(reason.rstrip(".") for reason in reasons) + "."


def names_in(tree: Tree, path: str) -> list[tuple[str, Tree]]:
    """All groups and arrays of a tree by their names, with slashes between groups; "" is the tree itself.

    Raises:
        FileError: There are too many.
    """
    names = list(islice(_walk(tree, ""), _MOST_NAMES + 1))
    if len(names) > _MOST_NAMES:
        reason = f"has more than {_MOST_NAMES:,} names, as its groups link to each other. Give a dataset or a group."
        raise FileError(path, None, reason)
    return names


def _walk(tree: Tree, name: str) -> Iterator[tuple[str, Tree]]:
    yield name, tree
    for key, inner in tree.items() if isinstance(tree, dict) else ():
        yield from _walk(inner, f"{name}/{key}".lstrip("/"))


def strides_of(shape: Sequence[int], itemsize: int, order: str) -> tuple[int, ...]:
    """The bytes from one item to the next along each axis of a contiguous array."""
    inner = (shape[axis + 1 :] if order == "C" else shape[:axis] for axis in range(len(shape)))
    return tuple(itemsize * math.prod(lengths) for lengths in inner)


def with_widths(dtype: np.dtype[Any], widths: Iterator[int]) -> np.dtype[Any]:
    """A dtype without its metadata, and with bytes of the next of `widths` for each string."""
    if not dtype.hasobject:
        return rebuild(describe(dtype))
    if dtype.subdtype is not None:
        return np.dtype((with_widths(dtype.base, widths), dtype.shape))
    if dtype.names is None:
        return np.dtype(f"S{next(widths)}")
    return np.dtype([(name, with_widths(dtype[name], widths)) for name in dtype.names])
