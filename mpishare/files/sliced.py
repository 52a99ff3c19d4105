"""What a library opens: arrays with a shape, a dtype and basic slicing, and files of such arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.spec import Spec, plain
from mpishare.errors import ArgumentError, FileError, SpecError
from mpishare.files.errors import file_errors, noted
from mpishare.files.input_file import FormatReader, InputFile
from mpishare.files.stored import Listing, Stored, Tree, left_out, names_in, shown_names, stored_or_reason

_LARGEST_SHARD_BYTES = 4 << 20
"""A smaller shard of zarr is read whole, as one tile. Of a larger one the chunks are read, so that no rank holds it."""

_WHERE_CHUNKS_ARE: tuple[Callable[[Any], Any], ...] = (
    lambda array: array.shards if math.prod(array.shards) * array.dtype.itemsize <= _LARGEST_SHARD_BYTES else None,
    lambda array: array.chunks,  # zarr, h5py; dask and xarray have all lengths along each axis
    lambda array: array.read_chunk_sizes,  # zarr, where these differ
    lambda array: array.chunking(),  # netCDF4
    lambda array: array.encoding["chunksizes"],  # xarray without dask
    lambda array: array.chunk_layout.read_chunk.shape,  # tensorstore
)

_CURE = "Return what has shape, dtype and basic slicing, such as a zarr.Array; for anything else use share(call=…)."
_CURE_OF_MASK = "has masked items, which no plain array has. Of netCDF4, return a variable after set_auto_mask(False)."
_CURE_OF_TILE = "Slices must be as the shape and dtype say. Of netCDF4, return a variable after set_auto_scale(False)."


def described(place: str, name: str | None, array: Any) -> Stored:
    """What is loaded of an array.

    Args:
        place: What error messages call the file.
        name: The name of the array in it.
        array: The array.

    Raises:
        ArgumentError: It is no array.
        SpecError: Its dtype cannot be shared, its shape is not known, or it has units, or whatever else a class adds.
    """
    try:
        shape, dtype = array.shape, array.dtype
    except AttributeError as error:
        kind = type(array).__name__
        raise ArgumentError(f"{place}: an object of type {kind} is no array: {error}. {_CURE}") from error
    dtype = getattr(dtype, "numpy_dtype", dtype)  # tensorstore's
    if dtype is None:  # which NumPy takes for float64
        raise SpecError(f"its dtype is None. {_CURE}")
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
        plain(array)
    spec = Spec.make(shape, dtype)
    spec = replace(spec, dtype=rebuild(describe(spec.dtype)))  # without the metadata of h5py
    chunks = chunks_of(array, len(spec.shape))
    return Stored(name, spec, len(spec.shape), "chunked" if chunks else "sliced", chunks=chunks)


def chunks_of(array: Any, ndim: int) -> tuple[int | tuple[int, ...], ...] | None:
    """The chunks of an array, as in `Stored`."""
    for find in _WHERE_CHUNKS_ARE:
        with suppress(AttributeError, LookupError, TypeError, ValueError, NotImplementedError):
            chunks = tuple(map(_lengths, find(array)))
            if len(chunks) == ndim and all(chunks):
                return chunks
    return None


def _lengths(chunks: Any) -> int | tuple[int, ...]:
    """The length of the chunks along an axis, or their lengths where these differ, but for a shorter last one."""
    if not isinstance(chunks, tuple):
        return int(chunks)
    lengths = tuple(length for length in map(int, chunks) if length)
    is_regular = len({*lengths[:-1]}) <= 1 and lengths[-1] <= lengths[0]
    return lengths[0] if is_regular else lengths


def index_of(ranges: Sequence[range]) -> tuple[slice, ...]:
    """The slices of the items with these indices along each axis."""
    return tuple(slice(indices.start, indices[-1] + 1, indices.step) for indices in ranges)


def shown_tile(index: tuple[slice, ...]) -> str:
    """How error messages call the items of an index."""
    return "tile [" + ", ".join(f"{axis.start}:{axis.stop}:{axis.step}".removesuffix(":1") for axis in index) + "]"


def read_tile(place: str, stored: Stored, array: Any, ranges: Sequence[range], out: NDArray[np.void]) -> None:
    """Fills `out` with the items of these indices along each axis of `array`.

    Raises:
        FileError: They cannot be read; or are of another shape or dtype than `stored` says, or masked.
        SpecError: They have units, or whatever else a class of arrays adds.
    """
    index = index_of(ranges)
    shown = shown_tile(index)
    with file_errors(place, stored.name, what=shown):
        tile = array[index]
        if isinstance(tile, str | bytes):  # one string, which NumPy gives a dtype as wide as its own characters
            tile = np.asarray(tile).astype(stored.dtype, casting="safe")
        tile = np.asanyarray(tile)
    if np.ma.is_masked(tile):
        raise FileError(place, stored.name, f"{shown} {_CURE_OF_MASK}")
    with file_errors(place, stored.name):
        plain(tile)
    if tile.shape != out.shape or not np.can_cast(tile.dtype, stored.dtype, "equiv"):
        reason = f"{shown} has shape={tile.shape}, dtype={tile.dtype}; expected {out.shape} and {stored.dtype}."
        raise FileError(place, stored.name, f"{reason} {_CURE_OF_TILE}")
    out.view(stored.dtype)[...] = tile


class LibraryFile(FormatReader):
    """A file whose members a library opens: those with a `shape` are arrays, read by slices, and the others are groups.

    Attributes:
        root: The name of the whole file: "/" in a format whose groups have groups, "" in others.
    """

    root = ""

    def member(self, name: str) -> Any:
        """The array or the group of that name, None if there is none. It may raise any error."""

    def names(self, name: str, group: Any) -> Iterable[str]:
        """The names of the members of a group, which has that name."""
        return [*group]

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """The attributes of a member, which has that name. Those that cannot be read join `unread`."""
        return {}

    def key(self, name: str, member: Any) -> Hashable:
        """What is the same for all names of a member."""
        return name

    def stored(self, name: str, array: Any) -> Stored:
        """What is loaded of an array, which has that name. It may raise any error."""
        return described(self.file.path, name, array)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`."""
        with file_errors(self.file.path, stored.name, what="it"):
            read_tile(self.file.path, stored, self.member(str(stored.name)), ranges, out)

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays and the groups in the member of that name, also behind links. See `FormatReader`."""
        walk, path = _Walk(self, attributes=attributes), self.file.absolute_path
        root = path_of(name or "") if self.root else name or ""
        tree = walk.tree(root, {}) if self.root or name != "" else None
        if tree is None:
            with file_errors(self.file.path, what="it"):
                top = self.member(self.root)
                has = "one array and no groups"
                if not hasattr(top, "shape"):
                    has = shown_names([inner for inner in self.names(self.root, top) if inner != name])
            reason = f"there is no such array{' or group' if self.root else ''}; the file has {has}."
            raise FileError(self.file.path, name, reason)
        names = names_in(tree, path) if attributes else ()
        named = {inner: walk.attributes[id(one)] for inner, one in names if id(one) in walk.attributes}
        return Listing(path, walk.arrays, tree, named, walk.unread, root if self.root else None)


class _Walk:
    """The arrays and the groups that are in a member of a file.

    Each is opened once, however many names it has. What cannot be opened, or leads back to a group on its own way,
    counts as an array that cannot be loaded.

    Attributes:
        arrays: The arrays.
        attributes: The attributes of each array and group, by the identity of its tree.
        unread: The attributes that cannot be read, each with the reason.
    """

    def __init__(self, file: LibraryFile, *, attributes: bool) -> None:
        self.arrays: list[Stored] = []
        self.attributes: dict[int, dict[str, Any]] = {}
        self.unread: list[str] = []
        self._trees: dict[Hashable, Tree] = {}
        self._file, self._path, self._has_attributes = file, file.file.path, attributes

    def tree(self, name: str, parents: dict[Hashable, str]) -> Tree:
        """The tree of the member of that name, which is in these groups; None if there is none."""
        try:
            with file_errors(self._path, name if name != self._file.root else None, what="it"):
                member = self._file.member(name)
                if member is None:
                    return None
                key = self._file.key(name, member)
                if key in parents:
                    self._file.broken_links.add(name)
                    raise FileError(self._path, name, f"it leads to the group {parents[key]!r}, which it is in.")
                if key in self._trees:
                    return self._trees[key]
                self._trees[key] = tree = self._new_tree(name, member, {**parents, key: name})
                if self._has_attributes:
                    with noted(self.unread, f"attributes of {name!r}: "), file_errors(self._path, name, what="they"):
                        self.attributes[id(tree)] = self._file.attributes(name, member, self.unread)
                return tree
        except (FileError, SpecError) as error:
            if not parents:
                raise
            layout = "link" if name in self._file.broken_links else "sliced"
            self.arrays.append(left_out(self._path, name, layout, error))
        return len(self.arrays) - 1

    def _new_tree(self, name: str, member: Any, parents: dict[Hashable, str]) -> Tree:
        if hasattr(member, "shape"):
            describe = partial(self._file.stored, name, member)
            self.arrays.append(stored_or_reason(self._path, name, "sliced", describe))
            return len(self.arrays) - 1
        prefix = f"{name.rstrip('/')}/" if self._file.root else ""
        trees = {inner: self.tree(f"{prefix}{inner}", parents) for inner in self._file.names(name, member)}
        return {inner: tree for inner, tree in trees.items() if tree is not None}


def path_of(name: str) -> str:
    """The canonical form of a name in a file that has groups."""
    return "/" + "/".join(part for part in name.split("/") if part not in ("", "."))


class CallFile(FormatReader):
    """The array that a function of the user returns, in the place of a file.

    Each rank that reads calls the function. Python's lock and many libraries let no two threads read at a time, so one
    thread of each rank reads.
    """

    def __init__(self, file: InputFile, call: Callable[[], Any]) -> None:
        super().__init__(file)
        self._call = call

    @cached_property
    def array(self) -> Any:
        """What the function returns, closed with the file if it has `close`."""
        array = self._call()
        if callable(getattr(array, "close", None)):
            self.file.callback(array.close)
        if hasattr(array, "translate_to"):  # of tensorstore, whose indices may begin anywhere
            array = array.translate_to[(0,) * array.ndim]
        return array

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The one array. See `FormatReader`."""
        return Listing(self.file.path, [self._stored], 0, {})

    @property
    def _stored(self) -> Stored:
        array = self.array  # whose function raises its own errors
        with file_errors(self.file.path):
            return described(self.file.path, None, array)

    def check_same(self, stored: Stored) -> None:
        """Calls the function on this rank, and compares its array with the one of the rank that inspected it.

        Raises:
            FileError: It has another shape or dtype.
        """
        own = self._stored.spec
        if own != stored.spec:
            reason = f"returned an array of {own} on this rank, and of {stored.spec} on the rank that inspected it."
            raise FileError(self.file.path, None, f"{reason} Return the same array on all ranks.")

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`."""
        read_tile(self.file.path, stored, self.array, ranges, out)

    def check(self) -> None:
        """Closes the array, while an error can still be raised on all ranks."""
        self.file.close()


def name_of_call(call: Any) -> str:
    """What error messages say in the place of a file.

    Raises:
        ArgumentError: `call` is not a function.
    """
    if not callable(call):
        raise ArgumentError(f"call {call!r} is not a function. Pass one without arguments that returns an array.")
    return f"call={getattr(call, '__qualname__', type(call).__name__)}"
