"""Messages that were on their way when an exception came: MPI still reads or writes their bytes, which they keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpishare import mpi

__all__ = ["abandon", "abandoned_on_error"]

_requests: list[mpi.Request] = []


def abandon(requests: Collection[mpi.Request]) -> None:
    """Keeps requests that nobody will wait for."""
    _requests.extend(requests)


@contextmanager
def abandoned_on_error(requests: Collection[mpi.Request]) -> Iterator[None]:
    """Keeps what `requests` has by then, where an exception ends the block."""
    try:
        yield
    except BaseException:
        abandon(requests)
        raise
