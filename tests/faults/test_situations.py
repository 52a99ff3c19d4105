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
    "an MPI that finds each rank alone": FILE,
    "a /dev/shm of 64 MiB": FILE,
    "a kernel that refuses all advice on memory": WINDOW,
}
"""The segment kind that each takes of itself."""


@pytest.mark.parametrize("name", SITUATIONS)
def test_one_copy(name):
    """A user namespace for each rank, as Apptainer makes, or for some; a PID namespace for each.

    Outcome: nothing: the host holds one copy, in a window or in a nameless file, which the leader sends over a socket.
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
