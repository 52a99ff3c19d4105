"""Kills ranks again and again, each time at another moment, and looks each time for what is left.

python -m tests.faults.soak 100
python -m tests.faults.soak 100 saving
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.test_saving import killed_while_saving
from tests.faults.test_signals import signalled


def main() -> None:
    """Runs as often as asked; raises at the first kill that leaves something."""
    runs, start = int(sys.argv[1]), time.monotonic()
    if sys.argv[2:] == ["saving"]:
        kill_while_saving(runs)
        return
    for number in range(runs):
        victim, moment = random.randrange(4), random.choice(["before", "during", "during", "after"])
        nodes = random.choice(["block:4", "block:2", "sizes:1,3"])
        with tempfile.TemporaryDirectory() as folder:
            signalled(victim, "SIGKILL", moment, Path(folder), nodes)
            left = list(Path(folder).rglob("*"))
            assert left == [], left
        print(f"{number + 1}: rank {victim} killed {moment} a share on {nodes}; nothing left", flush=True)
    print(f"{runs} kills, {time.monotonic() - start:.0f} s, nothing left in /dev/shm and TMPDIR")


def kill_while_saving(runs: int) -> None:
    """The same for files: each time all of them are as before or whole."""
    left = 0
    for number in range(runs):
        victim, nodes = random.randrange(4), random.choice(["", "block:2", "sizes:1,3"])
        with tempfile.TemporaryDirectory() as folder:
            left += killed_while_saving(victim, Path(folder), nodes)
        print(f"{number + 1}: rank {victim} killed while saving on nodes {nodes!r}; all files are whole", flush=True)
    print(f"{runs} kills, all files whole; {left} times the next save had something to remove")


if __name__ == "__main__":
    main()
