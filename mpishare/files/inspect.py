"""What a file stores, and which parts of it a call loads: found on one rank, sent to the others as plain data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.lib import format as npy_format

from mpishare.errors import ArgumentError, FileError
from mpishare.files import hdf5_read, npy
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_part import Hdf5Part
from mpishare.files.hdf5_read import Tree
from mpishare.files.parts import ContiguousPart, Part, Stored
from mpishare.files.region import Region
from mpishare.files.source import Source, Stamp


@dataclass(frozen=True)
class Contents:
    """What a call loads from a file.

    Attributes:
        path: The absolute path of the file.
        stamp: The stamp of the file.
        parts: The arrays.
        tree: The number of the one array, or those of a group by name.
        attributes: Those of the dataset; or, of a group, those of each of its members by name, its own under "".
    """

    path: str
    stamp: Stamp
    parts: tuple[Part, ...]
    tree: Tree
    attributes: Mapping[str, Any]

    @property
    def description(self) -> str:
        """What must be the same on all nodes."""
        arrays = "; ".join(f"{part.name or 'array'}: {part.spec}" for part in self.parts)
        return f"{arrays or 'no arrays'} {self.tree}"


def stored(path: str | os.PathLike[str], dataset: str | None = None) -> dict[str, Stored]:
    """Returns what a file stores, without reading it: dtype, shape, bytes and layout of each array.

    Args:
        path: A `.npy` or an HDF5 file.
        dataset: A dataset or a group of an HDF5 file; None for the whole file.

    Returns:
        A `Stored` for each array, by the name of its dataset; by "" for the array of a `.npy` file. Strings of variable
        length count as one byte each, as their length is not known before they are read.

    Raises:
        ArgumentError: `path` is not a path, or `dataset` is not a string.
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: A dataset cannot be loaded; the message names it and the reason.
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
    name = checked_name(dataset)
    with Source(checked_path(path)) as source:
        if _is_npy(source, name):
            return {"": npy.stored_in(source)}
        _, _, datasets = _members(source, name)
        return {inner: hdf5_read.stored_as(source, inner, member) for inner, member in datasets.items()}


def inspect_file(source: Source, name: str | None, region: Any, *, attributes: bool) -> Contents:
    """What a call loads.

    Args:
        source: The file.
        name: A dataset or a group; None for the whole file.
        region: An index into one array; None for all of it.
        attributes: Whether to read the attributes as well.

    Raises:
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: A dataset cannot be loaded.
        ArgumentError: The region is not within the array, or `name` is a group.
    """
    path = os.path.abspath(source.path)  # noqa: PTH100 - does not resolve links
    if _is_npy(source, name):
        return Contents(path, source.stamp, (_part(source, npy.stored_in(source), region),), 0, {})
    member, tree, datasets = _members(source, name)
    if region is not None and hdf5_read.is_group(member):
        raise ArgumentError(f"region {region!r} is of an array, but {name or '/'!r} of {path} is a group.")
    parts = []
    for inner, dataset in datasets.items():
        array = hdf5_read.stored_as(source, inner, dataset)
        hdf5_read.check_filters(source, array, dataset)
        parts.append(_part(source, array, region))
    with file_errors(source.path, name):
        named = dict(_attributes(member, tree, "")) if attributes else {}
    return Contents(path, source.stamp, tuple(parts), tree, named.get("", {}) if isinstance(tree, int) else named)


def _members(source: Source, name: str | None) -> tuple[Any, Tree, dict[str, Any]]:
    """The object of that name, its tree, and its datasets by path: the object itself, or those in the group."""
    member, path = hdf5_read.open_object(source, name or "/"), hdf5_read.path_of(name or "/")
    if not hdf5_read.is_group(member):
        return member, 0, {path: member}
    datasets: dict[str, Any] = {}
    with file_errors(source.path, name):
        return member, hdf5_read.tree_of(path, member, datasets), datasets


def _attributes(member: Any, tree: Tree, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The attributes of an object and of each of its members, by name."""
    yield name, hdf5_read.attributes_of(member)
    if not isinstance(tree, int):
        for key, below in tree.items():
            yield from _attributes(member[key], below, f"{name}/{key}".lstrip("/"))


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


def _part(source: Source, stored: Stored, region: Any) -> Part:
    selected = Region.of(() if region is None else region, stored.shape[: stored.ndim])
    if stored.offset is None:
        return Hdf5Part.of(source, stored, selected)
    return ContiguousPart.of(stored, selected.with_axes(stored.shape[stored.ndim :]))


def checked_path(path: Any) -> str:
    """`path` as a string.

    Raises:
        ArgumentError: It is not a path.
    """
    try:
        return os.fsdecode(path)
    except TypeError as error:
        raise ArgumentError(f"path {path!r} is not a path. Use a str or a pathlib.Path.") from error


def checked_name(dataset: Any) -> str | None:
    """`dataset` if it is a name or None.

    Raises:
        ArgumentError: It is not.
    """
    if dataset is None or isinstance(dataset, str):
        return dataset
    raise ArgumentError(f"dataset {dataset!r} is not a name. Use a str such as 'group/name', or None for the file.")
