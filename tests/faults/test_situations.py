"""One copy of an array, of right bytes, wherever the ranks of a host share a kernel."""

import re

import pytest

from tests.blackbox.launch import run_code
from tests.faults.situations import FILE, PLAIN, PLAIN_MPICH, SITUATIONS

SMALL = "a /dev/shm of 64 MiB"
MPICH_ALONE = "plain, MPICH"


@pytest.mark.parametrize("name", SITUATIONS)
def test_one_copy(name):
    """A user namespace for each rank, as Apptainer makes, or for some; a PID namespace for each.

    Outcome: nothing: the host holds one copy, in a window or in a nameless file, which the leader sends over a socket.
    """
    result, left = SITUATIONS[name].run()
    assert left == []
    assert result["nodes"] == 1
    kinds = {way: outcome["kinds"] for way, outcome in result["outcomes"].items()}
    assert kinds == {"default": [SITUATIONS[name].backend], "memmap": [FILE]}, result["outcomes"]
    for outcome in result["outcomes"].values():
        assert outcome["right"]
        assert 0.9 < outcome["memory over the array"] <= 1.02
    [node] = result["info"]["nodes"]
    is_limited = re.search(r"as /dev/shm has [56]\d[.\d]* MiB free", node["segments"]["window"]) is not None
    assert is_limited == (name == SMALL)
    assert not is_limited or 25 << 20 < node["largest"]["window"] < 32 << 20


WITHOUT_LINUX = """
import tests.no_linux, numpy as np, mpishare as ms
table = ms.share(np.arange(1 << 17) if ms.topology().rank == 0 else None)
print(table.sum(), table.flags.writeable)
for call in (lambda: ms.zeros(3), lambda: ms.handle(table)):
    try: call()
    except ms.BackendError: pass
    else: print("not refused")
"""


def test_without_linux():
    """A system that is not Linux, as far as a Linux kernel can stand in for one.

    Outcome: the same results, from a copy on each rank, as one line on stderr says; BackendError for `zeros`, `handle`.
    """
    ended = run_code(3, WITHOUT_LINUX)  # the launch no-linux-2 of tests.run has the results of other calls
    assert ended.stdout == f"{sum(range(1 << 17))} False\n" * 3
    report = r"mpishare: 3 ranks on host .* hold 3 copies of an array of .* only Linux has it\n"
    assert re.fullmatch(report, ended.stderr)


KILLED = [PLAIN, "a PID namespace per rank", "an MPI that finds each rank alone"]
KILLED += ["a kernel that refuses all advice on memory"]


@pytest.mark.parametrize("name", [*KILLED, MPICH_ALONE])
def test_kills_leave_nothing(name):
    """SIGKILL while the first memory of a node is made, in some of these situations, on Open MPI and on MPICH.

    Outcome: `info` counts what MPI left, and `mpishare clean` removes it.
    """
    situation = SITUATIONS.get(name, PLAIN_MPICH)
    *jobs, left = situation.kill()
    assert all(int(status) for status, *_ in jobs), jobs
    makes_window = situation.kills != ("fallocate",)
    assert all(bool(files) == makes_window for _, *files in jobs), "MPI left nothing that could be removed"
    assert left == []
