"""An HDF5 file, read by h5py: what it says of its datasets and groups, and their items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import FOREIGN_ERRORS, file_errors, h5py, reason_of
from mpishare.files.input_file import InputFile, OpenFormat
from mpishare.files.stored import NO_DTYPE, Listing, Stored, Tree, names_in, shown_names, stored_or_reason, with_widths

_LAYOUTS = ("compact", "contiguous", "chunked", "virtual")
"""Layouts of datasets; the index of each is its number in HDF5's H5D_layout_t."""

_CHECKSUM_BYTES = 4
"""The size of the checksum that the filter fletcher32 puts at the end of a chunk."""

_MISSING_FILTER = "needs the filter {!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."


class Hdf5File(OpenFormat):
    """An HDF5 file. It satisfies `FormatReader`."""

    @cached_property
    def handle(self) -> Any:
        """The file, opened by h5py.

        Where the file system has locks, no other program can open it for writing meanwhile, and a file that is open
        for writing is refused.

        Raises:
            FileError: It is not an HDF5 file, is damaged, or has changed since it was inspected.
            BackendError: h5py is not installed.

        Source:
            The h5py documentation, "File locking".
        """
        file = self.file
        with file_errors(file.path):
            handle = h5py.File(file.path, "r", locking="best-effort")
        file.callback(handle.close)
        file.watch(handle.id.get_vfd_handle())
        return handle

    def object(self, name: str | None) -> Any:
        """The object of that name, as h5py's low-level object."""
        return h5py.h5o.open(self.handle.id, (name or "/").encode(errors="surrogateescape"))

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The datasets and the groups in the object of that name, also behind links.

        Raises:
            FileError: There is no dataset and no group of that name, or the file is damaged.
        """
        name, path = name or "/", self.file.absolute_path
        with file_errors(self.file.path, name):
            walk = _Walk(self, attributes=attributes)
            tree = walk.tree(self.member(name), path_of(name), {})
        names = names_in(tree, path) if attributes else []
        named = {inner: walk.attributes[_key(one)] for inner, one in names if _key(one) in walk.attributes}
        return Listing(path, walk.arrays, tree, named, walk.unread, path_of(name))

    def member(self, name: str) -> Any:
        """h5py's low-level object of that name.

        Raises:
            FileError: There is no dataset and no group of that name.
        """
        try:
            member = self.object(name)
        except (*FOREIGN_ERRORS, AttributeError) as error:  # the last one of h5netcdf
            reason = f"there is no such dataset or group; {self._members_near(name)}. HDF5: {reason_of(error)}."
            raise FileError(self.file.path, name, reason) from error
        if isinstance(member, h5py.h5t.TypeID):
            raise FileError(self.file.path, name, "is a Datatype, neither a dataset nor a group.")
        return member

    def _members_near(self, name: str) -> str:
        """What the last group along a name has."""
        group, path = self.handle.id, ""
        for part in path_of(name)[1:].split("/"):
            try:
                inner = self.object(f"{path}/{part}")
            except (*FOREIGN_ERRORS, AttributeError):
                break
            if not isinstance(inner, h5py.h5g.GroupID):
                return f"'{path}/{part}' is a dataset"
            group, path = inner, f"{path}/{part}"
        names = shown_names(dict(self.links(group, path or "/")))
        return f"{f'the group {path!r}' if path else 'the file'} has {names}"

    def links(self, group: Any, path: str) -> list[tuple[str, bytes]]:
        """The members of h5py's low-level group, which has that path: the name of each, and of the link to it."""
        return [(key.decode(errors="surrogateescape"), key) for key in group]

    def stored(self, path: str, dataset: Any, target: tuple[str, str] | None) -> Stored:
        """What the file says of h5py's low-level dataset, which has that path.

        Args:
            path: The path.
            dataset: The dataset.
            target: See `Stored`.

        Raises:
            Exception: It is damaged, or h5py has no dtype for its items.
        """
        shape, offset = dataset.shape, dataset.get_offset()
        dtype, left_out = readable(dataset.dtype)
        is_text = dtype is not None and dtype.hasobject
        layout, chunks, filters = ("contiguous", None, []) if offset is not None else _layout_of(dataset)
        facts = (chunks, tuple(name for _, name in filters), is_text)
        try:
            spec = _spec_of(shape, dtype, left_out)
        except SpecError as error:
            unknown = Spec(NO_DTYPE, shape or ())
            return Stored(path, unknown, len(unknown.shape), layout, None, *facts, str(error), target=target)
        codes = [code for code, _ in filters]
        if h5py.h5z.FILTER_FLETCHER32 in codes:
            _check_chunks(dataset, codes.index(h5py.h5z.FILTER_FLETCHER32))
        missing = [name for code, name in filters if not h5py.h5z.filter_avail(code)]
        reason = _MISSING_FILTER.format(missing[0]) if missing else ""
        if is_text or left_out or target or not _is_as_in_memory(self.file, dataset, offset, spec):
            offset = None
        return Stored(path, spec, len(shape), layout, offset, *facts, reason, tuple(left_out), target)

    def attributes(self, path: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """The attributes of h5py's dataset or group, which has that path. Those that cannot be read join `unread`."""
        return attributes_of(member, member.attrs, unread)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        # The rows of the selection, of which `out` is a part: HDF5 writes there, and leaves the rest alone.
        rows = as_strided(out, (*out.shape[:1], *(row // step for row, step in pairwise(out.strides))))
        self.read_items(stored, ranges, rows)

    def strings(self, stored: Stored, ranges: Sequence[range]) -> NDArray[Any]:
        """See `tiles.Reader`."""
        items = np.zeros([*map(len, ranges)], readable(self.object(stored.name).dtype)[0])
        self.read_items(stored, ranges, items)
        return items

    def read_items(self, stored: Stored, ranges: Sequence[range], items: NDArray[Any]) -> None:
        """Reads stored items by h5py to the beginning of each axis of a C-contiguous array.

        Raises:
            FileError: They cannot be read, or are damaged.
        """
        with file_errors(self.file.path, stored.name):
            dataset = self.object(stored.name)
            dtype, _ = readable(dataset.dtype)
            lengths, space = tuple(map(len, ranges)), dataset.get_space()
            memory = h5py.h5s.create_simple(items.shape[: len(ranges)])
            if ranges:
                starts, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
                space.select_hyperslab(starts, lengths, steps)
                memory.select_hyperslab((0,) * len(ranges), lengths)
            dataset.read(memory, space, items, h5py.h5t.py_create(dtype))


class _Walk:
    """The datasets and the groups that are in a dataset or a group of a file, also by links.

    Each is opened once, however many names it has. What leads nowhere, or back to a group on its own way, counts as an
    array that cannot be loaded. Named types are left out.

    Attributes:
        arrays: The datasets.
        attributes: Those of each dataset and group, by the key of its tree.
        unread: The attributes that cannot be read, each with the reason.
    """

    def __init__(self, file: Hdf5File, *, attributes: bool) -> None:
        self.arrays: list[Stored] = []
        self.attributes: dict[int, dict[str, Any]] = {}
        self.unread: list[str] = []
        self._has_attributes = attributes
        self._trees: dict[tuple[int, int], Tree] = {}  # by the file and the address of the object
        self._file = file
        self._files = {h5py.h5o.get_info(file.handle.id).fileno: file.handle}  # open, so that each keeps its number

    def tree(self, member: Any, name: str, parents: dict[tuple[int, int], str]) -> Tree:
        """The tree of h5py's low-level object of that name, which is in these groups."""
        info = h5py.h5o.get_info(member)
        place = info.fileno, info.addr
        if place in parents:
            return self._left_out(name, f"it leads to the group {parents[place]!r}, which it is in.")
        if place in self._trees:
            return self._trees[place]
        is_dataset = isinstance(member, h5py.h5d.DatasetID)
        target = self._target(member, info.fileno)
        if is_dataset:
            describe = partial(self._file.stored, name, member, target)
            tree: Tree = self._add(stored_or_reason(self._file.file.path, name, "unknown", describe))
        else:
            links, parents = self._file.links(member, name), {**parents, place: name}
            found = {inner: self._inner(member, key, f"{name.rstrip('/')}/{inner}", parents) for inner, key in links}
            tree = {inner: made for inner, made in found.items() if made is not None}
        self._trees[place] = tree
        if self._has_attributes and not (is_dataset and self.arrays[tree].reason):
            opened = h5py.Dataset(member) if is_dataset else h5py.Group(member)
            self.attributes[_key(tree)] = self._file.attributes(name, opened, self.unread)
        return tree

    def _inner(self, group: Any, key: bytes, name: str, parents: dict[tuple[int, int], str]) -> Tree | None:
        """The tree of a member of a group; None for a named type."""
        is_hard = group.links.get_info(key).type == h5py.h5l.TYPE_HARD
        try:
            # h5py opens the files that links lead to as the first one is open.
            member = h5py.h5o.open(group, key) if is_hard else h5py.Group(group)[key].id
            return None if isinstance(member, h5py.h5t.TypeID) else self.tree(member, name, parents)
        except FOREIGN_ERRORS as error:
            if is_hard:
                return self._left_out(name, f"it cannot be read: {reason_of(error)}", "unknown")
            return self._left_out(name, _why_dangling(group, key, error))

    def _add(self, stored: Stored) -> int:
        self.arrays.append(stored)
        return len(self.arrays) - 1

    def _left_out(self, name: str, reason: str, layout: str = "link") -> int:
        """The number of what cannot be loaded as it is not a dataset."""
        return self._add(Stored(name, Spec(NO_DTYPE, ()), 0, layout, reason=reason))

    def _target(self, member: Any, fileno: int) -> tuple[str, str] | None:
        """The file that has an object, and the name of the object there; None for this file."""
        if self._files.setdefault(fileno, member) is self._file.handle:
            return None
        path = os.path.abspath(os.fsdecode(h5py.h5f.get_name(member)))  # noqa: PTH100 - does not resolve links
        return path, h5py.h5i.get_name(member).decode(errors="surrogateescape")


def _key(tree: Tree) -> int:
    """What the attributes of a dataset or a group are kept by: a number of a few digits, or an address."""
    return id(tree) if isinstance(tree, dict) else int(tree)


def _why_dangling(group: Any, key: bytes, error: BaseException) -> str:
    """Where a link that cannot be followed leads, and what is wrong there."""
    target = group.links.get_val(key)
    if isinstance(target, bytes):
        return f"it leads to {target.decode(errors='replace')!r}: {reason_of(error)}"
    path, name = os.fsdecode(target[0]), target[1].decode(errors="replace")
    return f"it leads to {place_in(path, name)}: {reason_of(error)}"


def path_of(name: str) -> str:
    """The canonical form of a name. The `name` of h5py's object is another one behind a link."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


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


def _is_as_in_memory(file: InputFile, dataset: Any, offset: int | None, spec: Spec) -> bool:
    """Whether the bytes of a dataset lie at `offset` in its file as they lie in memory."""
    if offset is None or dataset.get_storage_size() != spec.nbytes:  # nothing was written: h5py returns fill values
        return False
    file.check_end(offset + spec.nbytes)
    return bool(dataset.get_type().equal(h5py.h5t.py_create(dataset.dtype, logical=True)))


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


def readable(dtype: np.dtype[Any], column: str = "") -> tuple[np.dtype[Any] | None, list[str]]:
    """What h5py reads of a dtype into items of fixed size or strings; and why not the rest, by column.

    Args:
        dtype: That of h5py.
        column: The column that has it.
    """
    if not dtype.hasobject:
        return dtype, []
    if dtype.subdtype is not None:
        base, reasons = readable(dtype.base, column)
        return None if base is None else np.dtype((base, dtype.shape)), reasons
    if dtype.names is not None:
        columns = {name: readable(dtype[name], f"{column}.{name}" if column else name) for name in dtype.names}
        kept = [(name, inner) for name, (inner, _) in columns.items() if inner is not None]
        reasons = [reason for _, inner in columns.values() for reason in inner]
        return (np.dtype(kept) if reasons else dtype) if kept else None, reasons
    string = h5py.check_string_dtype(dtype)
    if string is not None and string.length is None:
        return dtype, []
    if h5py.check_ref_dtype(dtype) is not None:
        reason = "its items are references into the file, which mean nothing without it."
    else:
        reason = "its items are arrays of variable length. Store them in one array, and in another where each begins."
    return None, [f"column {column!r}: {reason}" if column else reason]


def attributes_of(member: Any, attributes: Mapping[str, Any], left_out: list[str]) -> dict[str, Any]:
    """The attributes of a dataset or a group, h5py's object. Those that cannot be read join `left_out`."""
    result = {}
    for name in attributes:
        try:
            result[name] = _plain(attributes[name], member)
        except FOREIGN_ERRORS as error:
            left_out.append(f"attribute {name!r} of {member.name!r}: {reason_of(error)}")
    return result


def _plain(value: Any, member: Any) -> Any:
    """`value` without h5py's classes: the name for a reference, None for an empty attribute."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, h5py.Reference):
        return _name_of(value, member)
    if isinstance(value, np.void) and value.dtype.hasobject:
        return tuple(_plain(value[name], member) for name in value.dtype.names or ())
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_plain(item, member) for item in value]
    if isinstance(value, np.ndarray):
        return np.array(value, rebuild(describe(value.dtype)))
    return value


def _name_of(reference: Any, member: Any) -> str | None:
    """The name of the object that `reference`, in an attribute of `member`, leads to; None if it leads nowhere."""
    try:
        return os.fsdecode(h5py.h5r.get_name(reference, member.id))
    except FOREIGN_ERRORS:  # which of them depends on what lies where the object was
        return None
