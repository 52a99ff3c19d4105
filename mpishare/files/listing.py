"""What a file stores, and what of it a call loads, as plain data that other ranks can be sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from mpishare.arrays.region import View, parse_region
from mpishare.errors import ArgumentError, FileError, checked_path
from mpishare.files.hdf5_read import Hdf5File, check_loadable, path_of
from mpishare.files.input_file import InputFile, Stamp
from mpishare.files.npy import NpyFile
from mpishare.files.stored import Stored, Tree
from mpishare.files.tiles import Selection

FormatReader: TypeAlias = NpyFile | Hdf5File

_MOST_NAMES = 1_000_000
"""Groups that link to each other can give a file of some KiB more names than any memory holds."""


class FileListing(NamedTuple):
    """What a call loads of a file.

    Attributes:
        path: The absolute path of the file.
        format: What reads it.
        stamps: The stamps of the file and of those behind its links, by path.
        arrays: The arrays, each once.
        tree: Their numbers by name.
        attributes: Those of the object under "", and those of each member of a group by its name.
        left_out: What cannot be loaded, each with the reason.
    """

    path: str
    format: type[FormatReader]
    stamps: Mapping[str, Stamp]
    arrays: tuple[Stored, ...]
    tree: Tree
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

    def reader(self) -> FormatReader:
        """What reads the file on a rank that has not inspected it. It is opened at the first read."""
        return self.format(InputFile(self.path, self.stamps), self.stamps)

    def selections(self, region: Any) -> tuple[dict[int, Selection], View]:
        """What to read of each array, by its number; and what makes the result of the one array.

        Args:
            region: An index into one array; None for all of it.

        Raises:
            ArgumentError: The region is not within the array, or is of a group.
        """
        if self.is_group and region is not None:
            raise ArgumentError(f"region is for one array, but a group of {self.path} was given. Give a dataset in it.")
        made: dict[int, Selection] = {}
        view: View = np.asarray
        for number, array in enumerate(self.arrays):
            if not array.reason:
                axes, view = parse_region(() if region is None else region, array.shape[: array.ndim])
                made[number] = Selection(array, tuple(axes))
        return made, view


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
    path, name = checked(path, dataset)
    with InputFile(path) as file:
        listing = reader_of(file).listing(name, attributes=False)
    if listing.arrays and listing.arrays[0].name is None:
        return {"": listing.arrays[0]}
    return {
        path_of(f"{name or ''}/{inner}"): listing.arrays[tree]
        for inner, tree in _names_in(listing.tree, path)
        if not isinstance(tree, dict)
    }


def inspect_file(reader: FormatReader, name: str | None, region: Any, *, attributes: bool) -> FileListing:
    """What a call loads.

    Args:
        reader: What reads the file.
        name: A dataset or a group; None for the whole file.
        region: An index into one array; None for all of it. Strings are as wide as the longest that it selects.
        attributes: Whether to read the attributes as well.

    Raises:
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: The dataset cannot be loaded. Of a group it is left out.
    """
    found = reader.listing(name, attributes=attributes)
    if not isinstance(found.tree, dict):
        check_loadable(reader.file.path, found.arrays[0])
    path = os.path.abspath(reader.file.path)  # noqa: PTH100 - does not resolve links
    left_out = [
        f"{'link' if array.layout == 'link' else 'dataset'} {array.name!r}: {reason}"
        for array in found.arrays
        for reason in (array.reason, *array.left_out)
        if reason
    ]
    names = _names_in(found.tree, path) if attributes else []
    keys = ((inner, id(tree) if isinstance(tree, dict) else tree) for inner, tree in names)
    named = {inner: found.attributes[key] for inner, key in keys if key in found.attributes}
    left_out += found.left_out
    listing = FileListing(path, type(reader), reader.stamps, tuple(found.arrays), found.tree, named, tuple(left_out))
    if isinstance(reader, Hdf5File) and any(array.is_text for array in found.arrays):
        with suppress(ArgumentError):  # which every rank finds by itself
            listing = _with_widths(reader, listing, region)
    return listing


def _with_widths(reader: Hdf5File, listing: FileListing, region: Any) -> FileListing:
    """The listing, with strings as wide as a load needs them."""
    arrays = list(listing.arrays)
    for number, selection in listing.selections(region)[0].items():
        if selection.stored.is_text:
            spec = replace(arrays[number].spec, dtype=reader.dtype_of_longest(selection))
            arrays[number] = replace(arrays[number], spec=spec)
    return listing._replace(arrays=tuple(arrays))


def _names_in(tree: Tree, path: str) -> list[tuple[str, Tree]]:
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


def reader_of(file: InputFile) -> FormatReader:
    """What reads the format of a file, by its first bytes.

    Raises:
        FileError: It cannot be opened, or is an archive.
    """
    magic = file.read_bytes(0, min(file.stamp.nbytes, len(npy_format.MAGIC_PREFIX)))
    if magic.startswith(b"PK"):
        raise FileError(file.path, None, "is an archive, as .npz is. Load its arrays by numpy.load and share them.")
    return NpyFile(file) if magic == npy_format.MAGIC_PREFIX else Hdf5File(file)


def checked(path: Any, dataset: Any) -> tuple[str, str | None]:
    """`path` as a string, and `dataset` if it is a name or None.

    Raises:
        ArgumentError: One is neither.
    """
    if dataset is not None and not isinstance(dataset, str):
        raise ArgumentError(f"dataset {dataset!r} is not a name. Use a str such as 'group/name', or None for the file.")
    return checked_path(path), dataset
