"""Ranks of one host that share memory although namespaces lie between them."""

import sys

from tests.blackbox.launch import run_ranks

SHARE = """
import numpy as np, mpishare as ms
from mpi4py import MPI
table = ms.share(np.arange(1e6) if MPI.COMM_WORLD.rank == 0 else None, backend="memmap")
assert (table == np.arange(1e6)).all()
print(ms.report().segments[0].backend)
"""


def test_a_user_namespace_for_each_rank():
    """A user namespace for each rank, as Apptainer makes.

    Outcome: nothing: the leader sends the nameless file over a socket.
    """
    ended = run_ranks(3, ["--", "unshare", "--user", "--map-current-user", sys.executable, "-c", SHARE])
    assert ended.stdout == "memmap in memory\n" * 3
