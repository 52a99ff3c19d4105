"""Items of a map in the memory of each node. Each is unpickled only on the rank that runs its task.

An array is shared as it is, and each task gets one row. Other items are pickled in groups: numbers and short strings as
they are, any other item by itself, so that one that cannot be unpickled fails its own task only. The arrays of items
lie behind one another as bytes, each once.

The root makes batches of them: one batch if their number is known, else a few items at a time.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, copy_bytes
from mpishare.arrays.slices import LINE_BYTES, round_up
from mpishare.arrays.spec import PLAIN_CLASSES, Spec, describe
from mpishare.errors import ArgumentError, SpecError
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object

_GROUP = 32
"""Items in one pickle. That takes 0.1 us for each plain item, in place of 1 us."""

_SHORT = 256
"""Strings up to this length are plain."""

_BATCH_S = 1.0
"""How long all ranks together should have work with one batch. Between two batches each waits for the slowest."""

_READ_S = 0.5
"""How long the root reads the iterator while the others may wait."""

_BATCH_BYTES = 16 << 20
"""Bytes of a batch, but for its last item. Two batches are in memory at a time."""

_FIRST_PER_RANK = 4
_GROWTH = 8

_SCALARS = frozenset({int, float, complex, bool, type(None)})
_STRINGS = frozenset({str, bytes})


class _PickledItem(NamedTuple):
    """An item that is not plain: its skeleton, and the spec and the offset in bytes of each of its arrays."""

    skeleton: bytes
    arrays: list[tuple[Spec, int]]


class PackedItems:
    """Pickled items, made by a `Packer`."""

    def __init__(self, count: int, ends: NDArray[np.int64], pickles: Block, arrays: Block) -> None:
        """Takes the pickles of all groups, where each group begins and ends, and the bytes of the items' arrays."""
        self._count = count
        self._ends = ends
        self._pickles = pickles
        self._arrays = arrays
        self._last: tuple[int, Sequence[Any]] = -1, ()  # the group that was used last, by number

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Iterator[Any]:
        """Yields items, each made when it is asked for."""
        at = part.start
        while at < part.stop:
            group, place = divmod(at, _GROUP)
            if self._last[0] != group:
                block = self._pickles[self._ends[group] : self._ends[group + 1]]
                self._last = group, pickle.loads(block.data)  # noqa: S301 - from a rank of this job
            loaded = self._last[1][place : place + part.stop - at]
            for item in loaded:
                yield self._unpickled(item) if type(item) is _PickledItem else item
            at += len(loaded)

    def _unpickled(self, item: _PickledItem) -> Any:
        arrays = [spec.view(self._arrays[offset : offset + spec.nbytes]) for spec, offset in item.arrays]
        return unpickle_object(PickledObject(item.skeleton, arrays))


Items: TypeAlias = "range | NDArray[Any] | PackedItems"
"""A batch of items on one rank. A slice of it yields items."""


class Packer:
    """Packs the items of one batch, one after the other.

    Attributes:
        nbytes: Bytes that they take so far, but for plain ones.
    """

    def __init__(self, first: int = 0, *, copies: bool = False) -> None:
        """Begins with no items.

        Args:
            first: Number of the first item, for errors.
            copies: Whether to copy arrays at once, since the caller may change them.
        """
        self.nbytes = 0
        self._first = first
        self._copies = copies
        self._arrays: list[tuple[Spec, NDArray[Any], int]] = []
        self._array_bytes = 0
        self._placed: dict[int, tuple[Spec, int]] = {}  # by the id of an array, which several items may hold

    def pack(self, items: Iterable[Any]) -> PackedItems:
        """All of `items`.

        Raises:
            SpecError: An item cannot be pickled; the text names it.
        """
        count, pickles = 0, []
        packed = map(self._packed, items, itertools.count(self._first)) if self._copies else iter(items)
        while group := list(islice(packed, _GROUP)):
            if not (self._copies or _SCALARS.issuperset(map(type, group))):  # which takes a third of the time of each
                group = list(map(self._packed, group, itertools.count(self._first + count)))
            pickles.append(pickle.dumps(group, protocol=5))
            count += len(group)
        ends = np.cumsum([0, *map(len, pickles)], dtype=np.int64)
        arrays = np.empty(self._array_bytes, np.uint8)
        for spec, content, offset in self._arrays:
            if spec.nbytes:
                copy_bytes(spec.view(arrays[offset : offset + spec.nbytes]), content)
        return PackedItems(count, ends, np.frombuffer(b"".join(pickles), np.uint8), arrays)

    def _packed(self, item: Any, number: int) -> Any:
        if _is_plain(item):
            return item
        try:
            pickled = pickle_object(item)
        except SpecError as error:
            raise SpecError(f"item {number}: {error}") from error
        self.nbytes += len(pickled.skeleton)
        return _PickledItem(bytes(pickled.skeleton), [self._place(array) for array in pickled.arrays])

    def _place(self, array: NDArray[Any]) -> tuple[Spec, int]:
        if not self._copies and id(array) in self._placed:
            return self._placed[id(array)]
        spec, offset = self._placed[id(array)] = Spec.of(array), self._array_bytes
        self._arrays.append((spec, array.copy(order="K") if self._copies else array, offset))
        self._array_bytes += round_up(spec.nbytes, LINE_BYTES)
        self.nbytes += spec.nbytes
        return spec, offset


def _is_plain(item: Any) -> bool:
    """Whether it is a number, a short string, or a short tuple of numbers: nothing that can fail when unpickled."""
    kind = type(item)
    if kind is tuple:
        return len(item) <= _GROUP and all(type(part) in _SCALARS for part in item)
    return kind in _SCALARS or (kind in _STRINGS and len(item) <= _SHORT)


class Batches:
    """The batches of a map's items: one if their number is known, else as many as are not empty, and an empty one.

    Attributes:
        total: Number of items; None if it is not known.
    """

    def __init__(self, items: Any, n_ranks: int) -> None:
        """Batches of `items`, for `n_ranks` ranks.

        Raises:
            ArgumentError: They cannot be iterated.
        """
        self.total = len(items) if hasattr(items, "__len__") and getattr(items, "shape", None) != () else None
        try:
            self._items = iter(items) if self.total is None else items
        except TypeError as error:
            cure = "Give a list, an array, a generator."
            raise ArgumentError(f"items is {describe(items)}, which cannot be iterated. {cure}") from error
        self._least = self._most = _FIRST_PER_RANK * n_ranks
        self._n_read = 0
        self._ready: PackedItems | None = None
        self._error: BaseException | None = None

    def next(self) -> Items:
        """The next batch.

        Raises:
            SpecError: An item cannot be pickled.
            Exception: What the iterator raised.
        """
        if self._error is not None:
            raise self._error
        if self.total is None:
            batch, self._ready = self._read() if self._ready is None else self._ready, None
            return batch
        items = self._items
        if isinstance(items, range) or (type(items) in PLAIN_CLASSES and not items.dtype.hasobject):
            return items  # type: ignore[no-any-return]
        return Packer().pack(items)

    def read_ahead(self) -> None:
        """Makes the next batch while other ranks work. An error waits for `next`, since the items before it count.

        Items that take 1 ms each to be read, for tasks of 3 ms on 4 ranks, took a fifth longer without it.
        """
        if self.total is None:
            try:
                self._ready = self._read()
            except BaseException as error:
                self._error = error

    def note_time(self, count: int, seconds: float) -> None:
        """Notes how long the last batch, of `count` items, took."""
        fitting = int(count * _BATCH_S / max(seconds, 1e-6))
        self._most = max(self._least, min(fitting, self._most * _GROWTH, _BATCH_BYTES // _SHORT))

    def _read(self) -> PackedItems:
        packer = Packer(self._n_read, copies=True)
        batch = packer.pack(self._some(packer))
        self._n_read += len(batch)
        return batch

    def _some(self, packer: Packer) -> Iterator[Any]:
        end = time.monotonic() + _READ_S
        for item in islice(self._items, self._most):
            yield item
            if packer.nbytes >= _BATCH_BYTES or time.monotonic() > end:
                return
