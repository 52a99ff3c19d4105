"""Whole programs: memory, numbers and ends, ranks that are killed, pools that end badly; what they leave behind."""

import pytest

from tests.blackbox.launch import PLAIN, run_code, run_ranks

ONE_COPY = """
import numpy as np, mpishare as ms
from mpi4py import MPI
from tests.processes import proportional_bytes
comm, nbytes = MPI.COMM_WORLD, 128 << 20
ms.share(np.arange(10) if comm.rank == 0 else None)  # what MPI and we allocate once is there now
for backend in ("window", "memmap"):
    before = proportional_bytes(comm)
    array = ms.share(np.ones(nbytes, "u1") if comm.rank == 0 else None, backend=backend)
    assert array.sum(dtype=int) == nbytes
    held = proportional_bytes(comm) - before
    if comm.rank == 0: print(held / nbytes)
"""


def test_one_copy_per_node_in_proportional_memory():
    held = run_code(4, ONE_COPY, {"MPISHARE_NODES": "block:2"}).stdout.split()
    assert len(held) == 2
    assert all(0.9 < float(each) / 2 <= 1.05 for each in held)  # MPI's own pages come and go


READER = """
import mpishare as ms, numpy as np
table = ms.share(np.arange(6.0))
sums = ms.allgather(np.zeros(1))
print("reader", sums.tolist())
"""
MODEL = """
import mpishare as ms, numpy as np
table = ms.share(None)
ms.allgather(np.full(1, table.sum() * ms.topology().rank))
"""


def test_two_programs_in_one_job(tmp_path):
    """MPMD: an array of one program is node memory of the other."""
    for name, code in (("reader.py", READER), ("model.py", MODEL)):
        (tmp_path / name).write_text(code)
    python = PLAIN[1:]
    line = [*PLAIN, str(tmp_path / "reader.py"), ":", "-n", "3", *python, str(tmp_path / "model.py")]
    more_ranks_than_cores = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    ended = run_ranks(1, line, {"MPISHARE_NODES": "block:2", **more_ranks_than_cores})
    assert ended.stdout == "reader [0.0, 15.0, 30.0, 45.0]\n"


KIND = """
import numpy as np, mpishare as ms
keeps = [ms.share(np.ones(1 << 20)) for _ in range(3)]
if ms.topology().rank == 0: print(*{segment.backend for segment in ms.report().segments})
"""


@pytest.mark.parametrize(("components", "kind"), [("^ucx", "window"), ("", "memmap in memory")])
def test_open_mpi_prints_no_error_for_each_window(components, kind):
    """As plain mpiexec starts it, on a host without InfiniBand."""
    ended = run_code(2, KIND, {"OMPI_MCA_osc": components})
    assert ended.stdout == f"{kind}\n"
    assert ended.stderr == ""


HOLD = "import mpishare as ms, numpy as np; from mpi4py import MPI; a = ms.share(np.arange(9)); z = ms.zeros(9); "
CALLS = """
pool = ms.Pool(MPI.COMM_SELF)
def in_task(): MPI.Finalize(); ms.map(abs, [1])
assert "MPI has ended" in str(pool.submit(in_task).exception())
for call in (lambda: ms.zeros(3), lambda: ms.map(abs, [1]), ms.Pool, lambda: pool.map(abs, [1])):
    try: call()
    except ms.ArgumentError as error: assert "MPI has ended" in str(error)
    else: raise AssertionError
"""

ENDS = {
    "live views": (HOLD, 0),
    "live views in a cycle": (HOLD + "l = [a]; l.append(l)", 0),
    "views read while Python ends": (HOLD + "import atexit; atexit.register(lambda: print(a.sum() + z.sum()))", 0),
    "views read after MPI ended": (HOLD + "MPI.Finalize(); assert a.sum() == 36; z[:] = 1; del a, z", 0),
    "sys.exit": (HOLD + "raise SystemExit(3)", 3),
    "calls after MPI ended": (HOLD + CALLS, 0),
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_with_live_views(name):
    """The interpreter ends with live views, in cycles, in atexit handlers, after MPI_Finalize.

    Outcome: nothing.
    """
    code, status = ENDS[name]
    ended = run_code(2, code, status=status)
    if status == 0:
        assert ended.stderr == ""


@pytest.mark.parametrize(("code", "status"), [("bad input", 1), (3, 3), (0, 0)])
def test_a_rank_that_leaves_by_sys_exit(code, status, tmp_path):
    """Under mpishare run: with an error it ends the job, in which others wait for it; else they go on without it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, mpishare as ms; from mpi4py import MPI; side = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank == 1)\n"
        f"if MPI.COMM_WORLD.rank == 1: sys.exit({code!r})\n"
        f"print(ms.zeros(3, comm={'None' if status else 'side'}).sum())"
    )
    ended = run_ranks(3, [str(program)], status=status)
    assert ended.stdout == ("" if status else "0.0\n0.0\n")
    assert code in (0, 3) or code in ended.stderr


def test_a_call_before_mpi_has_begun_is_refused():
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; import mpishare as ms\n"
        "try: ms.zeros(3)\nexcept ms.ArgumentError as e: print(e)"
    )
    assert "MPI has not begun" in run_code(1, code).stdout


KILLED = """
import os, signal, time, mpishare as ms
from mpi4py import MPI
def task(number):
    time.sleep(0.0005)
    if number == 0: print("mapping", flush=True)
    if number > 200 and MPI.COMM_WORLD.rank == 2: os.kill(os.getpid(), signal.SIGKILL)
ms.map(task, range(10**6), chunk=1)
"""


def test_a_rank_that_is_killed_within_a_task():
    ended = run_code(4, KILLED, {"MPISHARE_NODES": "block:2"}, status="failure")
    assert ended.stdout == "mapping\n"


LAZY = """
import resource, numpy as np, mpishare as ms
rows = (np.full(1 << 17, number, float) for number in range(1000))  # 1 GiB in all
assert ms.map(np.max, rows, gather="all") == [float(number) for number in range(1000)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


def test_an_iterator_takes_bounded_memory():
    assert max(map(int, run_code(2, LAZY).stdout.split())) < 350  # MiB, of which Python, MPI and NumPy take about 100


POOL = """
import mpishare as ms
pool = ms.Pool()
if ms.topology().rank: pool.serve()
else: print(pool.map(abs, [-1, -2]))
"""


def test_a_pool_that_nobody_closes():
    assert run_code(3, POOL).stdout == "[1, 2]\n"


LOADED = """
import sys
import mpishare as ms
print(*sys.modules)
ms.share([1.0, ms.zeros(3)])
print(*sys.modules)
"""


def test_a_call_imports_only_what_it_needs():
    imported, called = (line.split() for line in run_code(1, LOADED).stdout.splitlines())
    assert not {"numpy", "mpi4py", "typing"} & {*imported}
    assert {name for name in imported if name.startswith("mpishare")} == {"mpishare", "mpishare._version"}
    others = ("checkpoints", "compat", "files", "kernels", "messages", "tasks", "collectives.allreduce")
    assert [name for name in called if name.startswith(tuple(f"mpishare.{other}" for other in others))] == []
