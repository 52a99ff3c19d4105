"""How the bytes of all ranks get to their places in one file: each is written once, with little memory besides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.comm.context import Context
from mpishare.comm.pending import InFlight
from mpishare.comm.tags import Tag
from mpishare.files.atomic_file import write_exactly
from mpishare.files.row_blocks import RowBlocks, Run
from mpishare.progress_bar import Bar
from mpishare.transfer.pipeline import WINDOW, receive_in_order


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
        self._received = [(sender, run) for sender in senders for run in self._runs(sender)]
        largest = max((run.nbytes for _, run in self._received), default=0)
        buffers = cycle([np.empty(largest, np.uint8) for _ in range(WINDOW)])
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
        if self.writers[self._rank] == self._rank:
            self._write()
        else:
            self._send()
        if self._error is not None:
            raise self._error

    def _write(self) -> None:
        with self._deferred_error():
            for run, data in zip(self._runs(self._rank), self._own_data(), strict=True):
                self._write_run(run, data)
        blocks = receive_in_order(self.context.collective_comm, self._places, Tag.ROW_BLOCK)
        for (_, run), block in zip(self._received, blocks, strict=True):
            with self._deferred_error():
                self._write_run(run, block.data)

    def _write_run(self, run: Run, data: memoryview) -> None:
        if self._error is None:
            write_exactly(self.fd, run.offset, data)
            self._written += data.nbytes
            self.bar.show(min(self._written * self._n_writers, self._nbytes))  # the others are about as far

    def _send(self) -> None:
        """Sends this rank's runs, and after an error empty messages in their place: the writer still waits for them."""
        own_data = self._own_data()
        with InFlight(self.context.collective_comm, Tag.ROW_BLOCK) as sending:
            for _ in self._runs(self._rank):
                data = memoryview(b"")
                with self._deferred_error():
                    data = next(own_data, data)
                sending.send(data, self.writers[self._rank])
                sending.wait_until(WINDOW - 1)

    @contextmanager
    def _deferred_error(self) -> Iterator[None]:
        """Keeps an error of the block for `run`, which raises the first one."""
        try:
            yield
        except Exception as error:
            self._error = self._error or error

    def _own_data(self) -> Iterator[memoryview]:
        """The bytes of this rank, run by run."""
        for blocks, array, checksums in zip(self.blocks, self.arrays, self.checksums, strict=True):
            for data in () if array is None else data_of(array, blocks.spec.order, blocks.block_bytes):
                if self.has_checksums:
                    checksums.append(crc32(data))
                yield data

    def _runs(self, rank: int) -> Iterator[Run]:
        for blocks in self.blocks:
            yield from blocks.runs(rank)


def data_of(array: NDArray[Any], order: str, block_bytes: int) -> Iterator[memoryview]:
    """The bytes of an array in blocks, its items in `order`. Only an array of another layout is copied, by blocks."""
    if array.nbytes == 0:
        return
    if array.flags.c_contiguous if order == "C" else array.flags.f_contiguous:
        data: Block = bytes_of(array)
        yield from (data[part].data for part in slices.chunks(data.nbytes, block_bytes))
        return
    items = array.view(np.dtype((np.void, array.itemsize)))  # with all their bytes, padding included
    flat = (items if order == "C" else items.T).flat
    for part in slices.chunks(items.size, block_bytes // array.itemsize):
        yield flat[part].view(np.uint8).data
