"""A few numbers in the memory of a node, which one of its ranks at a time may change.

They lie in a nameless file in memory that all ranks open (`memory.shared_file`). A kernel's lock on the file guards
them, and is released with the process that holds it. Measured on 2 cores with 2 ranks that do nothing else, a change
takes 6 us by this lock, 8 us by one of fcntl(2), 5 us by a token in a pipe, 6 us by a counter in MPI windows (82 us for
4 ranks) and 2.5 us by MPI_Fetch_and_op in a window of shared memory. The last one can only count, cannot wait for
another rank, and needs a window, which some MPIs refuse and which may leave a file behind.

The lock orders memory on every machine: taking and releasing it, the kernel takes and releases a spin lock of the file.
So what a rank wrote under it, the next rank that gets it sees.

Source:
    flock(2): "Locks created by flock() are associated with an open file description"; the kernel's
    Documentation/memory-barriers.txt, "Lock acquisition functions".
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import Mapping
from mpishare.memory.shared_file import memory_file, open_shared

if TYPE_CHECKING:
    from mpishare.comm.context import Context


class Counters:
    """Numbers of 64 bits, changed under `lock`. Without it, a number may be read as it was some time ago.

    Attributes:
        numbers: The numbers, shape (count,), all zero in the beginning.
        lock: A context that one rank is in at a time. It does not keep the threads of a rank apart.
    """

    def __init__(self, count: int, descriptor: int | None = None) -> None:
        """Numbers in an open file, which is closed when they are deleted; without one, numbers of this rank alone.

        Raises:
            BackendError: The file cannot be mapped.
        """
        nbytes = count * 8
        self.lock: AbstractContextManager[None] = nullcontext()
        if descriptor is None:
            self.numbers = memoryview(bytearray(nbytes)).cast("q")
            return
        try:
            self._mapping = Mapping.of_file(descriptor, nbytes)
            self._mapping.reserve(slice(0, nbytes))
        except (OSError, MemoryError) as error:
            os.close(descriptor)
            raise BackendError(f"counters cannot be mapped: {error}") from error
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.lock = _FileLock(descriptor)
        self.numbers = memoryview((ctypes.c_uint8 * nbytes).from_address(self._mapping.address)).cast("B").cast("q")

    @classmethod
    def of_node(cls, context: Context, count: int) -> Counters | None:
        """Numbers of each node; None on all ranks where a node cannot have them.

        Collective:
            Over the communicator.
        """
        try:
            with agree(context.collective_comm):
                return cls(count, open_shared(context, lambda: memory_file(count * 8)))
        except MpishareError as error:
            if severity_of(error, context.topology.size) == Severity.FATAL:
                raise
            return None


class _FileLock:
    """A lock on an open file. A rank that a signal's exception left holding it acquires and releases it once more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
