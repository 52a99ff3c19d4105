"""A few numbers in the memory of a node, which one thread of one of its ranks at a time may change.

They lie in a nameless file in memory that all ranks open (`memory.shared_file`). A kernel's lock on the file guards
them, and is released with the process that holds it. Measured on 2 cores with 2 ranks that do nothing else, a change
takes 6 us by this lock, 8 us by one of fcntl(2), 5 us by a token in a pipe, 6 us by a counter in MPI windows (82 us for
4 ranks) and 2.5 us by MPI_Fetch_and_op in a window of shared memory. The last one can only count, cannot wait for
another rank, and needs a window, which some MPIs refuse and which may leave a file behind.

Source:
    flock(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
import weakref
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import Mapping
from mpishare.memory.shared_file import memory_file, open_shared

if TYPE_CHECKING:
    from mpishare.comm.context import Context

_NUMBER_BYTES = 8


class Counters:
    """Numbers of 64 bits, read at any time and changed under `lock`.

    Attributes:
        numbers: The numbers, shape (count,), all zero in the beginning.
        lock: A lock that one thread of one rank holds at a time.
    """

    def __init__(
        self, numbers: memoryview, lock: AbstractContextManager[Any], file: tuple[int, Mapping] | None = None
    ) -> None:
        """Takes over the descriptor of an open file and the map that holds `numbers`, if they are in a `file`."""
        self.numbers = numbers
        self.lock = lock
        self._file = file
        if file is not None:
            weakref.finalize(self, os.close, file[0]).atexit = False

    @classmethod
    def private(cls, count: int) -> Counters:
        """Numbers of this rank alone."""
        return cls(memoryview(bytearray(count * _NUMBER_BYTES)).cast("q"), threading.Lock())

    @classmethod
    def of_node(cls, context: Context, count: int) -> Counters | None:
        """Numbers of each node; None on all ranks where a node cannot have them.

        Collective:
            Over the communicator.
        """
        try:
            with agree(context.collective_comm):
                return cls.in_file(open_shared(context, lambda: memory_file(count * _NUMBER_BYTES)), count)
        except MpishareError as error:
            if severity_of(error, context.topology.size) == Severity.FATAL:
                raise
            return None

    @classmethod
    def in_file(cls, descriptor: int, count: int) -> Counters:
        """The numbers in an open file, which is closed when they are deleted.

        Raises:
            BackendError: The file cannot be mapped.
        """
        try:
            mapping = Mapping.of_file(descriptor, count * _NUMBER_BYTES)
        except OSError as error:
            os.close(descriptor)
            raise BackendError(f"counters cannot be mapped: {error.strerror}") from error
        content = (ctypes.c_uint8 * (count * _NUMBER_BYTES)).from_address(mapping.address)
        return cls(memoryview(content).cast("B").cast("q"), _FileLock(descriptor), (descriptor, mapping))

    def for_thread(self) -> Counters:
        """The same numbers for another thread of this rank, with an open file of its own: threads lock as ranks do."""
        if self._file is None:
            return self
        descriptor, mapping = self._file
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return Counters(self.numbers, _FileLock(own), (own, mapping))


class _FileLock:
    """A lock on an open file. It is released also where a signal's exception comes while it is acquired."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
