"""How the bytes of all ranks get to their places in one file: each is written once, with little memory besides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, cycle
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight
from mpishare.comm.tags import Tag
from mpishare.files.atomic_file import write_exactly
from mpishare.files.row_blocks import RowBlocks, Run
from mpishare.progress_bar import Bar


class ParallelWrite:
    """This rank's part in writing arrays to one file.

    An error ends the writing, but not the messages: other ranks would wait for them. `run` raises it at its end.

    Attributes:
        file: Closes the file when it is left.
        fd: The descriptor of the file; -1 on a rank that sends its bytes to another.
        checksums: For each array the CRC-32 of each run of this rank; empty lists if they are not wanted.
    """

    def __init__(
        self,
        context: Context,
        path: Path,
        blocks: Sequence[RowBlocks],
        arrays: Sequence[NDArray[Any] | None],
        writers: Sequence[int],
        has_checksums: bool,
    ) -> None:
        """Opens the file and allocates what `run` needs. Local.

        Args:
            context: The context of the communicator.
            path: An existing file.
            blocks: Which rank has which bytes of each array, and their places in the file.
            arrays: This rank's part of each, None where it has none.
            writers: For each rank the one that writes its bytes; see `row_blocks.writers`.
            has_checksums: Whether `checksums` are wanted.

        Raises:
            OSError, MemoryError: The file cannot be opened, or there is no memory.
        """
        self._comm, self._rank = context.collective_comm, context.topology.rank
        self._blocks, self._arrays, self._writer = blocks, arrays, writers[self._rank]
        self._has_checksums = has_checksums
        self._error: Exception | None = None
        self.checksums: list[list[int]] = [[] for _ in blocks]
        senders = [rank for rank, writer in enumerate(writers) if writer == self._rank != rank]
        self._received = [(sender, run) for sender in senders for array in blocks for run in array.runs(sender)]
        largest = max((run.nbytes for _, run in self._received), default=0)
        self._buffers = cycle([np.empty(largest, np.uint8) for _ in range(MAX_IN_FLIGHT)])
        self.file, self.fd = ExitStack(), -1
        if self._writer == self._rank:
            self.fd = self.file.enter_context(path.open("rb+", buffering=0)).fileno()

    def run(self, bar: Bar) -> None:
        """Writes this rank's bytes and those that others send, or sends them to their writer.

        Raises:
            OSError: They cannot be written.

        Collective:
            Over the communicator.
        """
        own = [run for array in self._blocks for run in array.runs(self._rank)]
        if self._writer == self._rank:
            self._write_all([*own, *(run for _, run in self._received)], bar)
        else:
            with InFlight(self._comm, Tag.ROW_BLOCK) as sending:
                for data in self._own():
                    sending.send(data, self._writer)
                    sending.wait_until(MAX_IN_FLIGHT - 1)
        if self._error is not None:
            raise self._error

    def _write_all(self, runs: Sequence[Run], bar: Bar) -> None:
        """Writes this rank's bytes, and then those that others send. The others are about as far as this rank is."""
        written, share = 0, sum(run.nbytes for run in runs) / (sum(array.spec.nbytes for array in self._blocks) or 1)
        places = [(sender, next(self._buffers)[: run.nbytes]) for sender, run in self._received]
        with InFlight(self._comm, Tag.ROW_BLOCK, buffers=places) as receiving:
            for run, data in zip(runs, chain(self._own(), receiving.receive_all()), strict=True):
                self._attempt(write_exactly, self.fd, run.offset, memoryview(data))
                written += run.nbytes
                bar.show(int(written / share))

    def _own(self) -> Iterator[Any]:
        """The bytes of this rank's runs; none after an error, though the writer waits for each run."""
        for blocks, array, checksums in zip(self._blocks, self._arrays, self.checksums, strict=True):
            start = blocks.offset + blocks.starts[self._rank]
            for run in blocks.runs(self._rank):
                data = self._attempt(bytes_at, array, blocks.spec.order, run.offset - start, run.nbytes)
                if self._has_checksums:
                    checksums.append(crc32(data))
                yield data

    def _attempt(self, work: Callable[..., Any], *args: Any) -> Any:
        """The result of a function; no bytes after an error, which is noted."""
        if self._error is None:
            try:
                return work(*args)
            except Exception as error:
                self._error = error
        return b""


def bytes_at(array: NDArray[Any] | None, order: str, start: int, nbytes: int) -> memoryview:
    """The `nbytes` bytes from `start` on of an array, its items in `order`. Only an array of another layout is copied.

    Args:
        array: The array, which has these bytes.
        order: "C" or "F".
        start: The first byte, at which an item begins.
        nbytes: The number of bytes, those of whole items.
    """
    assert array is not None
    if array.flags.c_contiguous if order == "C" else array.flags.f_contiguous:
        return bytes_of(array)[start : start + nbytes].data
    items = array.view(np.dtype((np.void, array.itemsize)))  # with all their bytes, padding included
    flat = (items if order == "C" else items.T).flat
    return flat[start // array.itemsize : (start + nbytes) // array.itemsize].view(np.uint8).data
