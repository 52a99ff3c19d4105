"""What a file has: looked at on one rank, told to the others as plain data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError, FileError
from mpishare.files import hdf5_read, npy
from mpishare.files.contiguous_part import Flat
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_part import InHdf5
from mpishare.files.hdf5_read import Tree
from mpishare.files.pieces import Box, Cut
from mpishare.files.region import Region
from mpishare.files.source import Source, Stamp
from mpishare.files.stored import Stored


class Part(Protocol):
    """An array in a file, or a part of one, that is to be loaded. It can be pickled."""

    @property
    def name(self) -> str | None:
        """Its dataset, None where the file is one array."""
        ...

    @property
    def spec(self) -> Spec:
        """What a load of it gives."""
        ...

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Its axes in the order of memory, and where they may be cut into pieces."""
        ...

    @property
    def cut_bytes(self) -> int:
        """The bytes of one item of these axes."""
        ...

    def read(self, source: Source, box: Box, block: Block) -> None:
        """Reads the items of `box` to their place in `block`, which is that of the whole part."""
        ...


@dataclass(frozen=True)
class Contents:
    """What is to be loaded from a file.

    Attributes:
        path: The file, by a name that holds whatever the folder of a process is.
        stamp: What tells that it has not been changed.
        parts: The arrays.
        tree: The number of the one array, or those of a group by name.
        attributes: Those of the dataset; or, of a group, those of each of its members by name, its own under "".
    """

    path: str
    stamp: Stamp
    parts: tuple[Part, ...]
    tree: Tree
    attributes: Mapping[str, Any]

    def said(self) -> str:
        """What must be alike on all nodes, in words."""
        arrays = "; ".join(f"{part.name or 'array'}: {part.spec}" for part in self.parts)
        return f"{arrays or 'no arrays'} {self.tree}"


def stored(path: str | os.PathLike[str], dataset: str | None = None) -> dict[str, Stored]:
    """Tells what a file has, without reading it: dtype, shape, bytes and layout of each array.

    Args:
        path: A `.npy` or an HDF5 file.
        dataset: A dataset or a group of an HDF5 file; None for all that is in it.

    Returns:
        For each array its `Stored`, by the name of its dataset; "" for that of a `.npy` file. Texts of any length
        count as one byte each, as no more is known before they are read.

    Raises:
        ArgumentError: `path` or `dataset` is no text.
        FileError: There is no such file or dataset, or it cannot be understood.
        SpecError: A dataset cannot be loaded; it names it, and says why.
        BackendError: It is an HDF5 file, and h5py is not installed.

    Collective:
        No, local.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.zeros((2, 3)))
        ...     found = ms.stored(f"{folder}/grid.npy")[""]
        >>> found.shape, found.nbytes, found.layout
        ((2, 3), 48, 'npy')
    """
    name = checked_name(dataset)
    with Source(checked_path(path)) as source:
        if _is_npy(source, name):
            return {"": npy.stored_in(source)}
        found = hdf5_read.found_in(source, name or "/")
        inner = hdf5_read.path_of(name or "/")
        datasets = {inner: found}
        if hdf5_read.is_group(found):
            datasets.clear()
            with file_errors(source.path, name):
                hdf5_read.tree_of(inner, found, datasets)
        return {at: hdf5_read.stored_of(source, at, one) for at, one in datasets.items()}


def look(source: Source, name: str | None, region: Any, *, attributes: bool) -> Contents:
    """What there is to load.

    Args:
        source: The file.
        name: A dataset or a group, None for all of the file.
        region: An index, None for all.
        attributes: Whether they are wanted too.

    Raises:
        FileError: There is no such file or dataset, or it cannot be understood.
        SpecError: A dataset cannot be loaded.
        ArgumentError: The region is not within the array, or what there is is a group.
    """
    path = os.path.abspath(source.path)  # noqa: PTH100 - the name as given, links and all
    if _is_npy(source, name):
        part = _part(source, npy.stored_in(source), region)
        return Contents(path, source.stamp, (part,), 0, {})
    found = hdf5_read.found_in(source, name or "/")
    stamp, inner = source.stamp, hdf5_read.path_of(name or "/")
    with file_errors(source.path, name):
        if not hdf5_read.is_group(found):
            kept = hdf5_read.attributes_of(found) if attributes else {}
            return Contents(path, stamp, (_dataset(source, inner, found, region),), 0, kept)
        if region is not None:
            raise ArgumentError(f"region {region!r} is of an array, but {name or '/'!r} of {path} is a group.")
        datasets: dict[str, Any] = {}
        tree = hdf5_read.tree_of(inner, found, datasets)
        parts = tuple(_dataset(source, at, one, None) for at, one in datasets.items())
        return Contents(path, stamp, parts, tree, dict(_attributes(found, tree, "")) if attributes else {})


def _attributes(group: Any, tree: Mapping[str, Tree], name: str) -> Iterator[tuple[str, Any]]:
    """Those of a group and of each of its members, by name."""
    yield name, hdf5_read.attributes_of(group)
    for key, below in tree.items():
        inner = f"{name}/{key}".lstrip("/")
        if isinstance(below, int):
            yield inner, hdf5_read.attributes_of(group[key])
        else:
            yield from _attributes(group[key], below, inner)


def _is_npy(source: Source, name: str | None) -> bool:
    """Whether the file is one array; else it is for h5py to open.

    Raises:
        FileError: It is, and a dataset is asked for; or it is neither.
    """
    head = bytearray(min(source.stamp.nbytes, len(npy.MAGIC)))
    source.read(0, memoryview(head))
    if bytes(head) != npy.MAGIC:
        if head.startswith(b"PK"):
            raise FileError(
                source.path, None, "is an archive, as .npz is. Load its arrays by numpy.load and share them."
            )
        return False
    if name is not None:
        raise FileError(source.path, name, "is a .npy file, which has one array and no datasets. Leave dataset out.")
    return True


def _dataset(source: Source, name: str, dataset: Any, region: Any) -> Part:
    found = hdf5_read.stored_of(source, name, dataset)
    hdf5_read.check_filters(source, found, dataset)
    return _part(source, found, region)


def _part(source: Source, found: Stored, region: Any) -> Part:
    axes = found.shape[: found.ndim]
    chosen = Region.whole(axes) if region is None else Region.of(region, axes)
    if found.offset is None:
        return InHdf5.of(source, found, chosen)
    return Flat.of(found, chosen.with_all_of(found.shape[found.ndim :]))


def checked_path(path: Any) -> str:
    """The name of a file as a text.

    Raises:
        ArgumentError: It is none.
    """
    try:
        return os.fsdecode(path)
    except TypeError as error:
        raise ArgumentError(f"path {path!r} is no name of a file. Use a text or a pathlib.Path.") from error


def checked_name(dataset: Any) -> str | None:
    """The name of a dataset.

    Raises:
        ArgumentError: It is no text.
    """
    if dataset is None or isinstance(dataset, str):
        return dataset
    raise ArgumentError(
        f"dataset {dataset!r} is no name. Use a text such as 'group/name', or None for all of the file."
    )
