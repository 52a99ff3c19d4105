"""What a file stores, and which parts of it a call loads, as plain data that other ranks can be sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from mpishare.errors import ArgumentError, FileError, checked_path
from mpishare.files import hdf5_read, npy
from mpishare.files.hdf5_part import Hdf5Part
from mpishare.files.parts import ContiguousPart
from mpishare.files.region import Axis, View, parse_region
from mpishare.files.source import Source, Stamp
from mpishare.files.stored import Stored

_MOST_NAMES = 1_000_000
"""Groups that link to each other can give a file of some KiB more names than any memory holds."""


class FileListing(NamedTuple):
    """What a file, or an object in it, has.

    Attributes:
        path: The absolute path of the file.
        stamps: The stamps of the file and of those behind its links, by path.
        arrays: The arrays, each once.
        tree: Their numbers by name; see `hdf5_read.Tree`.
        attributes: Those of the dataset; or, of a group, those of each of its members by name, its own under "".
        left_out: What cannot be loaded, each with the reason.
    """

    path: str
    stamps: Mapping[str, Stamp]
    arrays: tuple[Stored, ...]
    tree: hdf5_read.Tree
    attributes: Mapping[str, Any]
    left_out: tuple[str, ...]

    @property
    def is_group(self) -> bool:
        """Whether the object is a group, and not one array."""
        return isinstance(self.tree, dict)

    @property
    def description(self) -> str:
        """What must be the same on all nodes."""
        return "; ".join(f"{array.name or 'array'}: {array.spec}" for array in self.arrays)

    def parts(self, region: Any) -> tuple[dict[int, ContiguousPart | Hdf5Part], View]:
        """The part to read of each array, by its number; and what makes the result of the one array.

        Args:
            region: An index into one array; None for all of it.

        Raises:
            ArgumentError: The region is not within the array, or is of a group.
        """
        if self.is_group and region is not None:
            raise ArgumentError(f"region is for one array, but a group of {self.path} was given. Give a dataset in it.")
        made = {number: _part(array, region) for number, array in enumerate(self.arrays) if not array.reason}
        view = next((view for _, view in made.values()), np.asarray)
        return {number: part for number, (part, _) in made.items()}, view


def stored(path: str | os.PathLike[str], dataset: str | None = None) -> dict[str, Stored]:
    """Returns what a file stores, without reading it: dtype, shape, bytes and layout of each array.

    Args:
        path: A `.npy` or an HDF5 file.
        dataset: A dataset or a group of an HDF5 file; None for the whole file.

    Returns:
        A `Stored` for each array, by the name of its dataset; by "" for the array of a `.npy` file. Strings of variable
        length count as one byte each, as their length is not known before they are read. A dataset that cannot be
        loaded, or a link that cannot be followed, has a `reason`. A dataset with several names has the same `Stored`
        under each, so that `{*stored(path).values()}` has each once.

    Raises:
        ArgumentError: `path` is not a path, or `dataset` is not a string.
        FileError: There is no such file or dataset, or it is damaged.
        BackendError: It is an HDF5 file, and h5py is not installed.

    Collective:
        No, local.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.zeros((2, 3)))
        ...     grid = ms.stored(f"{folder}/grid.npy")[""]
        >>> grid.shape, grid.nbytes, grid.layout
        ((2, 3), 48, 'npy')
    """
    file, name = checked(path, dataset)
    with Source(file) as source:
        if _is_npy(source, name):
            return {"": npy.stored_in(source)}
        walk = hdf5_read.Walk(source, name or "/", attributes=False)
    return {
        hdf5_read.path_of(f"{name or ''}/{inner}"): walk.arrays[tree]
        for inner, tree in _names_in(walk.tree, file)
        if not isinstance(tree, dict)
    }


def inspect_file(source: Source, name: str | None, region: Any, *, attributes: bool) -> FileListing:
    """What a call loads.

    Args:
        source: The file.
        name: A dataset or a group; None for the whole file.
        region: An index into one array; None for all of it. Strings are as wide as the longest that it selects.
        attributes: Whether to read the attributes as well.

    Raises:
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: The dataset cannot be loaded. Of a group it is left out.
    """
    path = os.path.abspath(source.path)  # noqa: PTH100 - does not resolve links
    if _is_npy(source, name):
        array = npy.stored_in(source)
        return FileListing(path, source.stamps, (array,), 0, {}, ())
    walk = hdf5_read.Walk(source, name or "/", attributes=attributes)
    if not isinstance(walk.tree, dict):
        hdf5_read.check_loadable(source, walk.arrays[0])
        named = walk.attributes.get(0, {})
    elif attributes:
        keys = ((inner, id(tree) if isinstance(tree, dict) else tree) for inner, tree in _names_in(walk.tree, path))
        named = {inner: walk.attributes[key] for inner, key in keys if key in walk.attributes}
    else:
        named = {}
    left_out = [
        f"{'link' if array.layout == 'link' else 'dataset'} {array.name!r}: {reason}"
        for array in walk.arrays
        for reason in (array.reason, *array.left_out)
        if reason
    ]
    listing = FileListing(path, source.stamps, tuple(walk.arrays), walk.tree, named, (*left_out, *walk.left_out))
    with suppress(ArgumentError):  # which every rank finds by itself
        return listing._replace(arrays=_with_widths(source, listing, region))
    return listing


def _with_widths(source: Source, listing: FileListing, region: Any) -> tuple[Stored, ...]:
    """The arrays, where the items of those of strings are as wide as a load needs them."""
    if not any(array.is_text for array in listing.arrays):
        return listing.arrays
    parts, _ = listing.parts(region)
    strings = {number: part for number, part in parts.items() if isinstance(part, Hdf5Part) and part.stored.is_text}
    dtypes = {number: part.dtype_of_longest(source) for number, part in strings.items()}
    return tuple(
        replace(array, spec=replace(array.spec, dtype=dtypes[number])) if number in dtypes else array
        for number, array in enumerate(listing.arrays)
    )


def _names_in(tree: hdf5_read.Tree, path: str) -> list[tuple[str, hdf5_read.Tree]]:
    """All groups and arrays of a tree by their names, with slashes between groups; "" is the tree itself.

    Raises:
        FileError: There are too many.
    """
    names = list(islice(_walk(tree, ""), _MOST_NAMES + 1))
    if len(names) > _MOST_NAMES:
        reason = f"has more than {_MOST_NAMES:,} names, as its groups link to each other. Give a dataset or a group."
        raise FileError(path, None, reason)
    return names


def _walk(tree: hdf5_read.Tree, name: str) -> Iterator[tuple[str, hdf5_read.Tree]]:
    yield name, tree
    for key, inner in tree.items() if isinstance(tree, dict) else ():
        yield from _walk(inner, f"{name}/{key}".lstrip("/"))


def _is_npy(source: Source, name: str | None) -> bool:
    """Whether it is a .npy file.

    Raises:
        FileError: It is one, but `name` is given; or it is an archive.
    """
    magic = source.read_bytes(0, min(source.stamp.nbytes, len(npy_format.MAGIC_PREFIX)))
    if magic.startswith(b"PK"):
        raise FileError(source.path, None, "is an archive, as .npz is. Load its arrays by numpy.load and share them.")
    if magic != npy_format.MAGIC_PREFIX:
        return False
    if name is not None:
        raise FileError(source.path, name, "is a .npy file, which has one array and no datasets. Leave dataset out.")
    return True


def _part(stored: Stored, region: Any) -> tuple[ContiguousPart | Hdf5Part, View]:
    """The part to read for a region, None for all; and what makes the result of it.

    Raises:
        ArgumentError: The region is not within the array.
    """
    axes, view = parse_region(() if region is None else region, stored.shape[: stored.ndim])
    if stored.offset is None:
        return Hdf5Part.of(stored, axes), view
    return ContiguousPart.of(stored, [*axes, *(Axis(range(n)) for n in stored.shape[stored.ndim :])]), view


def checked(path: Any, dataset: Any) -> tuple[str, str | None]:
    """`path` as a string, and `dataset` if it is a name or None.

    Raises:
        ArgumentError: One is neither.
    """
    if dataset is not None and not isinstance(dataset, str):
        raise ArgumentError(f"dataset {dataset!r} is not a name. Use a str such as 'group/name', or None for the file.")
    return checked_path(path), dataset
