"""What a file stores, and which parts of it a call loads, as plain data that other ranks can be sent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from numpy.lib import format as npy_format

from mpishare.errors import ArgumentError, FileError, checked_path
from mpishare.files import hdf5_read, npy
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_attributes import attributes_of
from mpishare.files.hdf5_part import Hdf5Part
from mpishare.files.parts import ContiguousPart, Stored
from mpishare.files.region import parse_region
from mpishare.files.source import Source, Stamp


class Contents(NamedTuple):
    """What a call loads from a file.

    Attributes:
        path: The absolute path of the file.
        stamp: The stamp of the file.
        members: The arrays to read by name, with slashes between groups; None for a group. "" is the object itself.
        view: The index that makes the result of the one array; `...` for a group.
        attributes: Those of the dataset; or, of a group, those of each of its members by name, its own under "".
        left_out: What of a group, and which attributes, cannot be loaded, each with the reason.
    """

    path: str
    stamp: Stamp
    members: Mapping[str, ContiguousPart | Hdf5Part | None]
    view: Any
    attributes: Mapping[str, Any]
    left_out: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[ContiguousPart | Hdf5Part, ...]:
        """The arrays."""
        return tuple(part for part in self.members.values() if part is not None)

    @property
    def description(self) -> str:
        """What must be the same on all nodes."""
        return "; ".join(f"{name or 'array'}: {part and part.spec}" for name, part in self.members.items())


def stored(path: str | os.PathLike[str], dataset: str | None = None) -> dict[str, Stored]:
    """Returns what a file stores, without reading it: dtype, shape, bytes and layout of each array.

    Args:
        path: A `.npy` or an HDF5 file.
        dataset: A dataset or a group of an HDF5 file; None for the whole file.

    Returns:
        A `Stored` for each array, by the name of its dataset; by "" for the array of a `.npy` file. Strings of variable
        length count as one byte each, as their length is not known before they are read. A dataset that cannot be
        loaded has a `reason`.

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
        members = hdf5_read.members_of(source, name or "/")
        return {str(array.name): array for _, array in _arrays(source, name, members)}


def inspect_file(source: Source, name: str | None, region: Any, *, attributes: bool) -> Contents:
    """What a call loads.

    Args:
        source: The file.
        name: A dataset or a group; None for the whole file.
        region: An index into one array; None for all of it.
        attributes: Whether to read the attributes as well.

    Raises:
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: The dataset cannot be loaded. Of a group it is left out.
        ArgumentError: The region is not within the array, or `name` is a group.
    """
    path = os.path.abspath(source.path)  # noqa: PTH100 - does not resolve links
    if _is_npy(source, name):
        part, view = _part(source, npy.stored_in(source), region)
        return Contents(path, source.stamp, {"": part}, view, {})
    members = hdf5_read.members_of(source, name or "/")
    if region is not None and not hdf5_read.is_dataset(members[""]):
        raise ArgumentError(f"region {region!r} is of an array, but {name or '/'!r} of {path} is a group.")
    parts: dict[str, ContiguousPart | Hdf5Part | None] = dict.fromkeys(members)
    left_out: list[str] = []
    for inner, array in _arrays(source, name, members):
        if array.reason and inner:
            left_out.append(f"dataset {array.name!r}: {array.reason}")
            del parts[inner]
        else:
            hdf5_read.check_loadable(source, array)
            hdf5_read.check_chunks(source, str(array.name), members[inner])
            parts[inner], view = _part(source, array, region)
    named: dict[str, dict[str, Any]] = {}
    if attributes:
        with file_errors(source.path, name):
            named = attributes_of({inner: members[inner] for inner in parts}, left_out)
    is_group = parts[""] is None
    result = named if is_group else named.get("", {})
    return Contents(path, source.stamp, parts, ... if is_group else view, result, tuple(left_out))


def _arrays(source: Source, name: str | None, members: Mapping[str, Any]) -> Iterator[tuple[str, Stored]]:
    """What the file says of each dataset, by relative name."""
    for inner, member in members.items():
        if hdf5_read.is_dataset(member):
            yield inner, hdf5_read.stored_as(source, hdf5_read.path_of(f"{name or ''}/{inner}"), member)


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


def _part(source: Source, stored: Stored, region: Any) -> tuple[ContiguousPart | Hdf5Part, Any]:
    """The part to read for a region, None for all; and the index that makes the result of it."""
    axes, view = parse_region(() if region is None else region, stored.shape[: stored.ndim])
    if stored.offset is None:
        return Hdf5Part.of(source, stored, axes), view
    return ContiguousPart.of(stored, [*axes, *map(range, stored.shape[stored.ndim :])]), view


def checked(path: Any, dataset: Any) -> tuple[str, str | None]:
    """`path` as a string, and `dataset` if it is a name or None.

    Raises:
        ArgumentError: One is neither.
    """
    if dataset is not None and not isinstance(dataset, str):
        raise ArgumentError(f"dataset {dataset!r} is not a name. Use a str such as 'group/name', or None for the file.")
    return checked_path(path), dataset
