"""Batches of a map's items on the root: one batch if their number is known, else a few items at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mpishare.arrays.spec import describe
from mpishare.errors import ArgumentError
from mpishare.tasks.items import Items, Packer, pack

_BATCH_S = 1.0
"""How long all ranks together should have work with one batch. Between two batches each waits for the slowest."""

_READ_S = 0.5
"""How long the root reads the iterator while the others may be waiting."""

_BATCH_BYTES = 16 << 20
"""Bytes of a batch, but for its last item. Two batches are in memory at a time."""

_FIRST_PER_RANK = 4
_GROWTH = 8


class ItemSource:
    """Where batches come from.

    Attributes:
        total: Number of items; None if it is not known.
    """

    def __init__(self, items: Any, n_ranks: int) -> None:
        """Batches of `items`, for `n_ranks` ranks.

        Raises:
            ArgumentError: They cannot be iterated.
        """
        self._items = items
        self.total = len(items) if hasattr(items, "__len__") and getattr(items, "shape", None) != () else None
        self._is_over = self.total is not None
        try:
            self._iterator: Iterator[Any] = iter(() if self._is_over else items)
        except TypeError as error:
            cure = "Give a list, an array, a generator."
            raise ArgumentError(f"items is {describe(items)}, which cannot be iterated. {cure}") from error
        self._least = self._most = _FIRST_PER_RANK * n_ranks
        self._read_count = 0
        self._ready: tuple[bool, Items] | None = None
        self._error: BaseException | None = None

    def next(self) -> tuple[bool, Items]:
        """Whether the next batch is the last, and the batch.

        Raises:
            SpecError: An item cannot be pickled.
            Exception: What the iterator raised.
        """
        if self._error is not None:
            raise self._error
        if self.total is not None:
            return True, pack(self._items)
        batch, self._ready = self._ready or self._read(), None
        return batch

    def read_ahead(self) -> None:
        """Makes the next batch, while other ranks work. An error waits for `next`, since earlier items count."""
        if not self._is_over:
            try:
                self._ready = self._read()
            except BaseException as error:
                self._error = error

    def note_time(self, count: int, seconds: float) -> None:
        """Notes how long the last batch, of `count` items, took."""
        fitting = int(count * _BATCH_S / max(seconds, 1e-6))
        self._most = max(self._least, min(fitting, self._most * _GROWTH))

    def _read(self) -> tuple[bool, Items]:
        packer, end = Packer(copies=True, first=self._read_count), time.monotonic() + _READ_S
        while packer.count < self._most and packer.nbytes < _BATCH_BYTES and time.monotonic() <= end:
            try:
                packer.add(next(self._iterator))
            except StopIteration:
                self._is_over = True
                break
        self._read_count += packer.count
        return self._is_over, packer.items()
