"""Random calls on random communicators, arrays, objects, files and pools give what NumPy and Python give."""

import pytest

from tests.blackbox.launch import PROGRAMS, run_ranks

SECONDS = 3


@pytest.mark.parametrize("program", ["random_calls", "random_references"])
@pytest.mark.parametrize(("size", "nodes"), [(3, "block:1"), (4, "block:2")])
def test_random_calls(size, nodes, program):
    """To look for longer: `mpiexec -n 4 python -m mpi4py -m tests.blackbox.programs.random_calls SEED SECONDS`."""
    ended = run_ranks(size, ["-m", f"{PROGRAMS}.{program}", str(size), str(SECONDS)], {"MPISHARE_NODES": nodes})
    assert "calls agree" in ended.stdout
