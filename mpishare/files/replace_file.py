"""How all ranks write one file, each byte once, which takes the place of another when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, cycle
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.arrays.spec import Spec
from mpishare.comm import callsite
from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.context import Context
from mpishare.comm.in_flight import MAX_IN_FLIGHT, InFlight, Tag
from mpishare.comm.topology import Placement
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.errors import file_errors, stall_errors
from mpishare.host.filesystems import IN_MEMORY, type_of
from mpishare.host.memory import check_memory
from mpishare.progress_bar import Bar

ROOT = 0
"""The rank that makes the file, and whose array is saved if all ranks have the same. It leads the first node."""

BLOCK_BYTES = 4 << 20
"""Bytes that are written, sent and checked at a time: little memory, and enough to hide the cost of a call.
A checkpoint has a checksum for each, so that another number needs another version of its file."""

_SHARED_BY_HOSTS = frozenset({"lustre", "gpfs", "ceph", "pvfs2", "wekafs", "panfs"})
"""File systems on which hosts may write parts of one file at the same time, wherever the parts meet. On NFS and BeeGFS
the caches of two hosts may each hold the page in which they meet (RFC 1813, section 4.11), with MPI-IO too."""


class Run(NamedTuple):
    """Contiguous bytes of a file: the offset of the first one, and their number."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class RowBlocks:
    """An array in a file: the bytes of the ranks, one rank's behind the other's.

    Attributes:
        spec: The whole array.
        starts: Where the bytes of each rank begin, relative to the array, and at last where all end.
        offset: Where the array begins in the file, in bytes.
    """

    spec: Spec
    starts: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of_rows(cls, rows: Spec, lengths: Sequence[int]) -> RowBlocks:
        """An array that has `lengths[rank]` rows on each rank; `rows` is the spec of any rank's."""
        spec = replace(rows, shape=(sum(lengths), *rows.shape[1:]), order="C")
        row_bytes = replace(rows, shape=rows.shape[1:]).nbytes
        return cls(spec, tuple(row_bytes * row for row in accumulate(lengths, initial=0)))

    @property
    def block_bytes(self) -> int:
        """The size of a run, but for the last one of a rank: whole items, of about `BLOCK_BYTES`."""
        itemsize = self.spec.dtype.itemsize or 1
        return max(BLOCK_BYTES // itemsize, 1) * itemsize

    def runs(self, rank: int) -> Iterator[Run]:
        """The bytes of a rank, in the order of the file."""
        start, stop = self.starts[rank], self.starts[rank + 1]
        for part in slices.chunks(stop - start, self.block_bytes):
            yield Run(self.offset + start + part.start, part.stop - part.start)

    def all_runs(self) -> Iterator[Run]:
        """The bytes of all ranks, in the order of the file."""
        for rank in range(len(self.starts) - 1):
            yield from self.runs(rank)


def writers(placement: Placement, way: str) -> tuple[int, ...]:
    """The rank that writes the bytes of each rank: for a rank of another node, one of the root's node."""
    size = len(placement.node_of)
    if way == "root":
        return (ROOT,) * size
    if way != "streams":
        return tuple(range(size))
    near = placement.nodes[placement.node_of[ROOT]]
    turns = cycle(near)
    return tuple(rank if rank in near else next(turns) for rank in range(size))


Checksums = Sequence[NDArray[np.uint32]]
"""The CRC-32 of each run of each array."""


Blocks = Mapping[str, RowBlocks]
"""Which rank has which bytes of each array, by name."""


@dataclass
class Replacement:
    """A file that all ranks write, and that takes the place of another at the end. The functions are for the root.

    Attributes:
        context: The context of the communicator.
        path: The file to replace or to make.
        arrays: The arrays by name, the same names on all ranks.
        specs: On the root the spec of each array; on the others at least the specs of the distributed ones, for this
            rank's rows.
        distributed: The names of the arrays whose rows lie on all ranks.
        lay_out: Makes room for the arrays in the new file; returns their offsets.
        complete: Completes the new file when all arrays are in it; None if there is nothing to do.
        dataset: The only dataset that is written, for errors; None for the whole file.
        progress: Whether the root shows a bar.
        blocks: Which rank has which bytes of each array, and where in the file.
    """

    context: Context
    path: Path
    arrays: Mapping[str, NDArray[Any] | None]
    specs: Mapping[str, Spec]
    distributed: Collection[str]
    lay_out: Callable[[AtomicFile, Blocks], Sequence[int]]
    complete: Callable[[AtomicFile, Blocks, Checksums], None] | None = None
    dataset: str | None = None
    progress: bool = False
    blocks: dict[str, RowBlocks] = field(default_factory=dict)

    def run(self) -> str:
        """Writes the file.

        Returns:
            How it was written; see `_way`.

        Raises:
            FileError: The file cannot be written. The old one is still there, or the error says otherwise.
            StallError: The old file stays, or the error says otherwise.
            PeerError: Another rank raised one.

        Collective:
            Over the communicator.
        """
        comm = self.context.collective_comm
        new = prepared = None
        self.blocks = self._gather_blocks()
        with ExitStack() as stack:
            with self._agree():
                if comm.rank == ROOT:
                    new = stack.enter_context(AtomicFile(self.path))
                    if new.old is not None and new.old.st_nlink > 1:
                        callsite.warn(f"{self.path} has other names (hard links), which keep the old file")
                    way = self._way(new)
                    prepared = new.temporary, self.lay_out(new, self.blocks), way
            temporary, offsets, way = comm.bcast_obj(prepared, ROOT)
            for (name, array), offset in zip(list(self.blocks.items()), offsets, strict=True):
                self.blocks[name] = replace(array, offset=offset)
            checksums = self._write(temporary, way)
            with self._agree():
                if new is not None:
                    if self.complete is not None:
                        self.complete(new, self.blocks, checksums)
                    new.sync()
            with agree(comm):
                pass  # no rank has given up waiting for the disk: it would not come here
            outcome = f"the new file is on the disk, and takes its name unless rank {ROOT} reports an error"
            with stall_errors(outcome), self._agree():
                if new is not None:
                    new.commit()
        return str(way)

    @property
    def _rank(self) -> int:
        return self.context.topology.rank

    @contextmanager
    def _agree(self) -> Iterator[None]:
        """An agreement in which errors name the file."""
        with agree(self.context.collective_comm), file_errors(self.path, self.dataset, "it was not saved"):
            yield

    def _gather_blocks(self) -> dict[str, RowBlocks]:
        comm = self.context.collective_comm
        specs_of_root: Mapping[str, Spec] = comm.bcast_obj(self.specs, ROOT)
        counts = comm.allgather_obj({name: self.specs[name].shape[0] for name in self.distributed})
        return {
            name: RowBlocks.of_rows(spec, [count[name] for count in counts])
            if name in self.distributed
            else RowBlocks(spec, (0, *(spec.nbytes,) * comm.size))  # the root has all of it
            for name, spec in specs_of_root.items()
        }

    def _way(self, new: AtomicFile) -> str:
        """How the bytes are written. A file system must have room for them, also one in memory.

        Returns:
            "root": the root writes all. "node": all ranks write; they are on one node. "hosts": all ranks write; the
            file system allows it. "streams": the ranks of the root's node write, and receive the bytes of the others.
        """
        nbytes = sum(array.spec.nbytes for array in self.blocks.values())
        filesystem = type_of(str(new.path.parent))  # the file may be behind a symbolic link
        if filesystem in IN_MEMORY:
            check_memory(self.context.topology.host, nbytes)
        new.check_room(nbytes)
        if not self.distributed or self.context.topology.n_nodes == 1:
            return "node" if self.distributed else "root"
        return "hosts" if filesystem in _SHARED_BY_HOSTS else "streams"

    def _write(self, temporary: Path, way: str) -> Checksums:
        """Writes the bytes of all ranks. Returns their checksums if the file is completed with them."""
        comm, ranks = self.context.collective_comm, writers(self.context.topology.placement, way)
        senders = [rank for rank, writer in enumerate(ranks) if writer == self._rank != rank]
        runs = [(rank, run) for rank in senders for array in self.blocks.values() for run in array.runs(rank)]
        checksums: dict[str, list[int]] = {name: [] for name in self.blocks}
        with ExitStack() as stack:
            with self._agree():
                is_shown = self.progress and comm.rank == ROOT
                bar = stack.enter_context(Bar(sum(a.spec.nbytes for a in self.blocks.values()), "B", is_shown=is_shown))
                largest = max((run.nbytes for _, run in runs), default=0)
                buffers = cycle([np.empty(largest, np.uint8) for _ in range(MAX_IN_FLIGHT)])
                received = [(rank, next(buffers)[: run.nbytes], run) for rank, run in runs]
                is_writer = ranks[self._rank] == self._rank
                file = stack.enter_context(temporary.open("rb+", buffering=0)) if is_writer else None
            with self._agree():
                work = Deferred()
                own = self._own(checksums, work)
                if file is not None:
                    self._write_runs(file.fileno(), own, received, work, bar)
                    with work, file:  # closing it may report that bytes could not be written
                        if way == "hosts":
                            os.fsync(file.fileno())
                else:
                    with InFlight(comm, Tag.ROW_BLOCK) as sending:
                        for _, data in own:
                            sending.send(data, ranks[self._rank])
                            sending.wait_until(MAX_IN_FLIGHT - 1)
                work.raise_first()
        if self.complete is None:
            return []
        by_rank = comm.allgather_obj([np.array(of_array, np.uint32) for of_array in checksums.values()])
        return [np.concatenate(of_ranks) for of_ranks in zip(*by_rank, strict=True)]

    def _write_runs(
        self, fd: int, own: Iterator[Any], received: Sequence[tuple[int, Block, Run]], work: Deferred, bar: Bar
    ) -> None:
        """Writes this rank's bytes, and then the bytes of others. The others are about as far as this rank is."""
        nbytes, done = sum(array.spec.nbytes for array in self.blocks.values()), 0
        mine = sum(array.starts[self._rank + 1] - array.starts[self._rank] for array in self.blocks.values())
        mine += sum(run.nbytes for _, _, run in received)
        places = [(sender, buffer) for sender, buffer, _ in received]
        with InFlight(self.context.collective_comm, Tag.ROW_BLOCK, buffers=places) as receiving:
            arriving = zip((run for _, _, run in received), receiving.receive_all(), strict=True)
            for run, data in chain(own, arriving):
                with work:
                    write_exactly(fd, run.offset, memoryview(data))
                done += run.nbytes
                bar.show(nbytes * done // mine)

    def _own(self, checksums: dict[str, list[int]], work: Deferred) -> Iterator[tuple[Run, memoryview]]:
        """This rank's runs with their bytes; after an error without them, as the writer waits for each run."""
        for name, blocks in self.blocks.items():
            start = blocks.offset + blocks.starts[self._rank]
            for run in blocks.runs(self._rank):
                data = memoryview(b"")
                with work:
                    data = bytes_at(self.arrays[name], blocks.spec.order, run.offset - start, run.nbytes)
                    if self.complete is not None:
                        checksums[name].append(crc32(data))
                yield run, data


def bytes_at(array: NDArray[Any] | None, order: str, start: int, nbytes: int) -> memoryview:
    """The `nbytes` bytes from `start` on of an array, its items in `order`. Only an array of another layout is copied.

    Args:
        array: The array, which has these bytes.
        order: "C" or "F".
        start: The first byte, at which an item begins.
        nbytes: The number of bytes, a multiple of the item size.
    """
    assert array is not None
    if array.flags.c_contiguous if order == "C" else array.flags.f_contiguous:
        return bytes_of(array)[start : start + nbytes].data
    items = array.view(np.dtype((np.void, array.itemsize)))  # with all their bytes, padding included
    flat = (items if order == "C" else items.T).flat
    return flat[start // array.itemsize : (start + nbytes) // array.itemsize].view(np.uint8).data
