"""What tests of messages send, and to whom."""

from collections.abc import Iterable

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

LEFT = (MPI.COMM_WORLD.rank - 1) % MPI.COMM_WORLD.size
"""The rank before this one, round."""
RIGHT = (MPI.COMM_WORLD.rank + 1) % MPI.COMM_WORLD.size
"""The rank after this one."""


def pattern(nbytes: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that tell one message from another."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def wait_all(requests: Iterable[ms.Request]) -> None:
    """Until each has ended."""
    for request in requests:
        request.wait()
