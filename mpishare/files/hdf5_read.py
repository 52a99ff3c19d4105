"""What an HDF5 file says of its datasets and groups, by h5py."""

from __future__ import annotations

import os
from itertools import repeat
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import check_dtype
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import FOREIGN_ERRORS, reason_of
from mpishare.files.hdf5_types import ObjectNames, attributes_of, readable, with_widths
from mpishare.files.source import Source, h5py
from mpishare.files.stored import Stored

Tree = Any
"""The number of an array among those of a file; or a dict of trees by name, for a group. Where a group or a dataset has
several names, the same object stands under each."""

_SHOWN_NAMES = 8

_LAYOUTS = ("compact", "contiguous", "chunked", "virtual")
"""By the numbers of HDF5's H5D_layout_t."""

_CHECKSUM_BYTES = 4
"""Of the filter fletcher32, at the end of a chunk."""

_NO_DTYPE = np.dtype("V")
"""The dtype of items that no NumPy array can have."""

_MISSING_FILTER = "needs the filter {!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."


class Walk:
    """The datasets and the groups that are in a dataset or a group of a file, also by links.

    Each is opened once, however many names it has. What leads nowhere, or back to a group on its own way, counts as an
    array that cannot be loaded. Named types are left out.

    Attributes:
        arrays: The datasets.
        tree: Their numbers, by name.
        attributes: Those of each dataset by its number, and of each group by the identity of its tree.
        left_out: The attributes that cannot be read, each with the reason.
    """

    def __init__(self, source: Source, name: str, *, attributes: bool) -> None:
        """Lists what is in the object of that name.

        Raises:
            FileError: There is no dataset and no group of that name, or the file is damaged.
        """
        self.arrays: list[Stored] = []
        self.attributes: dict[int, dict[str, Any]] = {}
        self.left_out: list[str] = []
        self._has_attributes = attributes
        self._object_names = ObjectNames()
        self._trees: dict[tuple[int, int], Tree] = {}  # by the file and the address of the object
        self._files = {h5py.h5o.get_info(source.hdf5.id).fileno: source}
        with source.errors(name):
            self.tree = self._tree(_member(source, name), path_of(name), {})

    def _tree(self, member: Any, name: str, parents: dict[tuple[int, int], str]) -> Tree:
        """The tree of h5py's low-level object of that name, which is in these groups."""
        info = h5py.h5o.get_info(member)
        place = info.fileno, info.addr
        source, target = self._source(member, info.fileno)
        if place in parents:
            return self._left_out(name, f"it leads to the group {parents[place]!r}, which it is in.")
        if place in self._trees:
            return self._trees[place]
        if isinstance(member, h5py.h5d.DatasetID):
            tree: Tree = self._add(stored_as(source, name, member, target))
        else:
            tree = {}
            for key in member:
                inner_name = f"{name.rstrip('/')}/{key.decode(errors='surrogateescape')}"
                inner = self._inner(member, key, inner_name, {**parents, place: name})
                if inner is not None:
                    tree[inner_name.rpartition("/")[2]] = inner
        self._trees[place] = tree
        if self._has_attributes and (isinstance(tree, dict) or not self.arrays[tree].reason):
            opened = h5py.Group(member) if isinstance(tree, dict) else h5py.Dataset(member)
            key = id(tree) if isinstance(tree, dict) else tree
            self.attributes[key] = attributes_of(opened, self._object_names, self.left_out)
        return tree

    def _inner(self, group: Any, key: bytes, name: str, parents: dict[tuple[int, int], str]) -> Tree | None:
        """The tree of a member of a group; None for a named type."""
        if group.links.get_info(key).type == h5py.h5l.TYPE_HARD:
            member = h5py.h5o.open(group, key)
        else:
            try:
                member = h5py.Group(group)[key].id  # which opens other files as the first one is open
            except FOREIGN_ERRORS as error:
                return self._left_out(name, _why_dangling(group, key, error))
        is_type = isinstance(member, h5py.h5t.TypeID)
        return None if is_type else self._tree(member, name, parents)

    def _add(self, stored: Stored) -> int:
        self.arrays.append(stored)
        return len(self.arrays) - 1

    def _left_out(self, name: str, reason: str) -> int:
        """The number of what cannot be loaded as it is not a dataset."""
        return self._add(Stored(name, Spec(_NO_DTYPE, ()), 0, "link", reason=reason))

    def _source(self, member: Any, fileno: int) -> tuple[Source, tuple[str, str] | None]:
        """The file that has an object; and, if it is another than the first, its name and that of the object there."""
        first, *_ = self._files.values()
        if fileno not in self._files:
            path = os.path.abspath(os.fsdecode(h5py.h5f.get_name(member)))  # noqa: PTH100 - does not resolve links
            self._files[fileno] = first.linked((path, ""))
            self._files[fileno].hdf5  # noqa: B018 - while the object is open: so the file keeps its number
        source = self._files[fileno]
        if source is first:
            return source, None
        return source, (source.path, h5py.h5i.get_name(member).decode(errors="surrogateescape"))


def _why_dangling(group: Any, key: bytes, error: BaseException) -> str:
    """Where a link that cannot be followed leads, and what is wrong there."""
    value, reason = group.links.get_val(key), reason_of(error)
    if isinstance(value, bytes):
        return f"it leads to {value.decode(errors='replace')!r}: {reason}"
    folder = os.path.dirname(os.fsdecode(h5py.h5f.get_name(group)))  # noqa: PTH120
    path, name = os.path.abspath(os.path.join(folder, os.fsdecode(value[0]))), value[1].decode(errors="replace")  # noqa: PTH100, PTH118
    try:
        with Source(path) as file:
            file.descriptor, file.hdf5  # noqa: B018 - whose own errors say more
    except FileError as own:
        reason = own.reason
    return f"it leads to {place_in(path, name)}: {reason}"


def _member(source: Source, name: str) -> Any:
    """h5py's low-level object of that name.

    Raises:
        FileError: There is no dataset and no group of that name.
    """
    try:
        member = source.object(name)
    except FOREIGN_ERRORS as error:
        raise source.error(f"there is no such dataset or group; {_as_far_as(source, name)}.", name) from error
    if isinstance(member, h5py.h5t.TypeID):
        raise source.error("is a Datatype, neither a dataset nor a group.", name)
    return member


def _as_far_as(source: Source, name: str) -> str:
    """What the file has as far along that name as it goes: the members of a group, a dataset, or a link."""
    member, path = source.hdf5, ""
    for part in path_of(name).split("/")[1:]:
        if not isinstance(member, h5py.Group) or part.encode() not in list(member.id):
            break
        path = f"{path}/{part}"
        try:
            member = member[part]
        except FOREIGN_ERRORS as error:
            return f"{path!r} is a link: {_why_dangling(member.id, part.encode(), error)}"
    if not isinstance(member, h5py.Group):
        return f"{path!r} is a {type(member).__name__.lower()}"
    return f"{f'the group {path!r}' if path else 'the file'} has {_names(member)}"


def _names(group: Any) -> str:
    names = list(group)
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(map(repr, names[:_SHOWN_NAMES])) + more if names else "none"


def path_of(name: str) -> str:
    """The canonical form of a name. The `name` of h5py's object is another one behind a link."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


def stored_as(source: Source, name: str, dataset: Any, target: tuple[str, str] | None = None) -> Stored:
    """What the file says of a dataset, h5py's low-level object, with the reason if it cannot be loaded.

    Raises:
        FileError: The file ends before the dataset does, or is damaged otherwise.
    """
    with source.errors(name if target is None else target[1]):
        shape, offset = dataset.shape, dataset.get_offset()
        dtype, left_out = readable(dataset.dtype)
        is_text = dtype is not None and dtype.hasobject
        layout, chunks, filters = ("contiguous", None, []) if offset is not None else _layout_of(dataset)
        facts = (chunks, tuple(name for _, name in filters), is_text)
        try:
            spec = _spec_of(shape, dtype, left_out)
        except SpecError as error:
            unknown = Spec(_NO_DTYPE, shape or ())
            return Stored(name, unknown, len(unknown.shape), layout, None, *facts, str(error), target=target)
        codes = [code for code, _ in filters]
        if h5py.h5z.FILTER_FLETCHER32 in codes:
            _check_chunks(dataset, codes.index(h5py.h5z.FILTER_FLETCHER32))
        missing = [name for code, name in filters if not h5py.h5z.filter_avail(code)]
        reason = _MISSING_FILTER.format(missing[0]) if missing else _why_unreadable(dataset, layout)
        if offset is not None and (is_text or left_out or not _is_as_in_memory(source, dataset, offset, spec)):
            offset = None
        return Stored(name, spec, len(shape), layout, offset, *facts, reason, tuple(left_out), target)


def _layout_of(dataset: Any) -> tuple[str, tuple[int, ...] | None, list[tuple[int, str]]]:
    """The layout, the lengths of a chunk, and the codes and names of the filters."""
    plist = dataset.get_create_plist()
    layout = "external" if plist.get_external_count() else _LAYOUTS[plist.get_layout()]
    filters = [plist.get_filter(number) for number in range(plist.get_nfilters())]
    names = [(code, name.decode(errors="replace") or str(code)) for code, _, _, name in filters]
    return layout, plist.get_chunk() if layout == "chunked" else None, names


def _spec_of(shape: tuple[int, ...] | None, dtype: np.dtype[Any] | None, left_out: list[str]) -> Spec:
    """What is loaded of a dataset, of which each string of variable length counts as one byte.

    Raises:
        SpecError: Its items have no fixed size, or NumPy has no such dtype.
    """
    if shape is None:
        raise SpecError("it is an HDF5 null dataspace, which has no array to load.")
    try:
        if dtype is None:
            raise TypeError(left_out[0])
        fixed = with_widths(dtype, repeat(1))
        check_dtype(fixed.base)
    except (TypeError, ValueError) as error:
        raise SpecError(f"it cannot be loaded: {error}") from error
    return Spec.checked((*shape, *fixed.shape), fixed.base)


def _is_as_in_memory(source: Source, dataset: Any, offset: int, spec: Spec) -> bool:
    """Whether the bytes of a contiguous dataset, which begin at `offset` in its file, are those of the array."""
    if dataset.get_storage_size() != spec.nbytes:  # as nothing was written: h5py returns fill values
        return False
    source.check_end(offset + spec.nbytes)
    return bool(dataset.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True)))


def _why_unreadable(dataset: Any, layout: str) -> str:
    """Why the first item cannot be read, where the bytes are in another file, which may be missing; else ""."""
    try:
        if layout == "external" and 0 not in dataset.shape:
            h5py.Dataset(dataset)[(0,) * dataset.rank]
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
        raise source.error(stored.reason, stored.name)


def _check_chunks(dataset: Any, number: int) -> None:
    """Returns if each chunk has room for its checksum, filter `number`. HDF5 1.12.2 and older cannot be asked.

    HDF5 ends in a segmentation fault where the file gives a chunk fewer bytes (seen with HDF5 2.0.0): it computes the
    checksum of as many bytes less four, without a sign.

    Raises:
        ValueError: One has none, as the file is damaged.
    """

    def shorter(chunk: Any) -> Any:  # a result other than None ends the search
        return chunk if chunk.size < _CHECKSUM_BYTES and not chunk.filter_mask & 1 << number else None

    short = dataset.chunk_iter(shorter) if hasattr(dataset, "chunk_iter") else None
    if short is not None:
        reason = f"its chunk at {short.chunk_offset} has {short.size} bytes, fewer than its checksum."
        raise ValueError(f"is damaged: {reason}")
