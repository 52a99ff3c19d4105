"""How the bytes of all ranks get to their places in one file: each is written once, with little memory besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass
class ParallelWrite:
    """This rank's part in writing arrays to one file. Making it opens the file and allocates what `run` needs. Local.

    An error ends the writing, but not the messages: other ranks would wait for them. `run` raises it at its end.

    Attributes:
        context: The context of the communicator.
        path: An existing file.
        blocks: Which rank has which bytes of each array, and their places in the file.
        arrays: This rank's part of each, None where it has none.
        writers: For each rank the one that writes its bytes; see `row_blocks.writers`.
        has_checksums: Whether `checksums` are wanted.
        bar: Shows how many bytes have been written.
        file: Closes the file when it is left.
        fd: The descriptor of the file; -1 on a rank that writes nothing.
        checksums: For each array the CRC-32 of each run of this rank; empty lists if they are not wanted.

    Raises:
        OSError, MemoryError: The file cannot be opened, or there is no memory.
    """

    context: Context
    path: Path
    blocks: Sequence[RowBlocks]
    arrays: Sequence[NDArray[Any] | None]
    writers: Sequence[int]
    has_checksums: bool
    bar: Bar

    def __post_init__(self) -> None:
        self.checksums: list[list[int]] = [[] for _ in self.blocks]
        self._rank = self.context.topology.rank
        self._n_writers = len(set(self.writers))
        self._nbytes = sum(blocks.spec.nbytes for blocks in self.blocks)
        self._written = 0
        self._error: Exception | None = None
        senders = [rank for rank, writer in enumerate(self.writers) if writer == self._rank != rank]
        self._received = [(sender, run) for sender in senders for blocks in self.blocks for run in blocks.runs(sender)]
        largest = max((run.nbytes for _, run in self._received), default=0)
        buffers = cycle([np.empty(largest, np.uint8) for _ in range(MAX_IN_FLIGHT)])
        self._places = [(sender, next(buffers)[: run.nbytes]) for sender, run in self._received]
        self.file = ExitStack()
        self.fd = -1
        if self._rank in self.writers:
            self.fd = self.file.enter_context(self.path.open("rb+", buffering=0)).fileno()

    def run(self) -> None:
        """Writes this rank's bytes and those that others send, or sends them to their writer.

        Raises:
            OSError: They cannot be written.

        Collective:
            Over the communicator.
        """
        comm, writer = self.context.collective_comm, self.writers[self._rank]
        if writer == self._rank:
            with InFlight(comm, Tag.ROW_BLOCK, buffers=self._places) as receiving:
                messages = receiving.receive_all()
                received = ((run, block.data) for (_, run), block in zip(self._received, messages, strict=True))
                for run, data in chain(self._own_runs(), received):
                    self._write(run, data)
        else:
            count = sum(1 for blocks in self.blocks for _ in blocks.runs(self._rank))
            with InFlight(comm, Tag.ROW_BLOCK, [writer] * count) as sending:
                for _, data in self._own_runs():
                    sending.send(data, writer)
                    sending.wait_until(MAX_IN_FLIGHT - 1)
        if self._error is not None:
            raise self._error

    def _own_runs(self) -> Iterator[tuple[Run, memoryview]]:
        """The runs of this rank with their bytes; none after an error, though the writer waits for each run."""
        for blocks, array, checksums in zip(self.blocks, self.arrays, self.checksums, strict=True):
            start = blocks.offset + blocks.starts[self._rank]
            for run in blocks.runs(self._rank):
                data = memoryview(b"")
                if self._error is None:
                    try:
                        data = bytes_at(array, blocks.spec.order, run.offset - start, run.nbytes)
                        if self.has_checksums:
                            checksums.append(crc32(data))
                    except Exception as error:
                        self._error = error
                yield run, data

    def _write(self, run: Run, data: memoryview) -> None:
        if self._error is None:
            try:
                write_exactly(self.fd, run.offset, data)
                self._written += data.nbytes
                self.bar.show(min(self._written * self._n_writers, self._nbytes))  # the others are about as far
            except Exception as error:
                self._error = error


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
