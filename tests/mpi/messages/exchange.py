"""What tests of messages send, and to whom."""

import numpy as np
from mpi4py import MPI

LEFT = (MPI.COMM_WORLD.rank - 1) % MPI.COMM_WORLD.size
"""The rank before this one, round."""
RIGHT = (MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size
"""The rank after this one."""


def pattern(nbytes, seed):
    """Bytes that tell one message from another. They recur at no multiple of a chunk, as a prime is none."""
    return np.resize(np.random.default_rng(seed).integers(0, 256, min(nbytes, 1_000_003), np.uint8), nbytes)


def wait_all(requests):
    """Until each has ended."""
    for request in requests:
        request.wait()
