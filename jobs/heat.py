"""Heat on a plate, by explicit steps: a grid in node memory that goes on where a stopped job left it, to the same bits.

    mpiexec -n 4 python jobs/heat.py --size 512,512 --steps 1000 --output heat.h5 --check
    mpiexec -n 4 python jobs/heat.py --checkpoint run --every 200

Each node has its rows once, of which each of its ranks steps some; the rows at a node's edge travel to the next node.
On SIGUSR1, which Slurm sends before the time is up (--signal=USR1@60), the job saves a checkpoint and ends with status
75, "try again". Started again, on any ranks and nodes, it goes on. numba is used where it is installed.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from mpi4py import MPI

import mpishare as ms

RATE = 0.2  # of exchange between neighbours in a step; stable up to 0.25
LOOK_STEPS = 10  # so often the ranks ask each other whether one was told to stop
TELL_S = 5.0
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
Grid = np.ndarray[Any, Any]
stops: list[int] = []


def by_numpy(old: Grid, new: Grid, start: int, stop: int) -> None:
    """Steps the rows from `start` to `stop`."""
    if start < stop:
        plate, near = old[start:stop], old[start - 1 : stop - 1, 1:-1] + old[start + 1 : stop + 1, 1:-1]
        near = near + plate[:, :-2] + plate[:, 2:]
        new[start:stop, 1:-1] = plate[:, 1:-1] + RATE * (near - 4.0 * plate[:, 1:-1])


def by_loops(old: Grid, new: Grid, start: int, stop: int) -> None:
    """The same for numba, in the same order of operations, so that the bits are the same."""
    for i in range(start, stop):
        for j in range(1, old.shape[1] - 1):
            near = old[i - 1, j] + old[i + 1, j] + old[i, j - 1] + old[i, j + 1]
            new[i, j] = old[i, j] + RATE * (near - 4.0 * old[i, j])


advance: Callable[[Grid, Grid, int, int], None] = by_numpy
with suppress(ImportError):
    from numba import njit

    advance = njit(by_loops)


class Plate:
    """The rows of this node, with one more above and below, at an even and at an odd step."""

    def __init__(self, comm: MPI.Intracomm, shape: tuple[int, ...], snapshot: ms.Snapshot | None) -> None:
        self.comm, self.here, self.shape = comm, ms.topology(comm), shape
        self.step = 0 if snapshot is None else snapshot.step
        self.rows, node = ms.partition(shape[0], comm=comm), self.here.node_comm
        self.above = node.bcast(self.rows.start) - 1  # the row of the plate that is this node's first
        self.both = ms.zeros((2, node.allreduce(self.rows.stop - self.rows.start) + 2, shape[1]), comm=node)
        if snapshot is None:
            self.own_part[:] = disc(shape)[self.rows]
        else:
            snapshot.load("grid", region=self.rows, out=self.own_part)
        self.both[1 - self.step % 2][self.place] = self.own_part  # the edge of the plate is the same in both
        self.exchange()

    @property
    def place(self) -> slice:
        """Where this rank's rows are in the node's."""
        return slice(self.rows.start - self.above, self.rows.stop - self.above)

    @property
    def own_part(self) -> Grid:
        """This rank's rows."""
        own: Grid = self.both[self.step % 2][self.place]
        return own

    def exchange(self) -> None:
        """Waits for the ranks of the node, and gets the rows next to the node's from the nodes that have them."""
        ms.fence(comm=self.here.node_comm)
        if self.here.n_nodes > 1:
            if self.here.is_leader:
                grid, leaders, node = self.both[self.step % 2], self.here.leaders, self.here.node
                before = node - 1 if node > 0 else MPI.PROC_NULL
                after = node + 1 if node + 1 < leaders.size else MPI.PROC_NULL
                ms.sendrecv(grid[1], before, source=after, out=grid[-1], comm=leaders)
                ms.sendrecv(grid[-2], after, source=before, out=grid[0], comm=leaders)
            ms.fence(comm=self.here.node_comm)

    def advance(self) -> None:
        """One step. The edge of the plate stays as it is."""
        old, new = self.both[self.step % 2], self.both[1 - self.step % 2]
        start, stop = max(self.rows.start, 1), min(self.rows.stop, self.shape[0] - 1)
        advance(old, new, start - self.above, stop - self.above)
        self.step += 1
        self.exchange()

    def save(self, checkpoint: ms.Checkpoint) -> None:
        """A checkpoint of the rows of all ranks."""
        checkpoint.save(self.step, {"grid": self.own_part}, distributed=["grid"], values={"rate": RATE})

    def is_right(self) -> bool:
        """Whether rank 0 alone comes to the same bits."""
        both = [disc(self.shape), disc(self.shape)]
        for step in range(self.step if self.comm.rank == 0 else 0):
            advance(both[step % 2], both[1 - step % 2], 1, self.shape[0] - 1)
        whole = ms.share(both[self.step % 2], comm=self.comm)
        return bool(self.comm.allreduce(whole[self.rows].tobytes() == self.own_part.tobytes(), MPI.LAND))


def disc(shape: tuple[int, ...]) -> Any:
    """1 within a circle, 0 elsewhere."""
    y, x = np.ogrid[: shape[0], : shape[1]]
    return np.where((y - shape[0] / 2) ** 2 + (x - shape[1] / 3) ** 2 < (min(shape) / 5) ** 2, 1.0, 0.0)


def run(plate: Plate, options: argparse.Namespace, checkpoint: ms.Checkpoint | None) -> None:
    """Steps to the end, or until a rank is told to stop."""
    printed_s = -TELL_S
    while plate.step < options.steps:
        plate.advance()
        if plate.step % LOOK_STEPS == 0 and plate.comm.allreduce(len(stops)):
            break
        if checkpoint is not None and plate.step % options.every == 0:
            plate.save(checkpoint)
        if options.progress and plate.comm.rank == 0 and time.monotonic() - printed_s > TELL_S:
            printed_s = time.monotonic()
            print(f"step {plate.step:,} of {options.steps:,}", flush=True)


def main(args: Sequence[str] | None = None) -> int:
    """The job; 0 when it came to the end, and to the right bits where it checks them."""
    options, start = parse_options(args), time.perf_counter()
    signal.signal(signal.SIGUSR1, lambda *_: stops.append(1))
    nodes = ms.topology()
    order = [rank for node in range(nodes.n_nodes) for rank in nodes.ranks_of(node)]
    # Neighbours in rank are to be neighbours on the plate.
    comm = cast("MPI.Intracomm", MPI.COMM_WORLD.Split(0, order.index(nodes.rank)))
    checkpoint = ms.Checkpoint(options.checkpoint, comm=comm) if options.checkpoint else None
    snapshot = None if checkpoint is None else checkpoint.latest()
    shape = options.size if snapshot is None else snapshot.shape("grid")
    if shape != options.size or shape[0] < comm.size:
        raise SystemExit(f"heat: --size {options.size}, but the checkpoint has {shape}; or fewer rows than ranks")
    plate = Plate(comm, shape, snapshot)
    result: dict[str, Any] = {
        "ranks": comm.size,
        "nodes": nodes.n_nodes,
        "kernel": "numpy" if advance is by_numpy else "numba",
        "first": plate.step,
    }
    run(plate, options, checkpoint)
    is_over = plate.step >= options.steps
    if is_over and options.output:
        ms.save(options.output, plate.own_part, "grid", distributed=True, comm=comm)
    elif not is_over and checkpoint is not None:
        plate.save(checkpoint)
    result |= {"step": plate.step} | ({"right": plate.is_right()} if options.check else {})
    result |= {"seconds": round(time.perf_counter() - start, 3)}
    if comm.rank == 0:
        line = ", ".join(f"{name} {value}" for name, value in result.items())
        print(json.dumps(result) if options.json else line)
        if is_over and options.picture:
            draw(options)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python itself ends with the default, which is to be killed
    return int(not result.get("right", True)) if is_over else TRY_AGAIN


def draw(options: argparse.Namespace) -> None:
    """A picture of the plate in the end."""
    import h5py
    import matplotlib.image

    with h5py.File(options.output) as file:
        matplotlib.image.imsave(options.picture, file["grid"][()], cmap="inferno")


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="256,256", help="rows and columns (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="where checkpoints are, and go")
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.h5", help="where the grid goes in the end")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="a picture of that; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    parser.add_argument("--progress", action="store_true", help="tell the steps as they go")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(args)
    try:
        options.size = tuple(map(int, options.size.split(",")))
    except ValueError:
        options.size = ()
    if len(options.size) != 2 or min(*options.size, options.every + 2) < 3 or (options.picture and not options.output):
        parser.error("--size takes two lengths from 3 on, as in 256,256; --every 1 or more; --picture needs --output")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
