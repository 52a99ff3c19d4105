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

from mpishare.agreement import agree
from mpishare.files import mpio
from mpishare.files.beside import Beside, telling
from mpishare.files.h5layout import has_mpio
from mpishare.files.stacks import ROOT, Stack, choose, writers
from mpishare.files.writing import Writer
from mpishare.filesystems import type_of
from mpishare.progress import Bar
from mpishare.topology import Topology

__all__ = ["Checks", "Order", "replace_file"]

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
    stacks: Sequence[Stack]
    lay_out: Callable[[Beside], Sequence[int]]
    distributed: bool
    dataset: str | None = None
    complete: Callable[[Beside, Sequence[Stack], Checks], None] | None = None
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


def replace_file(here: Topology, order: Order, arrays: Sequence[NDArray[Any] | None]) -> str:
    """Carries out `order` with this rank's part of each array; returns the way, see `stacks.choose`.

    Raises:
        FileError: The file cannot be written. What was there before is there still, or else the error says so.
        PeerError: The same on another rank.

    Collective:
        Over `here.comm`.
    """
    with ExitStack() as held:
        with agree(here.channel), telling(order.path, order.dataset):
            new = held.enter_context(Beside(order.path, order.names)) if here.rank == ROOT else None
            told = None if new is None else _begun(here, order, new)
        begun: _Begun = here.channel.bcast(told, ROOT)
        stacks = [replace(stack, at=at) for stack, at in zip(order.stacks, begun.places, strict=True)]
        checks: Checks = []
        if begun.way == "mpio" and order.dataset is not None:
            mpio.write(here, begun.temporary, order.path, order.dataset, stacks[0], arrays[0])
        else:
            checks = _write(here, replace(order, stacks=stacks), begun, arrays, new)
        with agree(here.channel), telling(order.path, order.dataset):
            if new is not None:
                if order.complete is not None:
                    order.complete(new, stacks, checks)
                os.fsync(new.fd)
        with agree(here.channel), telling(order.path, order.dataset):
            if new is not None:
                new.commit()
    return begun.way


def _begun(here: Topology, order: Order, new: Beside) -> _Begun:
    """Makes room in the new file, on the root."""
    new.check_room(order.nbytes)
    places = order.lay_out(new)
    filesystem = type_of(str(new.path.parent))  # which may be another where a link leads to the file
    way = choose(here.layout, filesystem, distributed=order.distributed, mpio=order.mpio)
    return _Begun(new.temporary, places, way)


def _write(
    here: Topology, order: Order, begun: _Begun, arrays: Sequence[NDArray[Any] | None], new: Beside | None
) -> Checks:
    """Has all bytes written, and returns their checks where these are wanted."""
    bar = Bar(order.nbytes, unit="B") if order.progress and new is not None else None
    before = _allocated_bytes(new)

    def show() -> None:
        if bar is not None:
            bar.show(min(_allocated_bytes(new) - before, order.nbytes))

    checked = order.complete is not None
    writer = Writer(here, order.stacks, arrays, writers(here.layout, begun.way), checked=checked, show=show)
    with ExitStack() as held:
        held.callback(writer.close)
        if bar is not None:
            held.enter_context(bar)
        with agree(here.channel), telling(order.path, order.dataset):
            writer.open(begun.temporary)
        with agree(here.channel), telling(order.path, order.dataset):
            writer.run()
            if begun.way == "hosts":
                writer.sync()
        if bar is not None:
            bar.show(order.nbytes)
    return _together(here, writer.checks) if checked else []


def _allocated_bytes(new: Beside | None) -> int:
    """So much of the file has been written, by whichever rank of this host."""
    return 0 if new is None else os.fstat(new.fd).st_blocks * _STAT_BLOCK_BYTES


def _together(here: Topology, mine: Sequence[Sequence[int]]) -> Checks:
    """The checks of all ranks, one rank's after the other's, for each array."""
    told = here.channel.allgather([np.array(numbers, np.uint32).tobytes() for numbers in mine])
    return [np.frombuffer(b"".join(one[number] for one in told), np.uint32) for number in range(len(mine))]
