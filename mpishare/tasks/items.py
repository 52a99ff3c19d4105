"""The items of a map: laid once in the memory of each node, and made one by one on the rank that runs their task.

An array lies there as it is, and each task gets a row. A range is known by its ends. Other items are pickled, a few
numbers or short texts together, any other by itself, so that one that cannot be made again spoils no other task. Their
arrays lie behind them, as their bytes.
"""

from __future__ import annotations

import pickle
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, copy_bytes
from mpishare.arrays.spec import PLAIN_CLASSES, Spec
from mpishare.comm.context import Context
from mpishare.errors import SpecError
from mpishare.objects.pickled import PickledObject
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.sharing import share

_TOGETHER = 32
"""Plain items in one pickle, which takes 0.1 us for each instead of 1 us."""
_SHORT = 256
"""The length of texts that count as plain."""
_LINE_BYTES = 64
_SCALARS = frozenset({int, float, complex, bool, type(None)})
_TEXTS = frozenset({str, bytes})

_HEADER = struct.Struct("<Bqqq")
HEADER_BYTES = _HEADER.size
_RANGE, _ROWS, _PACKED = range(3)
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Batch:
    """Items on the root.

    Attributes:
        count: How many.
        header: What the other ranks must know before they get them.
        array: What each node must have, None for nothing.
    """

    count: int
    header: bytes
    array: NDArray[Any] | None


class Items:
    """Items on any rank."""

    def of(self, portion: range) -> Iterable[Any]:
        """Those with these numbers, each made when it is asked for."""
        raise NotImplementedError


def batch_of(items: Any) -> Batch:
    """Items of which it is known how many there are.

    Raises:
        SpecError: One of them cannot be pickled; it is named.
    """
    if type(items) is range and max(map(abs, (items.start, items.stop, items.step))) <= _LARGEST:
        return Batch(len(items), _HEADER.pack(_RANGE, items.start, items.stop, items.step), None)
    if type(items) in PLAIN_CLASSES and not items.dtype.hasobject and items.ndim:
        return Batch(len(items), _HEADER.pack(_ROWS, 0, 0, 0), items)
    packer = Packer(copies=False)
    packer.extend(items)
    return packer.batch()


def delivered(context: Context, root: int, header: bytes, batch: Batch | None) -> Items:
    """The items that `header` tells of, where only the root has the batch. Collective over the communicator."""
    kind, start, stop, step = _HEADER.unpack(header)
    if kind == _RANGE:
        return _Rows(range(start, stop, step))
    array = share(None if batch is None else batch.array, root=root, comm=context.topology.comm)
    return _Rows(array) if kind == _ROWS else _Unpacked(array, start)


class _Rows(Items):
    """Items that lie in a row."""

    def __init__(self, rows: range | NDArray[Any]) -> None:
        self._rows = rows

    def of(self, portion: range) -> Iterable[Any]:
        """See `Items.of`."""
        return self._rows[portion.start : portion.stop]


class _Apart(NamedTuple):
    """An item with arrays: its skeleton, and for each array what it is and where it begins."""

    skeleton: bytes
    arrays: list[tuple[Spec, int]]


class Packer:
    """Makes a batch of items, one after the other.

    Attributes:
        count: How many there are.
        nbytes: What they take, about.
    """

    def __init__(self, *, copies: bool, before: int = 0) -> None:
        """`copies` says whether to keep the bytes of arrays, which whoever gives the items may change at once.

        `before` is how many items other batches had.
        """
        self.count = 0
        self._before = before
        self.nbytes = 0
        self._copies = copies
        self._plain: list[Any] = []
        self._blocks: list[bytes] = []
        self._firsts: list[int] = []
        self._next = 0
        self._arrays: list[tuple[Spec, NDArray[Any], int]] = []
        self._array_bytes = 0
        self._places: dict[int, tuple[Spec, int]] = {}  # of arrays that several items have, by their ids

    def extend(self, items: Iterable[Any]) -> None:
        """Adds items.

        Raises:
            SpecError: One cannot be pickled.
        """
        iterator = iter(items)
        while run := list(islice(iterator, _TOGETHER)):
            if _SCALARS.issuperset(map(type, run)):  # in a third of the time of one by one
                self._close()
                self._append(pickle.dumps(run, protocol=5), len(run))
                self.count += len(run)
            else:
                for item in run:
                    self.add(item)

    def add(self, item: Any) -> None:
        """Adds one.

        Raises:
            SpecError: It cannot be pickled.
        """
        if _is_plain(item):
            self._plain.append(item)
            if len(self._plain) == _TOGETHER:
                self._close()
        else:
            self._close()
            self._append(self._apart(item), 1)
        self.count += 1

    def batch(self) -> Batch:
        """All of them, in one array: where each pickle begins, the pickles, the bytes of arrays."""
        self._close()
        ends = np.cumsum([0, *map(len, self._blocks)])
        table = np.array([[*self._firsts, self.count], ends], np.int64)
        pickles = b"".join((table.tobytes(), *self._blocks))
        start = _up(len(pickles))
        array = np.empty(start + self._array_bytes, np.uint8)
        array[: len(pickles)] = np.frombuffer(pickles, np.uint8)
        for spec, content, offset in self._arrays:
            if spec.nbytes:
                copy_bytes(spec.view(array[start + offset : start + offset + spec.nbytes]), content)
        return Batch(self.count, _HEADER.pack(_PACKED, len(self._blocks), 0, 0), array)

    def _close(self) -> None:
        """Pickles the plain items that wait for more of them."""
        if self._plain:
            self._append(pickle.dumps(self._plain, protocol=5), len(self._plain))
            self._plain.clear()

    def _append(self, block: bytes, length: int) -> None:
        self._firsts.append(self._next)
        self._next += length
        self._blocks.append(block)
        self.nbytes += len(block)

    def _apart(self, item: Any) -> bytes:
        try:
            parcel = pickle_object([item])
        except SpecError as error:
            raise SpecError(f"item {self._before + self.count}: {error}") from error
        if not parcel.arrays:
            return bytes(parcel.skeleton)
        return pickle.dumps(_Apart(bytes(parcel.skeleton), [self._placed(one) for one in parcel.arrays]), protocol=5)

    def _placed(self, array: Any) -> tuple[Spec, int]:
        if not self._copies and id(array) in self._places:
            return self._places[id(array)]
        spec, offset = Spec.of(array), self._array_bytes
        self._places[id(array)] = spec, offset
        self._arrays.append((spec, array.copy(order="K") if self._copies else array, offset))
        self._array_bytes += _up(spec.nbytes)
        self.nbytes += spec.nbytes
        return spec, offset


class _Unpacked(Items):
    """Items that were packed."""

    def __init__(self, array: NDArray[Any], n_blocks: int) -> None:
        table_bytes = 2 * 8 * (n_blocks + 1)
        table = array[:table_bytes].view(np.int64)
        self._firsts = table[: n_blocks + 1].data
        self._ends = table[n_blocks + 1 :].data
        self._pickles: Block = array[table_bytes:]
        self._arrays: Block = array[_up(table_bytes + self._ends[n_blocks]) :]
        self._last: tuple[int, Sequence[Any]] = -1, ()

    def of(self, portion: range) -> Iterator[Any]:
        """See `Items.of`."""
        at = portion.start
        number = bisect_right(self._firsts, at) - 1
        while at < portion.stop:
            first, end = self._firsts[number], min(self._firsts[number + 1], portion.stop)
            yield from self._block(number)[at - first : end - first]
            at, number = end, number + 1

    def _block(self, number: int) -> Sequence[Any]:
        """The items of one pickle; the last is kept, as the next portion may begin in it."""
        if self._last[0] != number:
            found = pickle.loads(self._pickles[self._ends[number] : self._ends[number + 1]].data)  # noqa: S301 - ours
            self._last = number, self._joined(found) if type(found) is _Apart else found
        return self._last[1]

    def _joined(self, apart: _Apart) -> Sequence[Any]:
        found: list[Any] = unpickle_object(
            PickledObject(apart.skeleton, [self._view(*place) for place in apart.arrays])
        )
        return found

    def _view(self, spec: Spec, offset: int) -> NDArray[Any]:
        return spec.view(self._arrays[offset : offset + spec.nbytes])


def _is_plain(item: Any) -> bool:
    """Whether it is pickled and made again without any code but Python's own: a number, a short text, some of them."""
    kind = type(item)
    if kind is tuple:
        return len(item) <= _TOGETHER and all(type(one) in _SCALARS for one in item)
    return kind in _SCALARS or (kind in _TEXTS and len(item) <= _SHORT)


def _up(nbytes: int) -> int:
    """The next multiple of a cache line."""
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES
