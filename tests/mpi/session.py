"""One pytest session a rank: rank 0's output is the job's, and a failure on another rank is told as it happens."""

from __future__ import annotations

import os
import sys
from tempfile import TemporaryDirectory

import pytest
from mpi4py import MPI

import mpishare as ms


class TellFailures:
    """On ranks other than 0, whose output nobody sees: a failure goes to stderr at once."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest with each outcome."""
        if report.failed:
            print(f"[rank {MPI.COMM_WORLD.rank}] {report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)


def _connect(comm: MPI.Intracomm) -> None:
    """What MPI makes once, before maps and descriptors are counted: a message between every two ranks, and a bridge."""
    if comm.size > 1:
        side = comm.Split(comm.rank == 0, comm.rank)
        side.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0).Free()  # type: ignore[attr-defined]
        side.Free()
    for step in range(comm.size):
        comm.sendrecv(None, (comm.rank + step) % comm.size, source=(comm.rank - step) % comm.size)
    ms.map(abs, ())  # the stocks from which ranks claim tasks, one for each communicator


def main() -> int:
    """Runs pytest; the exit status of the worst rank."""
    rank = MPI.COMM_WORLD.rank
    if rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _connect(MPI.COMM_WORLD)
    options = ["-q", "--with-mpi", "-p", "no:cacheprovider", "--timeout=60", "--color=no", "--tb=short"]
    with TemporaryDirectory() as folder:  # of its own, as pytest's common one is cleaned by all sessions at once
        words = [*options, f"--basetemp={folder}/tests", *sys.argv[1:]]
        status = pytest.main(words, plugins=[TellFailures()] if rank else [])
    return int(MPI.COMM_WORLD.allreduce(int(status), MPI.MAX))


if __name__ == "__main__":
    raise SystemExit(main())
