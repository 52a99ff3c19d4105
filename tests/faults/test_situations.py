"""One copy of an array, of right bytes, wherever the ranks of a host share a kernel."""

import pytest

from tests.blackbox.launch import MPICH
from tests.faults.situations import PLAIN, SITUATIONS

WINDOW, FILE = "window", "memmap in memory"
DEFAULTS = {
    PLAIN: WINDOW,
    "a user namespace per rank": WINDOW,
    "a user namespace for every second rank": WINDOW,
    "a PID namespace per rank": WINDOW,
    "a Python without os.memfd_create": WINDOW,
    "a /dev/shm of 64 MiB": FILE,
    "a kernel that refuses all advice on memory": WINDOW,
}
"""The segment kind that each takes of itself."""


@pytest.mark.parametrize("name", DEFAULTS)
def test_one_copy(name):
    """Ranks of a host that have user or PID namespaces of their own, or that MPI puts on nodes of their own.

    Outcome: nothing: the host holds one copy, in a window or else in a nameless file.
    """
    situation = SITUATIONS[name]
    if situation.is_mpich and not MPICH.exists():
        pytest.skip("there is no .venv-mpich; make test creates it")
    result, left = situation.run()
    assert left == []
    assert result["nodes"] == 1
    kinds = {way: outcome["kinds"] for way, outcome in result["outcomes"].items()}
    assert kinds == {"default": [DEFAULTS[name]], "memmap": [FILE]}, result["outcomes"]
    for outcome in result["outcomes"].values():
        assert outcome["right"]
        assert 0.9 < outcome["memory over the array"] <= 1.02
