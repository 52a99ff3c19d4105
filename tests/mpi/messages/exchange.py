"""What tests of messages send, and to whom."""

import numpy as np
from mpi4py import MPI

LEFT = (MPI.COMM_WORLD.rank - 1) % MPI.COMM_WORLD.size
"""The rank before this one, round."""
RIGHT = (MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size
"""The rank after this one."""


def pattern(nbytes, seed):
    """Bytes that tell one message from another."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def wait_all(requests):
    """Until each has ended."""
    for request in requests:
        request.wait()
