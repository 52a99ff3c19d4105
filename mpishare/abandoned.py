"""Messages that were on their way when an exception came: MPI still reads or writes their bytes, which they keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpishare import mpi

__all__ = ["abandon", "abandoned_on_error", "begin"]

_requests: list[mpi.Request] = []


def abandon(requests: Collection[mpi.Request]) -> None:
    """Keeps requests that nobody will wait for."""
    _requests.extend(requests)


def begin(requests: list[mpi.Request], call: Callable[..., mpi.Request], message: Any, rank: int, tag: int) -> None:
    """Begins a message and notes its request, in one call of C, in which no handler of a signal runs."""
    requests.extend(map(call, (message,), (rank,), (tag,)))


@contextmanager
def abandoned_on_error(requests: Collection[mpi.Request]) -> Iterator[None]:
    """Keeps what `requests` has by then, where an exception ends the block."""
    try:
        yield
    except BaseException:
        abandon(requests)
        raise
