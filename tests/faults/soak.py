"""Kills ranks again and again, each time at another moment, and looks each time for what is left.

python -m tests.faults.soak 100
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.test_signals import signalled


def main() -> None:
    """Runs as often as asked; raises at the first kill that leaves something."""
    runs, start = int(sys.argv[1]), time.monotonic()
    for number in range(runs):
        victim, moment = random.randrange(4), random.choice(["before", "during", "during", "after"])
        nodes = random.choice(["block:4", "block:2", "sizes:1,3"])
        with tempfile.TemporaryDirectory() as folder:
            signalled(victim, "SIGKILL", moment, Path(folder), nodes)
            left = list(Path(folder).rglob("*"))
            assert left == [], left
        print(f"{number + 1}: rank {victim} killed {moment} a share on {nodes}; nothing left", flush=True)
    print(f"{runs} kills, {time.monotonic() - start:.0f} s, nothing left in /dev/shm and TMPDIR")


if __name__ == "__main__":
    main()
