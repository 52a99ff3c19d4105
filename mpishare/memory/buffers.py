"""Memory of this process alone."""

from __future__ import annotations

import numpy as np

from mpishare.arrays.raw import Block
from mpishare.comm.context import Context
from mpishare.errors import CapacityError
from mpishare.host import memory as host_memory


def allocate_buffer(context: Context, nbytes: int, cure: str) -> Block:
    """A block of `nbytes` with arbitrary contents.

    Raises:
        CapacityError: There is no memory. It names the `cure`.
    """
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        free = host_memory.memory_room().free
        raise CapacityError(context.topology.host, "the memory of this process", nbytes, free, cure) from error
