"""What a host's link has carried."""

from pathlib import Path

import numpy as np


def counters() -> np.ndarray:
    """Bytes that this host's link has received and sent."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    numbers = next(line for line in lines if "eth0:" in line).partition(":")[2].split()
    return np.array([int(numbers[0]), int(numbers[8])])
