"""The ranks of the root's node read its memory, or the root copies where one of them may not."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory import syscalls
from mpishare.transfer import cma

pytestmark = pytest.mark.mpi

COUNT = (9 << 20) // 8 + 5


def share_from(root: int, comm: MPI.Intracomm) -> bool:
    shared = ms.share(np.arange(COUNT) if comm.rank == root else None, root=root, comm=comm)
    return bool((shared == np.arange(COUNT)).all())


@pytest.mark.parametrize("why", ["forbidden", "another process"])
def test_the_root_copies_where_a_rank_may_not_read(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    comm = MPI.COMM_WORLD.Dup()

    def read(pid: int, source: int, target: int, length: int) -> None:
        if why == "forbidden":
            raise OSError(errno.EPERM, "not permitted")

    if comm.rank == comm.size - 1:
        monkeypatch.setattr(syscalls, "read_process", read)
    results = [share_from(root, comm) for root in range(comm.size)]
    here, context = ms.topology(comm), context_of(comm)
    ranks = here.ranks_of(here.node)
    assert all(results)
    assert (here in cma._refusing) == (
        len(ranks) > 1 and comm.size - 1 in ranks and context.config.backend != "private"
    )
    comm.Free()
