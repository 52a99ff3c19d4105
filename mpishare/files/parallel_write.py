"""How the bytes that ranks have get to their places in one file, each written once, with little memory besides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import bytes_of
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.row_blocks import RowBlocks, Run, senders

_WINDOW = 2
"""Runs on their way from one rank at a time: one is received while the one before it is written."""


class Writer:
    """This rank's part in writing arrays to one file.

    Attributes:
        checks: The CRC-32 of each run of this rank, for each array, where they are asked for.
        writes: Whether this rank writes to the file.
    """

    def __init__(
        self,
        context: Context,
        stacks: Sequence[RowBlocks],
        arrays: Sequence[NDArray[Any] | None],
        writers: Sequence[int],
        *,
        checked: bool = False,
        show: Callable[[], None] | None = None,
    ) -> None:
        """`arrays` are this rank's parts of `stacks`, `writers` is what `stacks.writers` says; `show` moves a bar."""
        self._context = context
        self._stacks = stacks
        self._arrays = arrays
        self._writer = writers[context.topology.rank]
        self._senders = senders(writers, context.topology.rank)
        self._checked = checked
        self._show = show
        self._fd: int | None = None
        self._buffers: list[bytearray] = []
        self.checks: list[list[int]] = [[] for _ in stacks]
        self.writes = self._writer == context.topology.rank and (
            bool(self._senders) or any(map(self._has_bytes, stacks))
        )

    def _has_bytes(self, stack: RowBlocks) -> bool:
        return stack.starts[self._context.topology.rank] < stack.starts[self._context.topology.rank + 1]

    def open(self, file: Path) -> None:
        """Opens the file, and takes the memory that it is going to need. Local.

        Raises:
            OSError, MemoryError: It cannot.
        """
        if self.writes:
            self._fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        travels = self._senders if self._writer == self._context.topology.rank else [self._context.topology.rank]
        largest = max((run.nbytes for rank in travels for run in self._runs(rank)), default=0)
        self._buffers = [bytearray(largest) for _ in range(_WINDOW)]

    def run(self) -> None:
        """Writes, or sends, all that this rank has, and writes what others send. Collective over the communicator.

        Where it fails, the others are not kept waiting: what they send is received all the same, and what they wait for
        is sent, whatever it is then.

        Raises:
            OSError: It cannot be written.
        """
        if self._writer != self._context.topology.rank:
            self._send()
            return
        failure = None
        try:
            for run, piece in self._own():
                self._put(run, piece)
        except BaseException as error:
            failure = error
        for sender in self._senders:
            failure = self._take(sender, failure)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def sync(self) -> None:
        """Returns when what all ranks of this host have written is on the disk."""
        if self._fd is not None:
            os.fsync(self._fd)

    def _own(self) -> Iterator[tuple[Run, memoryview]]:
        """The runs of this rank, with their bytes."""
        for number, (stack, array) in enumerate(zip(self._stacks, self._arrays, strict=True)):
            if array is None:
                continue
            found = pieces(array, stack.spec.order, stack.block_bytes)
            for run, piece in zip(stack.runs(self._context.topology.rank), found, strict=True):
                if self._checked:
                    self.checks[number].append(crc32(piece))
                yield run, piece

    def _put(self, run: Run, piece: memoryview) -> None:
        assert self._fd is not None
        put(self._fd, run.at, piece)
        if self._show is not None:
            self._show()

    def _send(self) -> None:
        """Sends the runs of this rank to the one that writes them; once one has failed, anything of their length."""
        failure: BaseException | None = None
        own = self._own()
        with InFlight(self._context.collective_comm, Tag.ROW_BLOCK) as sending:
            for run in self._runs(self._context.topology.rank):
                piece = memoryview(self._buffers[0])[: run.nbytes]
                try:
                    piece = piece if failure is not None else next(own)[1]
                except Exception as error:
                    failure = error
                sending.send(piece, self._writer)
                sending.wait_until(_WINDOW)
        if failure is not None:
            raise failure

    def _take(self, sender: int, failure: BaseException | None) -> BaseException | None:
        """Writes what `sender` sends, or only receives it where something has failed; what has failed by then."""
        for run, piece in self._received(sender):
            try:
                if failure is None:
                    self._put(run, piece)
            except Exception as error:
                failure = error
        return failure

    def _received(self, sender: int) -> Iterator[tuple[Run, memoryview]]:
        """The runs of `sender` as they come, each with the next one already asked for."""
        runs = list(self._runs(sender))
        places = [memoryview(self._buffers[number % _WINDOW])[: run.nbytes] for number, run in enumerate(runs)]
        with InFlight(self._context.collective_comm, Tag.ROW_BLOCK) as receiving:
            for number, run in enumerate(runs):
                for place in places[number + len(receiving) : number + _WINDOW]:
                    receiving.receive(place, sender)
                receiving.wait_oldest()
                yield run, places[number]

    def _runs(self, rank: int) -> Iterator[Run]:
        for stack in self._stacks:
            yield from stack.runs(rank)


def pieces(array: NDArray[Any], order: str, block_bytes: int) -> Iterator[memoryview]:
    """The bytes of an array, its items in `order`, so many at a time: where they lie in that order, as they lie."""
    if array.nbytes == 0:
        return
    if array.flags.c_contiguous if order == "C" else array.flags.f_contiguous:
        data = bytes_of(array).data
        for part in slices.chunks(data.nbytes, block_bytes):
            yield data[part]
        return
    items = array.view(np.dtype((np.void, array.itemsize)))  # with all their bytes, padding included
    flat = (items if order == "C" else items.T).flat
    for part in slices.chunks(items.size, block_bytes // array.itemsize):
        yield flat[part].view(np.uint8).data


def put(fd: int, at: int, piece: memoryview) -> None:
    """Writes all bytes of `piece` at `at`.

    Raises:
        OSError: There is no room for them, or the disk fails.
    """
    while piece.nbytes:
        written = os.pwrite(fd, piece, at)
        piece, at = piece[written:], at + written
