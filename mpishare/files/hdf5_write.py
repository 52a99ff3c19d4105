"""Datasets in an HDF5 file whose bytes are contiguous, so that any rank may write them at their place."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError, SpecError
from mpishare.files.atomic_file import write_exactly
from mpishare.files.errors import FOREIGN_ERRORS, file_errors, h5py


def lay_out(
    fd: int,
    path: Path,
    specs: Mapping[str, Spec],
    *,
    adds: bool = False,
    small: Mapping[str, NDArray[Any]] | None = None,
    user_block_bytes: int = 0,
    any_dtype: bool = False,
) -> list[int]:
    """Makes datasets in a file, in place of datasets of the same names.

    Args:
        fd: The open file.
        path: The file to name in errors.
        specs: The datasets, whose bytes are written later.
        adds: Whether the file is an HDF5 file whose other datasets stay; else it is made anew.
        small: Datasets that are written at once.
        user_block_bytes: Bytes to leave free at the beginning of a new file: 0, or a power of two from 512 on.
        any_dtype: Whether an array that HDF5 cannot describe becomes a dataset of its bytes.

    Returns:
        The offset in the file of each dataset of `specs`, in bytes; 0 for one without bytes.

    Raises:
        OSError, RuntimeError, ValueError, KeyError: The file is not an HDF5 file, or cannot be written.
        FileError: A dataset cannot be made.
        SpecError: A dtype cannot be stored.
        ArgumentError: A name names a group, or leads to another file or to another dataset of `specs`.
    """
    opened = _Writing(fd, "r+", closefd=False)
    with h5py.File(opened, "r+" if adds else "w", userblock_size=user_block_bytes or None) as file:
        made = {name: _create(file, path, name, spec, any_dtype) for name, spec in specs.items()}
        name_of = {dataset: name for name, dataset in made.items()}
        for name in made:
            if name_of.get(file[name].id) != name:
                raise ArgumentError(f"{name!r} and another name lead to one dataset of {path}. Give each its own.")
        offsets = [dataset.get_offset() or 0 for dataset in made.values()]
        for name, array in (small or {}).items():
            file.create_dataset(name, data=array, track_times=False)
    if opened.error is not None:
        raise opened.error
    return offsets


def _create(file: Any, path: Path, name: str, spec: Spec, any_dtype: bool) -> Any:
    """A dataset that has its place in the file at once, and whose bytes HDF5 does not write.

    A dataset that has the name and a place for such an array stays, with all that belongs to it or refers to it. Any
    other gives its attributes and all its names to a new one.
    """
    _check_links(file, name)
    old = file.get(name)
    names, attributes = [name], []
    if old is not None:
        if not isinstance(old, h5py.Dataset):
            raise ArgumentError(f"{name!r} is a {type(old).__name__.lower()}. Give the dataset another name.")
        if _has_place(old.id, spec):
            return old.id
        _check_scales(old, name)
        names = _names(file, name)
        attributes = [(key, *_contents(old.attrs.get_id(key))) for key in old.attrs]
        for each in names:
            del file[each]
        del old  # and so its bytes, before the new ones get a place
    with file_errors(path, name, "it was not saved"):
        made = None
        with suppress(*(FOREIGN_ERRORS if any_dtype else ())):
            made = _without_name(file, spec)
        made = made or _without_name(file, Spec(np.dtype("u1"), (spec.nbytes,)))
        for each in names:
            file[each] = h5py.Dataset(made)
        for key, values, dtype, space in attributes:
            attribute = h5py.h5a.create(made, key.encode(errors="surrogateescape"), dtype, space)
            if values.size:
                attribute.write(values, h5py.h5t.py_create(attribute.dtype))
    return made


def _contents(attribute: Any) -> tuple[NDArray[Any], Any, Any]:
    """The items of an attribute, whose text stays bytes in any encoding; its type; and its dataspace."""
    space = attribute.get_space()
    values = np.empty(space.get_simple_extent_npoints(), attribute.dtype)
    if values.size:
        attribute.read(values, h5py.h5t.py_create(attribute.dtype))
    return values, attribute.get_type(), space


def _without_name(file: Any, spec: Spec) -> Any:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    shape = h5py.h5s.create_simple(spec.shape)  # of a 0-d array a scalar
    return h5py.h5d.create(file.id, None, stored_type(spec), shape, creation)


def _has_place(dataset: Any, spec: Spec) -> bool:
    """Whether a dataset has the shape, the type and a place in the file for an array."""
    is_there = dataset.get_offset() is not None or not spec.nbytes
    is_contiguous = is_there and dataset.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    return bool(is_contiguous and dataset.shape == spec.shape and dataset.get_type() == stored_type(spec))


def _names(file: Any, name: str) -> list[str]:
    """All names of a dataset: the hard links to it."""
    info = h5py.h5o.get_info(file[name].id)
    names: list[str] = []

    def note(other: bytes, link: Any) -> None:
        if link.type == h5py.h5l.TYPE_HARD and link.u == info.addr:
            names.append(other.decode(errors="surrogateescape"))

    if info.rc > 1:
        file.id.links.visit(note, info=True)
    return names or [name]


def _check_scales(dataset: Any, name: str) -> None:
    """Checks that a dataset that is to be replaced has no dimension scales and is none: both refer to its place.

    Raises:
        ArgumentError: It has or is one.
    """
    if {"DIMENSION_LIST", "REFERENCE_LIST"} & set(dataset.attrs):
        raise ArgumentError(
            f"{name!r} has dimension scales, or is one, which refer to it by its place. It can be filled anew, where "
            f"it is contiguous, by an array of shape {dataset.shape} and dtype {dataset.dtype}, but not replaced. "
            "Detach the scales first (h5py: dims, detach_scale), or give another name."
        )


def _check_links(file: Any, name: str) -> None:
    """Checks that neither a dataset nor its groups are links, which may lead to another file.

    Raises:
        ArgumentError: One is.
    """
    for path in accumulate(name.split("/"), "{}/{}".format):
        if isinstance(file.get(path, getlink=True), h5py.SoftLink | h5py.ExternalLink):
            raise ArgumentError(f"{path!r} is a link. Save the dataset under the name to which it leads.")


def stored_type(spec: Spec) -> Any:
    """The HDF5 type of the same bytes, which h5py reads as the same dtype.

    Raises:
        SpecError: There is none.
        BackendError: h5py is not installed.
    """
    try:
        stored = h5py.h5t.py_create(_with_opaque_times(spec.dtype), logical=True)
        if stored.get_size() != spec.dtype.itemsize or stored.dtype != spec.dtype:
            raise TypeError(f"it is read as {stored.dtype}")
    except (TypeError, ValueError, RuntimeError) as error:
        cure = f"Use its bytes, e.g. .view('V{spec.dtype.itemsize}')."
        if spec.dtype.kind == "U":
            cure = "Use bytes, e.g. numpy.char.encode(…)."
        raise SpecError(f"dtype {spec.dtype} cannot be stored in HDF5: {error}. {cure}") from error
    return stored


def _with_opaque_times(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype with all its dates and times marked as h5py wants them, for HDF5 has no type for them.

    Source:
        The h5py reference, "Storing other types as opaque data".
    """
    if dtype.kind in "mM":
        opaque: np.dtype[Any] = h5py.opaque_dtype(dtype)
        return opaque
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_with_opaque_times(base), shape))
    if dtype.names is None or dtype.fields is None:
        return dtype
    columns = [dtype.fields[name] for name in dtype.names]
    formats, offsets = [_with_opaque_times(column[0]) for column in columns], [column[1] for column in columns]
    return np.dtype({"names": dtype.names, "formats": formats, "offsets": offsets, "itemsize": dtype.itemsize})


class _Writing(io.FileIO):
    """An open file, none of whose writes fails for HDF5: the first error waits in `error`.

    HDF5 cannot be closed when one of its own writes fails: it keeps the file, tries again when the process ends, and
    may end in a segmentation fault (seen with HDF5 2.0.0).

    Source:
        The h5py reference, "Python file-like objects".
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """See `io.RawIOBase.write`."""
        block = memoryview(data)
        try:
            write_exactly(self.fileno(), self.tell(), block)
        except OSError as error:
            self.error = self.error or error
        self.seek(block.nbytes, os.SEEK_CUR)
        return block.nbytes

    def truncate(self, size: int | None = None) -> int:
        """See `io.IOBase.truncate`."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0
