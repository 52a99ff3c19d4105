"""What an HDF5 file says of its datasets and groups, by h5py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import file_errors
from mpishare.files.parts import Stored
from mpishare.files.source import Source, h5py

_SHOWN_NAMES = 8

_LAYOUTS = ("compact", "contiguous", "chunked", "virtual")
"""By the numbers of HDF5's H5D_layout_t."""

_CHECKSUM_BYTES = 4
"""Of the filter fletcher32, at the end of a chunk."""

_NO_DTYPE = np.dtype("V")
"""The dtype of items that no NumPy array can have."""

_MISSING_FILTER = "needs the filter {!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."


def members_of(source: Source, name: str) -> dict[str, Any]:
    """The object of that name, by "", and all that is in it if it is a group, by relative name, as h5py's objects.

    It leaves out soft and external links, named types, and a group within itself.

    Raises:
        FileError: There is no dataset and no group of that name.
    """
    with file_errors(source.path, name):
        if name not in source.hdf5:
            raise FileError(source.path, name, f"there is no such dataset or group; {_as_far_as(source, name)}.")
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


def _as_far_as(source: Source, name: str) -> str:
    """What the file has as far along that name as it goes: the members of a group, or a dataset."""
    member, path = source.hdf5, ""
    for part in path_of(name).split("/")[1:]:
        if not isinstance(member, h5py.Group) or part not in member:
            break
        member, path = member[part], f"{path}/{part}"
    if not isinstance(member, h5py.Group):
        return f"{path!r} is a {type(member).__name__.lower()}"
    return f"{f'the group {path!r}' if path else 'the file'} has {_names(member)}"


def _names(group: Any) -> str:
    names = list(group)
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "none"


def is_dataset(member: Any) -> bool:
    """Whether one of h5py's objects is a dataset, not a group."""
    return isinstance(member, h5py.Dataset)


def path_of(name: str) -> str:
    """The canonical form of a name. The `name` of h5py's object is another one behind a link to another file."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def stored_as(source: Source, name: str, dataset: Any) -> Stored:
    """What the file says of the dataset of that name, with the reason if it cannot be loaded.

    Raises:
        FileError: The file ends before the dataset does, or is damaged otherwise.
    """
    with file_errors(source.path, name):
        plist = dataset.id.get_create_plist()
        layout = "external" if plist.get_external_count() else _LAYOUTS[plist.get_layout()]
        filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
        names = tuple(filter_name.decode(errors="replace") or str(code) for code, _, _, filter_name in filters)
        try:
            spec, is_string = _spec_of(dataset)
        except SpecError as error:
            spec = Spec(_NO_DTYPE, dataset.shape or ())
            return Stored(name, spec, len(spec.shape), layout, None, dataset.chunks, names, reason=str(error))
        offset = _offset_of(source, name, dataset, spec) if layout == "contiguous" and not is_string else None
        missing = [name for name, (code, *_) in zip(names, filters, strict=True) if not h5py.h5z.filter_avail(code)]
        reason = _MISSING_FILTER.format(missing[0]) if missing else _why_unreadable(dataset, layout)
        return Stored(name, spec, len(dataset.shape), layout, offset, dataset.chunks, names, is_string, reason)


def _why_unreadable(dataset: Any, layout: str) -> str:
    """Why the first item cannot be read, where the bytes are in another file, which may be missing; else ""."""
    try:
        if layout == "external" and dataset.size:
            dataset[(0,) * dataset.ndim]
    except OSError as error:
        return f"its bytes are in another file: {error}"
    return ""


def check_loadable(source: Source, stored: Stored) -> None:
    """Returns if a dataset can be loaded.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
        FileError: HDF5 lacks one of its filters, or another file that has its bytes.
    """
    if stored.reason and stored.dtype == _NO_DTYPE:
        raise SpecError(f"{place_in(source.path, stored.name)}: {stored.reason}")
    if stored.reason:
        raise FileError(source.path, stored.name, stored.reason)


def check_chunks(source: Source, name: str, dataset: Any) -> None:
    """Returns if each chunk of a dataset with checksums has room for one. HDF5 1.12.2 and older cannot be asked.

    HDF5 ends in a segmentation fault where the file gives a chunk fewer bytes (seen with HDF5 2.0.0): it computes the
    checksum of as many bytes less four, without a sign.

    Raises:
        FileError: One has none, as the file is damaged.
    """
    with file_errors(source.path, name):
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        if h5py.h5z.FILTER_FLETCHER32 not in filters or not hasattr(dataset.id, "chunk_iter"):
            return
        checksum = 1 << filters.index(h5py.h5z.FILTER_FLETCHER32)

        def shorter(chunk: Any) -> Any:  # a result other than None ends the search
            return chunk if chunk.size < _CHECKSUM_BYTES and not chunk.filter_mask & checksum else None

        short = dataset.id.chunk_iter(shorter)
        if short is not None:
            reason = f"is damaged: its chunk at {short.chunk_offset} has {short.size} bytes, fewer than its checksum."
            raise FileError(source.path, name, reason)


def _spec_of(dataset: Any) -> tuple[Spec, bool]:
    """The spec, and whether the items are strings of variable length, each of which counts as one byte.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
    """
    if dataset.shape is None:
        raise SpecError("it is an HDF5 null dataspace, which has no array to load.")
    dtype = _dtype_of(dataset)
    if dtype.hasobject:
        return Spec.checked(dataset.shape, np.dtype("S1")), True
    return Spec.checked((*dataset.shape, *dtype.shape), dtype.base), False


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
