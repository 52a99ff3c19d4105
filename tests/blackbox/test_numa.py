"""Ranks on several NUMA nodes, which a folder mounted over the kernel's own pretends."""

import os
import shlex
import sys

import pytest

from mpishare.host.numa import NODES
from tests.blackbox.launch import PROGRAMS, run


@pytest.mark.parametrize("nodes", ["", "block:3"])
def test_ranks_on_the_same_numa_node_have_a_communicator(nodes, tmp_path):
    """Ranks 0 and 2 are bound to one node, rank 1 to another, and ranks 3 and 4 to none."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    for number, cpus in enumerate([f"{first}", "", f"{second}-{second + 1000}"]):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    both = f"{first},{second}"
    args = [f"{first}", f"{second}", f"{first}", both, both]
    job = [sys.executable, "-m", "mpishare", "run", "-n", "5", "python", "-m", f"{PROGRAMS}.numa", *args]
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    lines = f"mount --bind {shlex.quote(str(tmp_path))} {NODES}\n{shlex.join(job)}"
    ended = run(["unshare", *user, "--mount", "sh", "-ec", lines], {"MPISHARE_NODES": nodes})
    assert ended.stdout == "[[0, 2], [1], [0, 2], [3, 4], [3, 4]]\n"
