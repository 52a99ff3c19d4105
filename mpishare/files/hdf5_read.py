"""An HDF5 file, read by h5py: what it says of its datasets and groups, and their items."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise, repeat
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from mpishare.arrays.dtypes import check_dtype, describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.errors import FileError, SpecError, place_in
from mpishare.files.errors import FOREIGN_ERRORS, file_errors, h5py, noted, reason_of
from mpishare.files.input_file import InputFile
from mpishare.files.sliced import LibraryFile
from mpishare.files.stored import NO_DTYPE, Stored, with_widths

_LAYOUTS = ("compact", "contiguous", "chunked", "virtual")
"""Layouts of datasets; the index of each is its number in HDF5's H5D_layout_t."""

_CHECKSUM_BYTES = 4
"""The size of the checksum that the filter fletcher32 puts at the end of a chunk."""

_MISSING_FILTER = "needs the filter {!r}, which HDF5 does not find here. Import hdf5plugin on all ranks before."


class Hdf5File(LibraryFile):
    """An HDF5 file."""

    root = "/"

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

    def member(self, name: str) -> Any:
        """See `LibraryFile`: h5py's low-level object. A named type is no member."""
        try:
            member = h5py.h5o.open(self.handle.id, name.encode(errors="surrogateescape"))
        except FOREIGN_ERRORS as error:
            link = self.handle.get(name, getlink=True)
            if link is None:
                return None
            if isinstance(link, h5py.HardLink):
                raise
            place = place_in(link.filename, link.path) if isinstance(link, h5py.ExternalLink) else repr(link.path)
            self.broken_links.add(name)
            raise FileError(self.file.path, name, f"it leads to {place}: {reason_of(error)}") from error
        return None if isinstance(member, h5py.h5t.TypeID) else member

    def names(self, name: str, group: Any) -> list[str]:
        """See `LibraryFile`."""
        return [link.decode(errors="surrogateescape") for link in group]

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """See `LibraryFile`."""
        return self.plain_attributes(name, member, h5py.HLObject(member).attrs, unread)

    def plain_attributes(self, name: str, member: Any, given: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
        """The attributes `given` of h5py's low-level object of that name. Those that cannot be read join `unread`."""
        result = {}
        for key in given:
            with noted(unread, f"attribute {key!r} of {name!r}: "), file_errors(self.file.path):
                result[key] = _plain(given[key], member)
        return result

    def key(self, name: str, member: Any) -> tuple[str | None, int]:
        """See `LibraryFile`: the file that links led to, and the address of the object in it."""
        target = self._target(member)
        return target and os.path.realpath(target[0]), h5py.h5o.get_info(member).addr

    def _target(self, member: Any) -> tuple[str, str] | None:
        """The file that has an object, and the name of the object there; None for this file."""
        if h5py.h5o.get_info(member).fileno == h5py.h5o.get_info(self.handle.id).fileno:
            return None
        path = os.path.abspath(os.fsdecode(h5py.h5f.get_name(member)))  # noqa: PTH100 - does not resolve links
        return path, h5py.h5i.get_name(member).decode(errors="surrogateescape")

    def stored(self, name: str, array: Any) -> Stored:
        """See `LibraryFile`: what the file says of h5py's low-level dataset."""
        dataset, target, shape, offset = array, self._target(array), array.shape, array.get_offset()
        dtype, left_out = readable(dataset.dtype)
        is_text = dtype is not None and dtype.hasobject
        layout, chunks, filters = ("contiguous", None, []) if offset is not None else _layout_of(dataset)
        facts = (chunks, tuple(one for _, one in filters), is_text)
        try:
            spec = _spec_of(shape, dtype, left_out)
        except SpecError as error:
            unknown = Spec(NO_DTYPE, shape or ())
            return Stored(name, unknown, len(unknown.shape), layout, None, *facts, str(error), target=target)
        codes = [code for code, _ in filters]
        if h5py.h5z.FILTER_FLETCHER32 in codes:
            _check_chunks(dataset, codes.index(h5py.h5z.FILTER_FLETCHER32))
        missing = [one for code, one in filters if not h5py.h5z.filter_avail(code)]
        reason = _MISSING_FILTER.format(missing[0]) if missing else ""
        if is_text or left_out or target or not _is_as_in_memory(self.file, dataset, offset, spec):
            offset = None
        return Stored(name, spec, len(shape), layout, offset, *facts, reason, tuple(left_out), target)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`."""
        # The rows of the selection, of which `out` is a part: HDF5 writes there, and leaves the rest alone.
        rows = as_strided(out, (*out.shape[:1], *(row // step for row, step in pairwise(out.strides))))
        self.read_items(stored, ranges, rows)

    def strings(self, stored: Stored, ranges: Sequence[range]) -> NDArray[Any]:
        """See `FormatReader`."""
        items = np.zeros([*map(len, ranges)], readable(self.member(str(stored.name)).dtype)[0])
        self.read_items(stored, ranges, items)
        return items

    def read_items(self, stored: Stored, ranges: Sequence[range], items: NDArray[Any]) -> None:
        """Reads stored items by h5py to the beginning of each axis of a C-contiguous array.

        Raises:
            FileError: They cannot be read, or are damaged.
        """
        with file_errors(self.file.path, stored.name, what="it"):
            dataset = self.member(str(stored.name))
            dtype, _ = readable(dataset.dtype)
            lengths, space = tuple(map(len, ranges)), dataset.get_space()
            memory = h5py.h5s.create_simple(items.shape[: len(ranges)])
            if ranges:
                starts, steps = tuple(r.start for r in ranges), tuple(r.step for r in ranges)
                space.select_hyperslab(starts, lengths, steps)
                memory.select_hyperslab((0,) * len(ranges), lengths)
            dataset.read(memory, space, items, h5py.h5t.py_create(dtype))


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
        return os.fsdecode(h5py.h5r.get_name(reference, member))
    except FOREIGN_ERRORS:  # which of them depends on what lies where the object was
        return None
