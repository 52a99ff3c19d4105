"""Memory, numbers and ends: what a job costs, and what it leaves behind."""

import json

import pytest

from tests.blackbox.launch import PROGRAMS, run_code, run_ranks


@pytest.mark.parametrize(("nodes", "copies"), [("block:4", 1), ("block:2", 2)])
def test_one_copy_per_node_in_proportional_memory(nodes, copies, tmp_path):
    environ = {"MPISHARE_NODES": nodes, "BENCHMARK_RESULTS": str(tmp_path)}
    run_ranks(4, ["-m", "benchmarks.memory", "--mib", "128"], environ)
    figures = json.loads((tmp_path / "memory-4.json").read_text())["figures"]
    for way in ("mpishare.share", "mpishare.share, window"):
        assert 0.99 * copies < figures[way]["all ranks"] <= 1.05 * copies  # MPI's own pages come and go


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("size", "backend"), [(1, ""), (4, ""), (4, "window")])
def test_ten_thousand_live_shares(size, backend):
    """A limit on open files.

    Outcome: nothing: live arrays hold none.
    """
    ended = run_ranks(size, ["-m", f"{PROGRAMS}.many", "10000"], {"MPISHARE_BACKEND": backend}, limit_s=500)
    assert int(ended.stdout) == 0


HOLD = "import mpishare as ms, numpy as np; from mpi4py import MPI; a = ms.share(np.arange(9)); z = ms.zeros(9); "

ENDS = {
    "live views": (HOLD, 0),
    "live views in a cycle": (HOLD + "l = [a]; l.append(l)", 0),
    "views read while Python ends": (HOLD + "import atexit; atexit.register(lambda: print(a.sum() + z.sum()))", 0),
    "views read after MPI ended": (HOLD + "MPI.Finalize(); assert a.sum() == 36; z[:] = 1; del a, z", 0),
    "sys.exit": (HOLD + "raise SystemExit(3)", 3),
    "a call after MPI ended": (
        HOLD + "MPI.Finalize()\ntry: ms.zeros(3)\nexcept ms.ArgumentError as e: assert 'MPI has ended' in str(e)",
        0,
    ),
}


# Without a second map the promise for views ends at MPI_Finalize.
CASES = [*((name, "1") for name in ENDS), ("live views in a cycle", "0"), ("views read while Python ends", "0")]


@pytest.mark.parametrize(("name", "second_map"), CASES)
def test_ends_with_live_views(name, second_map):
    """The interpreter ends with live views, in cycles, in atexit handlers, after MPI_Finalize.

    Outcome: nothing.
    """
    code, status = ENDS[name]
    ended = run_code(2, code, {"MPISHARE_SECOND_MAP": second_map}, status=status)
    if status == 0:
        assert ended.stderr == ""


def test_a_call_before_mpi_has_begun_is_refused():
    code = (
        "import mpi4py; mpi4py.rc.initialize = False; import mpishare as ms\n"
        "try: ms.zeros(3)\nexcept ms.ArgumentError as e: print(e)"
    )
    assert "MPI has not begun" in run_code(1, code).stdout
