"""What a host's link has carried, and what a process has read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def link_bytes() -> NDArray[np.int64]:
    """Bytes that this host's link has received and sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    numbers = next(line for line in lines if "eth0:" in line).partition(":")[2].split()
    return np.array([int(numbers[0]), int(numbers[8])])


def read_bytes() -> int:
    """Bytes that this process has read by system calls."""
    words = Path("/proc/self/io").read_text().split()
    return int(words[words.index("rchar:") + 1])
