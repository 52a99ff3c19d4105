"""Memory of this process alone for arrays that are received, used again when the last view of one has gone.

The kernel clears each page that it gives out, which takes longer than to receive its bytes. The C library keeps what it
is given back up to 32 MiB, more or less; this keeps larger pieces as well, up to a part of the node's memory. Every
operation is one on a dict, as the garbage collector may give memory back in the midst of any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from mpishare.arrays.raw import Block, address_of

SMALLEST_BYTES = 1 << 20
"""Below it the C library is as good."""

_PAGE_BYTES = 4096
_PLACE_IN_PAGE = 16
"""Where the C library begins large arrays, such as most that are sent. The kernel copies from process to process a page
at a time: 1 MiB in 76 us where both begin at the same place of a page, in 80 to 89 us where they do not."""

_WASTE = 1.25
"""How much larger than an array the memory may be that it gets."""


class _Piece:
    """Memory that is lent to one array after the other.

    Attributes:
        block: The bytes.
        address: Where they are.
        nbytes: How many.
        shown: What it was lent as the last time, in the words of NumPy's array interface; mostly the same each time.
    """

    __slots__ = ("address", "block", "nbytes", "shown")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.address = address_of(block)
        self.nbytes = block.nbytes
        self.shown = self.show(block.nbytes)

    def show(self, nbytes: int) -> dict[str, Any]:
        """The first `nbytes` of it."""
        return {"data": (self.address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


_kept: dict[int, _Piece] = {}
"""What waits for another array, the newest last, by its address."""


class _Loan:
    """Memory while an array has it. It is the `base` of every view of the bytes, so that it lives as long as one."""

    __slots__ = ("__array_interface__", "_limit", "_piece")

    def __init__(self, piece: _Piece, limit: int) -> None:
        self._piece = piece
        self._limit = limit
        self.__array_interface__ = piece.shown

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            if _kept:
                _make_room(self._limit - self._piece.nbytes)
            _kept[self._piece.address] = self._piece


def acquire(nbytes: int, limit: int) -> Block:
    """`nbytes` of arbitrary contents, which go back with their last view, to be kept if all that is is within `limit`.

    Raises:
        MemoryError: There is no memory.
    """
    if not SMALLEST_BYTES <= nbytes <= limit:
        return np.empty(nbytes, np.uint8)
    piece = _found(nbytes) if _kept else None
    if piece is None:
        piece = _made(nbytes)
    if piece.shown["shape"] != (nbytes,):
        piece.shown = piece.show(nbytes)
    return np.asarray(_Loan(piece, limit))


def give_back() -> None:
    """Gives what is kept to the system."""
    _kept.clear()


def _found(nbytes: int) -> _Piece | None:
    """A piece that is kept and fits, the newest first."""
    for piece in list(_kept.values())[::-1]:
        fits = nbytes <= piece.nbytes <= nbytes * _WASTE
        if fits and _kept.pop(piece.address, None) is not None:  # else another thread was faster
            return piece
    return None


def _made(nbytes: int) -> _Piece:
    room = np.empty(nbytes + _PAGE_BYTES, np.uint8)
    start = (_PLACE_IN_PAGE - address_of(room)) % _PAGE_BYTES
    return _Piece(room[start : start + nbytes])


def _make_room(limit: int) -> None:
    """Of what is kept, leaves as many of the newest as are within the limit."""
    pieces = list(_kept.values())
    total = sum([one.nbytes for one in pieces])
    for one in pieces:
        if total <= limit:
            return
        if _kept.pop(one.address, None) is not None:
            total -= one.nbytes
