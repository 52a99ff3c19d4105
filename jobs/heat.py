"""Heat on a plate by explicit steps: each node holds its rows once. The job stops on a signal, and goes on later.

    mpiexec -n 4 python jobs/heat.py build/heat --size 512 512 --steps 1000

Each rank steps some of its node's rows; the rows at a node's edge travel to the next node. The last checkpoint in the
folder is the result. On SIGUSR1, which Slurm sends before the time is up (--signal=USR1@60), the job saves one and ends
with status 75, "try again". Started again, on any ranks and nodes, it goes on to the same bits.

Your own data: `start` returns the plate at step 0, and `advance` steps it. With --check, rank 0 steps the whole plate
alone, and the job fails where a bit differs. Needs h5py.
"""

import argparse
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

RATE = 0.2  # of exchange between neighbours in a step; stable up to 0.25
ASK_STEPS, SAVE_STEPS = 10, 500  # how often the ranks ask each other whether one got the signal, and save
TRY_AGAIN = 75  # EX_TEMPFAIL of sysexits.h
Grid = NDArray[Any]


def start(rows: int, columns: int) -> Grid:
    """The plate at step 0: 1 within a circle, 0 elsewhere."""
    y, x = np.ogrid[:rows, :columns]
    return np.asarray((y - rows / 2) ** 2 + (x - columns / 3) ** 2 < (min(rows, columns) / 5) ** 2, float)


def advance(old: Grid, new: Grid, first: int, stop: int) -> None:
    """Steps the rows from `first` to `stop`. The edge of the plate stays as it is."""
    around = old[first - 1 : stop - 1, 1:-1] + old[first + 1 : stop + 1, 1:-1]
    around += old[first:stop, :-2] + old[first:stop, 2:]
    new[first:stop, 1:-1] = old[first:stop, 1:-1] + RATE * (around - 4.0 * old[first:stop, 1:-1])


def exchange(grid: Grid, nodes: ms.Topology) -> None:
    """Waits for the ranks of the node, and receives the rows next to the node's from the nodes that have them."""
    ms.fence(comm=nodes.comm)
    if nodes.is_leader:
        before = nodes.node - 1 if nodes.node > 0 else MPI.PROC_NULL
        after = nodes.node + 1 if nodes.node + 1 < nodes.n_nodes else MPI.PROC_NULL
        ms.sendrecv(grid[1], before, source=after, out=grid[-1], comm=nodes.leaders)
        ms.sendrecv(grid[-2], after, source=before, out=grid[0], comm=nodes.leaders)
    ms.fence(comm=nodes.comm)


def main(args: Sequence[str] | None = None) -> int:
    """The job; 0 when it came to the last step, else 75."""
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where checkpoints go, and are")
    parser.add_argument("--size", type=int, nargs=2, default=(256, 256), help="rows and columns (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--plot", metavar="FILE.png", help="where to draw the plate; needs matplotlib")
    parser.add_argument("--check", action="store_true", help="compare with the same on rank 0 alone")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    world = ms.topology()
    comm = MPI.COMM_WORLD.Split(0, world.node * world.size + world.rank)  # its neighbours are those on the plate
    nodes, checkpoint, (rows, columns) = ms.topology(comm), ms.Checkpoint(options.folder, comm=comm), options.size
    snapshot = checkpoint.latest()
    if rows < comm.size or (snapshot and snapshot.shape("grid") != (rows, columns)):
        raise ValueError(f"heat: --size {rows} {columns}: fewer rows than ranks, or not the size of the checkpoint")
    first = step = snapshot.step if snapshot else 0
    part = ms.partition(rows, comm=comm)
    above = nodes.node_comm.bcast(part.start) - 1  # the row of the plate above the node's first
    own = slice(part.start - above, part.stop - above)  # this rank's rows among the node's
    shape = nodes.node_comm.allreduce(part.stop - part.start) + 2, columns  # with a row above and a row below
    grids = ms.zeros((2, *shape), comm=nodes.node_comm)  # at even and at odd steps
    grids[:, own] = snapshot.load("grid", region=part) if snapshot else start(rows, columns)[part]
    exchange(grids[step % 2], nodes)
    is_stopped = False
    while step < options.steps and not is_stopped:
        if comm.rank == 0 and (step == first or step % SAVE_STEPS == 0):
            print(f"step {step} of {options.steps}", flush=True)
        advance(grids[step % 2], grids[1 - step % 2], max(own.start, 1 - above), min(own.stop, rows - 1 - above))
        step += 1
        exchange(grids[step % 2], nodes)
        is_stopped = step % ASK_STEPS == 0 and comm.allreduce(len(signals)) > 0
        if is_stopped or step % SAVE_STEPS == 0 or step == options.steps:
            checkpoint.save(step, {"grid": grids[step % 2, own]}, distributed=["grid"])
    if options.check or options.plot:
        whole = ms.gather(grids[step % 2, own], comm=comm)
        if whole is not None:  # on rank 0
            look(whole, step, options)
    if comm.rank == 0:
        print(f"first {first}, step {step}" + (": as on one rank" if options.check else ""))
        print(f"halo: 2 rows per node instead of {2 * nodes.node_size}, 2 per rank")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Python itself ends with the default, which is to be killed
    return 0 if step >= options.steps else TRY_AGAIN


def look(plate: Grid, step: int, options: argparse.Namespace) -> None:
    """Compares the whole plate with the same on this rank alone, and draws it."""
    if options.check:
        alone = np.array([start(*plate.shape)] * 2)
        for number in range(step):
            advance(alone[number % 2], alone[1 - number % 2], 1, len(plate) - 1)
        np.testing.assert_array_equal(plate, alone[step % 2])
    if options.plot:
        from matplotlib.figure import Figure

        axes = (figure := Figure(layout="constrained")).subplots()
        image = axes.imshow(plate, vmin=0, vmax=1, cmap="inferno")
        axes.set(xlabel="column", ylabel="row", title=f"step {step}")
        figure.colorbar(image, label="temperature")
        figure.savefig(options.plot, dpi=80)


if __name__ == "__main__":
    raise SystemExit(main())
