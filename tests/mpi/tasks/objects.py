"""Tasks that fail, and objects that cannot be sent."""

import time

import numpy as np
from mpi4py import MPI

from mpishare.memory.segment import segment_of


def fail_at(number, item):
    """Fails for one item."""
    if number == item:
        raise ZeroDivisionError(f"of {number}")
    return number


class NotPicklable:
    """Cannot be pickled, by an error of any class."""

    def __reduce__(self):
        raise RuntimeError("not to be pickled")


def fail_to_unpickle():
    raise ValueError("not to be unpickled")


class NotUnpicklable:
    """Cannot be unpickled on any rank."""

    def __reduce__(self):
        return fail_to_unpickle, ()


def until(file, number):
    """A task that takes until there is a file."""
    while not file.exists():
        time.sleep(0.001)
    return number


def memory_of(array):
    """Whether an array is writable, and whether it lies in shared memory."""
    return array.flags.writeable, segment_of(array) is not None


class State:
    """A function that is not true, and whose methods are mapped. It counts how often this rank has unpickled one.

    Attributes:
        array: 0, 1, 2, ... at first.
    """

    times_unpickled = 0

    def __init__(self):
        self.array = np.arange(100_000)

    def __setstate__(self, state):
        self.__dict__.update(state)
        State.times_unpickled += 1

    def __len__(self):
        return 0

    def look(self, number):
        """One item."""
        return int(self.array[number])

    __call__ = look

    def origin(self, _):
        """This rank; how often it has unpickled a state, and how the array lies there."""
        time.sleep(0.001)
        return MPI.COMM_WORLD.rank, State.times_unpickled, *memory_of(self.array)


made = []
"""What initializers made on this rank."""


def make(number, other):
    """An initializer."""
    made.append(number + other)


def with_made(number):
    """Uses what the initializer made, if this rank called it."""
    return (made[-1] if made else 7) + number
