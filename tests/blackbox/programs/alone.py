"""A program of one rank that makes nearly every public call and prints what it gets.

    python -m tests.blackbox.programs.alone FOLDER [--without-mpi]

With the option mpi4py cannot be imported, as where it is not installed.
"""

import sys
from pathlib import Path

if "--without-mpi" in sys.argv:
    sys.modules["mpi4py"] = None  # type: ignore[assignment]

import numpy as np

import mpishare as ms
from mpishare.comm import mpi


def square(item):
    return item * item


def arrays():
    table = ms.share(np.arange(6.0))
    grid = ms.zeros((4, 2))
    grid[ms.partition(4)] = 3
    ms.fence()
    ms.put(grid, np.s_[0], np.ones(2))
    both = ms.share({"table": table, "more": [np.ones(3), "text"]})
    yield table, table.flags.writeable, grid, both, ms.share(call=lambda: np.full(2, 7))
    own = ms.private(table)
    own += 1
    yield own, table, ms.bcast(grid), ms.full(3, 2), ms.empty(2).shape


def results():
    rows = np.arange(6).reshape(3, 2)
    yield ms.allreduce(rows), ms.allgather(rows), ms.gather(rows), ms.scatter(rows)
    with ms.Pool() as pool:
        yield pool.map(square, range(5)), pool.submit(square, 3).result(), list(pool.imap(square, [1, 2]))
        try:
            pool.map(int, ["1", "one"])
        except ValueError as error:
            yield type(error).__name__, isinstance(error, ms.TaskError)
    yield ms.map(square, [4, 5])


def messages():
    request = ms.irecv(0, tag=3)
    sent = [ms.isend(np.arange(1 << 20), 0, tag=tag) for tag in (4, 3)]
    yield request.wait().sum(), ms.recv(0, tag=4).shape, [each.wait() for each in sent]
    ms.send({"a": np.ones(2), "b": "text"}, 0)
    yield ms.recv(), ms.sendrecv(np.zeros(2), 0)
    comm = ms.topology().comm
    comm.Send(np.ones((2, 2))[:, 0], mpi.PROC_NULL)  # whose buffer MPI does not look at
    status = mpi.Status()
    ms.send([np.ones(3)], 0, 5)
    yield ms.recv(status=status), status.source, status.tag, status.Get_count()
    out = np.empty(3)
    ms.send(np.ones(3), 0)
    yield ms.recv(0, out=out) is out, out
    try:
        ms.recv(99)
    except ms.ArgumentError as error:
        yield str(error)


def files(folder):
    ms.save(folder / "table.npy", np.arange(12).reshape(4, 3))
    yield ms.load(folder / "table.npy"), ms.load(folder / "table.npy", region=np.s_[1:3, 0])
    checkpoint = ms.Checkpoint(folder / "run")
    checkpoint.save(5, {"field": np.ones(3)}, values={"dt": 0.1})
    yield checkpoint.latest().step
    try:
        ms.load(folder / "nothing.npy")
    except ms.FileError as error:
        yield error.args[0].replace(str(folder), "")


def facts():
    nodes = ms.topology()
    yield nodes.size, nodes.n_nodes, nodes.is_leader, nodes.ranks_of(0), ms.report().bytes_saved, ms.info().size
    yield ms.share(np.ones(2), comm=ms.SELF), ms.topology(ms.SELF).size, ms.SELF.size


def main(folder):
    for part in (arrays(), results(), messages(), files(Path(folder)), facts()):
        for values in part:
            print(values)


if __name__ == "__main__":
    main(sys.argv[1])
