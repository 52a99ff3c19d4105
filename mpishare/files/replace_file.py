"""All ranks write a file together, which takes the place of another one when it is whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.files import mpio
from mpishare.files.atomic_file import AtomicFile, telling
from mpishare.files.hdf5_write import has_mpio
from mpishare.files.parallel_write import Writer
from mpishare.files.row_blocks import ROOT, RowBlocks, choose, writers
from mpishare.host.filesystems import type_of
from mpishare.progress_bar import Bar

_STAT_BLOCK_BYTES = 512
"""The unit of st_blocks in stat(2)."""

Checks = Sequence[NDArray[np.uint32]]
"""For each array the CRC-32 of each of its runs."""


@dataclass(frozen=True)
class Order:
    """A file to be written, as all ranks know it; the functions are for the root.

    Attributes:
        path: Where it is to be in the end.
        stacks: The arrays, without their places.
        lay_out: Makes room for them in the new file; returns their places.
        distributed: Whether ranks other than the root have parts.
        dataset: The one array that is saved, in a file that may have others; None for the whole file.
        complete: What is to be done with the new file when all bytes are there; None for nothing.
        names: For which names of files leftovers are removed; see `Beside`.
        progress: Whether the root shows a bar.
    """

    path: Path
    stacks: Sequence[RowBlocks]
    lay_out: Callable[[AtomicFile], Sequence[int]]
    distributed: bool
    dataset: str | None = None
    complete: Callable[[AtomicFile, Sequence[RowBlocks], Checks], None] | None = None
    names: str | None = None
    progress: bool = False

    @property
    def nbytes(self) -> int:
        """Those of all arrays."""
        return sum(stack.spec.nbytes for stack in self.stacks)

    @property
    def mpio(self) -> bool:
        """Whether HDF5 can write it through MPI."""
        return self.distributed and self.dataset is not None and has_mpio()


class _Begun(NamedTuple):
    """What the root tells the others of the new file."""

    temporary: Path
    places: Sequence[int]
    way: str


def replace_file(context: Context, order: Order, arrays: Sequence[NDArray[Any] | None]) -> str:
    """Carries out `order` with this rank's part of each array; returns the way, see `stacks.choose`.

    Raises:
        FileError: The file cannot be written. What was there before is there still, or else the error says so.
        PeerError: The same on another rank.

    Collective:
        Over the communicator.
    """
    with ExitStack() as held:
        with agree(context.collective_comm), telling(order.path, order.dataset):
            new = held.enter_context(AtomicFile(order.path, order.names)) if context.topology.rank == ROOT else None
            told = None if new is None else _begun(context, order, new)
        begun: _Begun = context.collective_comm.bcast_obj(told, ROOT)
        stacks = [replace(stack, at=at) for stack, at in zip(order.stacks, begun.places, strict=True)]
        checks: Checks = []
        if begun.way == "mpio" and order.dataset is not None:
            mpio.write(context, begun.temporary, order.path, order.dataset, stacks[0], arrays[0])
        else:
            checks = _write(context, replace(order, stacks=stacks), begun, arrays, new)
        with agree(context.collective_comm), telling(order.path, order.dataset):
            if new is not None:
                if order.complete is not None:
                    order.complete(new, stacks, checks)
                os.fsync(new.fd)
        with agree(context.collective_comm), telling(order.path, order.dataset):
            if new is not None:
                new.commit()
    return begun.way


def _begun(context: Context, order: Order, new: AtomicFile) -> _Begun:
    """Makes room in the new file, on the root."""
    new.check_room(order.nbytes)
    places = order.lay_out(new)
    filesystem = type_of(str(new.path.parent))  # which may be another where a link leads to the file
    way = choose(context.topology.placement, filesystem, distributed=order.distributed, mpio=order.mpio)
    return _Begun(new.temporary, places, way)


def _write(
    context: Context, order: Order, begun: _Begun, arrays: Sequence[NDArray[Any] | None], new: AtomicFile | None
) -> Checks:
    """Has all bytes written, and returns their checks where these are wanted."""
    bar = Bar(order.nbytes, unit="B") if order.progress and new is not None else None
    before = _allocated_bytes(new)

    def show() -> None:
        if bar is not None:
            bar.show(min(_allocated_bytes(new) - before, order.nbytes))

    checked = order.complete is not None
    writer = Writer(
        context, order.stacks, arrays, writers(context.topology.placement, begun.way), checked=checked, show=show
    )
    with ExitStack() as held:
        held.callback(writer.close)
        if bar is not None:
            held.enter_context(bar)
        with agree(context.collective_comm), telling(order.path, order.dataset):
            writer.open(begun.temporary)
        with agree(context.collective_comm), telling(order.path, order.dataset):
            writer.run()
            if begun.way == "hosts":
                writer.sync()
        if bar is not None:
            bar.show(order.nbytes)
    return _joined(context, writer.checks) if checked else []


def _allocated_bytes(new: AtomicFile | None) -> int:
    """So much of the file has been written, by whichever rank of this host."""
    return 0 if new is None else os.fstat(new.fd).st_blocks * _STAT_BLOCK_BYTES


def _joined(context: Context, mine: Sequence[Sequence[int]]) -> Checks:
    """The checks of all ranks, one rank's after the other's, for each array."""
    told = context.collective_comm.allgather_obj([np.array(numbers, np.uint32).tobytes() for numbers in mine])
    return [np.frombuffer(b"".join(one[number] for one in told), np.uint32) for number in range(len(mine))]
