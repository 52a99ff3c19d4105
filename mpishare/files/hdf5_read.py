"""What an HDF5 file says of a dataset: dtype, shape, layout; and the tree of a group. h5py is imported by now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import file_errors
from mpishare.files.source import Source
from mpishare.files.stored import Stored

Tree: TypeAlias = "int | Mapping[str, Tree]"
"""The number of a dataset, or what a group has by name."""

_SHOWN_NAMES = 8


def found_in(source: Source, name: str) -> Any:
    """The dataset or the group of that name.

    Raises:
        FileError: There is none, or it is neither.
    """
    import h5py

    with file_errors(source.path, name):
        if name not in source.hdf5:
            raise FileError(source.path, name, f"there is no such dataset or group; the file has {_names(source)}.")
        found = source.hdf5[name]
    if not isinstance(found, h5py.Dataset | h5py.Group):
        raise FileError(source.path, name, f"is a {type(found).__name__}, neither a dataset nor a group.")
    return found


def _names(source: Source) -> str:
    names = list(source.hdf5)
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "none"


def path_of(name: str) -> str:
    """The one name for all that mean the same. What h5py has for it is another one behind a link to another file."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def is_group(found: Any) -> bool:
    """Whether it is a group."""
    import h5py

    return isinstance(found, h5py.Group)


def tree_of(path: str, group: Any, datasets: dict[str, Any], above: tuple[Any, ...] = ()) -> Mapping[str, Tree]:
    """What the group at `path` has, by name; its datasets are added to `datasets` by path, and those of its groups.

    What soft and external links lead to is left out, and a group within itself.
    """
    import h5py

    found: dict[str, Tree] = {}
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        one, inner = group[name], path_of(f"{path}/{name}")
        if isinstance(one, h5py.Dataset):
            found[name] = len(datasets)
            datasets[inner] = one
        elif isinstance(one, h5py.Group) and one not in (*above, group):
            found[name] = tree_of(inner, one, datasets, (*above, group))
    return found


def stored_of(source: Source, name: str, dataset: Any) -> Stored:
    """What the file says of the dataset of that name.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
        FileError: The file ends before the dataset does.
    """
    from h5py import h5d

    if dataset.shape is None:
        raise SpecError(f"{place_in(source.path, name)} is empty, an HDF5 null dataspace: there is no array to load.")
    dtype = _dtype_of(place_in(source.path, name), dataset)
    is_text = dtype.hasobject
    base, inner = (np.dtype("S1"), ()) if is_text else (dtype.base, dtype.shape)
    spec = Spec.checked((*dataset.shape, *inner), base)
    plist = dataset.id.get_create_plist()
    layouts = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}
    layout = "external" if plist.get_external_count() else layouts[plist.get_layout()]
    offset = _offset_of(source, name, dataset, spec) if layout == "contiguous" and not is_text else None
    filters = tuple(_filter_name(plist.get_filter(number)) for number in range(plist.get_nfilters()))
    return Stored(name, spec, len(dataset.shape), layout, offset, dataset.chunks, filters, is_text)


def _filter_name(told: tuple[Any, ...]) -> str:
    code, _, _, name = told
    return name.decode(errors="replace") or str(code)


def _offset_of(source: Source, name: str, dataset: Any, spec: Spec) -> int | None:
    """Where in this file the bytes of a contiguous dataset begin; None where they are not those of the array."""
    from h5py import h5t

    offset: int | None = dataset.id.get_offset()
    is_here = dataset.file.filename == source.hdf5.filename  # and not behind a link to another file
    if offset is None or not is_here or dataset.id.get_storage_size() != spec.nbytes:
        return None  # nothing was written yet, so that there are fill values to read
    if not dataset.id.get_type().equal(h5t.py_create(dataset.dtype, logical=True)):
        return None
    source.check_end(offset + spec.nbytes, name)
    return offset


def _dtype_of(place: str, dataset: Any) -> np.dtype[Any]:
    """The dtype, without what h5py notes in it; that of objects where these are texts of any length."""
    import h5py

    try:
        dtype: np.dtype[Any] = dataset.dtype
    except (TypeError, ValueError) as error:
        raise SpecError(f"{place} cannot be loaded: {error}") from error
    text = h5py.check_string_dtype(dtype)
    if text is not None and text.length is None:
        return np.dtype(object)
    if dtype.hasobject:
        raise SpecError(f"{place} cannot be loaded: {_unfixed(dtype)}")
    try:
        plain = rebuild(describe(dtype))
        check_dtype(plain.base)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{place} cannot be loaded: {error}") from error
    return plain


def _unfixed(dtype: np.dtype[Any]) -> str:
    """What in a dtype has no fixed size."""
    import h5py

    for name in dtype.names or ():
        if dtype[name].hasobject:
            return f"column {name!r}: {_unfixed(dtype[name])}"
    if dtype.subdtype is not None:
        return _unfixed(dtype.base)
    if h5py.check_ref_dtype(dtype) is not None:
        return "its items are references into the file, which mean nothing without it."
    if h5py.check_string_dtype(dtype) is not None:
        return "it has texts of any length within its items. Store them with a fixed width."
    return "its items are arrays of any length. Store them one behind the other, with an array of where each begins."


def check_filters(source: Source, stored: Stored, dataset: Any) -> None:
    """Returns when this HDF5 library has all filters that a dataset went through.

    Raises:
        FileError: It lacks one.
    """
    from h5py import h5z

    plist = dataset.id.get_create_plist()
    for number, name in enumerate(stored.filters):
        if not h5z.filter_avail(plist.get_filter(number)[0]):
            reason = f"needs the filter {name!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."
            raise FileError(source.path, stored.name, reason)


def attributes_of(found: Any) -> dict[str, Any]:
    """The attributes of a dataset or a group, as NumPy's and Python's own objects."""
    return {name: _plain(found.attrs[name], found.file) for name in found.attrs}


def _plain(value: Any, file: Any) -> Any:
    """`value` without h5py's classes: the names of what references lead to, and None for what is empty."""
    import h5py

    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, h5py.Reference):
        return file[value].name if value else None
    if isinstance(value, np.void) and value.dtype.hasobject:
        return tuple(_plain(value[name], file) for name in value.dtype.names or ())
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_plain(one, file) for one in value]
    if isinstance(value, np.ndarray):
        return np.array(value, rebuild(describe(value.dtype)))
    return value
