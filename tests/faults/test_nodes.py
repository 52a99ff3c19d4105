"""Which ranks of one host are a node where namespaces lie between them, or where MPI puts each on its own node."""

import sys

import pytest

from tests.blackbox.launch import other_python, python_of, run, run_ranks

MPICH = str(python_of("mpich"))
NODES = """
import ctypes, sys, numpy as np, mpishare as ms
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.alltoall([bytes(1 << 20)] * comm.size)  # has MPI connect all ranks, for large messages too, while it can
CLONE_NEWNET = 0x40000000
assert str(comm.rank) not in sys.argv or ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
for each in (comm, comm.Dup()):
    table = ms.share(np.arange(1e6) if comm.rank == 0 else None, comm=each)
    assert (table == np.arange(1e6)).all()
    info = ms.info(probe=True, comm=each)
if comm.rank == 0:
    print(*(node.ranks for node in info.nodes), info, sep="\\n")
"""
USER_NAMESPACE = ["unshare", "--user", "--map-root-user"]
NAMESPACES = [*USER_NAMESPACE, "--pid", "--uts", "--fork", "--mount-proc"]
TWO_NAMES = 'hostname host-$((PMI_RANK % 2)); exec "$@"'


def run_nodes(*args):
    """Runs NODES on 4 ranks of MPICH, each of them a node to MPI, by a command line that begins with `args`."""
    line = [other_python("mpich"), "-m", "mpishare", "run", "-n", "4", "--", *NAMESPACES, *args]
    return run(line, {"MPIR_CVAR_NOLOCAL": "1"})


@pytest.mark.parametrize("apart", ["", "1 2 3"])
def test_nodes_are_the_ranks_of_one_kernel_and_host_name(apart):
    """An MPI that puts each rank on a node of its own: MPICH 5 over UCX, MPICH with MPIR_CVAR_NOLOCAL=1.

    Outcome: the ranks of a host are one node, with one copy; where they can share no memory, one copy for each rank,
    and stderr says so once.
    """
    ended = run_nodes(MPICH, "-c", NODES, *apart.split())
    assert ended.stdout.splitlines()[0] == "(0, 1, 2, 3)"
    assert "MPI sees 4 nodes in these ranks" in ended.stdout
    assert ended.stderr.count("hold 4 copies") == bool(apart)


def test_hosts_with_names_of_their_own_are_nodes_of_their_own():
    ended = run_nodes("sh", "-c", TWO_NAMES, "sh", MPICH, "-c", NODES)
    assert ended.stdout.splitlines()[:2] == ["(0, 2)", "(1, 3)"]
    assert "mpishare:" not in ended.stderr


def test_ranks_of_one_node_that_can_share_no_memory():
    """Ranks that MPI puts on one node, but that can share no memory.

    Outcome: one copy for each rank, and stderr says so once, with the reasons.
    """
    line = ["--", *USER_NAMESPACE, sys.executable, "-c", NODES, "0", "1"]
    ended = run_ranks(2, line, {"OMPI_MCA_osc": "^sm,ucx"})  # no windows
    assert ended.stdout.splitlines()[0] == "(0, 1)"
    (report,) = [line for line in ended.stderr.splitlines() if line.startswith("mpishare:")]
    assert "hold 2 copies of an array of 8,000,000 bytes" in report
    assert "between network namespaces" in report
