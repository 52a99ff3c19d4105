"""The items of a map on the root, as batches: all at once where their number is known, else a few at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mpishare.errors import ArgumentError
from mpishare.tasks.items import Batch, Packer, batch_of

_WINDOW_S = 1.0
"""How long all ranks together should have work with one window. Between two windows each waits for the slowest."""
_FILL_S = 0.5
"""How long the root asks the iterator for more while the others may be waiting."""
_WINDOW_BYTES = 16 << 20
"""What a window takes at most, but for its last item. Two are in memory at a time."""
_FIRST_PER_RANK = 4
_GROWTH = 8


class Source:
    """Where batches come from."""

    total: int | None = None
    """How many items there are, where it is known."""

    def next(self) -> tuple[Batch, bool]:
        """The next batch, and whether it is the last. Raises what the caller's items raise."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Makes the next batch ready, while the others work."""

    def ran(self, seconds: float) -> None:
        """The ranks had work for so long with the last batch."""


class Whole(Source):
    """All items in one batch."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self.total = len(items)

    def next(self) -> tuple[Batch, bool]:
        """See `Source.next`."""
        return batch_of(self._items), True


class Lazy(Source):
    """Batches from an iterator, whose items need not fit in memory together."""

    def __init__(self, items: Iterator[Any], ranks: int) -> None:
        self._items = items
        self._least = self._most = _FIRST_PER_RANK * ranks
        self._last_count = 0
        self._read = 0
        self._is_over = False
        self._ready: tuple[Batch, bool] | None = None
        self._error: BaseException | None = None

    def next(self) -> tuple[Batch, bool]:
        """See `Source.next`."""
        if self._error is not None:
            raise self._error
        found, self._ready = self._ready or self._filled(), None
        self._last_count = found[0].count
        return found

    def prepare(self) -> None:
        """See `Source.prepare`. What the iterator raises is for the next batch, as the items before it count."""
        if self._is_over:
            return
        try:
            self._ready = self._filled()
        except BaseException as error:
            self._error = error

    def ran(self, seconds: float) -> None:
        """See `Source.ran`."""
        fitting = int(self._last_count * _WINDOW_S / max(seconds, 1e-6))
        self._most = max(self._least, min(fitting, self._most * _GROWTH))

    def _filled(self) -> tuple[Batch, bool]:
        packer, end = Packer(copies=True, before=self._read), time.monotonic() + _FILL_S
        while packer.count < self._most and packer.nbytes < _WINDOW_BYTES:
            try:
                item = next(self._items)
            except StopIteration:
                self._is_over = True
                return packer.batch(), True
            packer.add(item)
            self._read += 1
            if time.monotonic() > end:
                break
        return packer.batch(), False


def source_of(items: Any, ranks: int) -> Source:
    """Batches of `items`, for so many ranks.

    Raises:
        ArgumentError: They cannot be iterated.
    """
    if hasattr(items, "__len__") and getattr(items, "shape", None) != ():
        return Whole(items)
    try:
        return Lazy(iter(items), ranks)
    except TypeError as error:
        what = "None" if items is None else f"a {type(items).__name__}"
        raise ArgumentError(
            f"items is {what}, which cannot be iterated. Give a list, an array, a generator."
        ) from error
