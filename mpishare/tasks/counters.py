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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from mpishare.comm.agreement import Severity, agree, severity_of
from mpishare.errors import BackendError, MpishareError
from mpishare.memory.mapping import Mapping
from mpishare.memory.shared_file import memory_file, open_shared

if TYPE_CHECKING:
    from mpishare.comm.context import Context

_NUMBER_BYTES = 8

_Lock: TypeAlias = Callable[[], AbstractContextManager[Any]]


class Counters:
    """Numbers of 64 bits, read at any time and changed under `lock`.

    Attributes:
        numbers: The numbers, shape (count,), all zero in the beginning.
        lock: Returns a context that one thread of one rank is in at a time.
    """

    def __init__(self, numbers: memoryview, lock: _Lock, file: tuple[int, Mapping] | None = None) -> None:
        """Takes over the descriptor of an open file and the map that holds `numbers`, if they are in a `file`."""
        self.numbers = numbers
        self.lock = lock
        self._file = file
        if file is not None:
            weakref.finalize(self, os.close, file[0]).atexit = False

    @classmethod
    def private(cls, count: int) -> Counters:
        """Numbers of this rank alone."""
        lock = threading.Lock()
        return cls(memoryview(bytearray(count * _NUMBER_BYTES)).cast("q"), lambda: lock)

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
        return cls(memoryview(content).cast("B").cast("q"), partial(_locked, descriptor), (descriptor, mapping))

    def for_thread(self) -> Counters:
        """The same numbers for another thread of this rank, with an open file of its own: threads lock as ranks do."""
        if self._file is None:
            return self
        descriptor, mapping = self._file
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        return Counters(self.numbers, partial(_locked, own), (own, mapping))


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """A lock on an open file. It is released also where a signal's exception comes while it is acquired."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
