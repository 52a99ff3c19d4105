"""What an HDF5 file says of its datasets and groups, by h5py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError
from mpishare.files.errors import file_errors
from mpishare.files.parts import Stored
from mpishare.files.source import Source, h5py

_SHOWN_NAMES = 8

_LAYOUTS = ("compact", "contiguous", "chunked", "virtual")
"""By the numbers of HDF5's H5D_layout_t."""


def members_of(source: Source, name: str) -> dict[str, Any]:
    """The object of that name, by "", and all that is in it if it is a group, by relative name, as h5py's objects.

    It leaves out soft and external links, named types, and a group within itself.

    Raises:
        FileError: There is no dataset and no group of that name.
    """
    with file_errors(source.path, name):
        if name not in source.hdf5:
            raise FileError(source.path, name, f"there is no such dataset or group; the file has {_names(source)}.")
        member = source.hdf5[name]
        if not isinstance(member, h5py.Dataset | h5py.Group):
            raise FileError(source.path, name, f"is a {type(member).__name__}, neither a dataset nor a group.")
        return dict(_walk(member, "", ()))


def _walk(member: Any, name: str, parents: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    yield name, member
    for key in () if is_dataset(member) else member:
        if isinstance(member.get(key, getlink=True), h5py.HardLink):
            inner = member[key]
            if isinstance(inner, h5py.Dataset | h5py.Group) and inner not in (*parents, member):
                yield from _walk(inner, f"{name}/{key}".lstrip("/"), (*parents, member))


def _names(source: Source) -> str:
    names = list(source.hdf5)
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "none"


def is_dataset(member: Any) -> bool:
    """Whether one of h5py's objects is a dataset, not a group."""
    return isinstance(member, h5py.Dataset)


def path_of(name: str) -> str:
    """The canonical form of a name. The `name` of h5py's object is another one behind a link to another file."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def stored_as(source: Source, name: str, dataset: Any) -> Stored:
    """What the file says of the dataset of that name.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
        FileError: The file ends before the dataset does.
    """
    with file_errors(source.path, name):
        if dataset.shape is None:
            raise SpecError("it is an HDF5 null dataspace, which has no array to load.")
        dtype = _dtype_of(dataset)
        is_string = dtype.hasobject
        base, inner = (np.dtype("S1"), ()) if is_string else (dtype.base, dtype.shape)
        spec = Spec.checked((*dataset.shape, *inner), base)
        plist = dataset.id.get_create_plist()
        layout = "external" if plist.get_external_count() else _LAYOUTS[plist.get_layout()]
        offset = _offset_of(source, name, dataset, spec) if layout == "contiguous" and not is_string else None
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        names = tuple(filter_name.decode(errors="replace") or str(code) for code, _, _, filter_name in filters)
        return Stored(name, spec, len(dataset.shape), layout, offset, dataset.chunks, names, is_string)


def _offset_of(source: Source, name: str, dataset: Any, spec: Spec) -> int | None:
    """Where in this file the bytes of a contiguous dataset begin; None if they are not those of the array."""
    offset: int | None = dataset.id.get_offset()
    is_written = dataset.id.get_storage_size() == spec.nbytes  # else h5py returns fill values
    is_linked = dataset.file.filename != source.hdf5.filename  # from another file
    is_converted = not dataset.id.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True))
    if offset is None or not is_written or is_linked or is_converted:
        return None
    source.check_end(offset + spec.nbytes, name)
    return offset


def _dtype_of(dataset: Any) -> np.dtype[Any]:
    """The dtype without h5py's metadata; that of objects for strings of variable length.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
    """
    try:
        dtype: np.dtype[Any] = dataset.dtype
        string = h5py.check_string_dtype(dtype)
        if string is not None and string.length is None:
            return np.dtype(object)
        if dtype.hasobject:
            raise TypeError(_variable_size(dtype))
        plain = rebuild(describe(dtype))
        check_dtype(plain.base)
    except (TypeError, ValueError) as error:
        raise SpecError(f"it cannot be loaded: {error}") from error
    return plain


def _variable_size(dtype: np.dtype[Any]) -> str:
    """What in a dtype has no fixed size."""
    for name in dtype.names or ():
        if dtype[name].hasobject:
            return f"column {name!r}: {_variable_size(dtype[name])}"
    if dtype.subdtype is not None:
        return _variable_size(dtype.base)
    if h5py.check_ref_dtype(dtype) is not None:
        return "its items are references into the file, which mean nothing without it."
    if h5py.check_string_dtype(dtype) is not None:
        return "it has strings of variable length within its items. Store them with a fixed width."
    return "its items are arrays of variable length. Store them in one array, and in another where each begins."


def check_filters(source: Source, stored: Stored, dataset: Any) -> None:
    """Returns if the HDF5 library has all filters of a dataset.

    Raises:
        FileError: It lacks one.
    """
    plist = dataset.id.get_create_plist()
    for number, name in enumerate(stored.filters):
        if not h5py.h5z.filter_avail(plist.get_filter(number)[0]):
            reason = f"needs the filter {name!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."
            raise FileError(source.path, stored.name, reason)
