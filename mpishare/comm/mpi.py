"""The names of mpi4py.MPI, fetched at first use: importing mpi4py.MPI starts MPI, and `import mpishare` must not."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import *  # noqa: F403


def handle_of(item: Comm | Op) -> int:  # noqa: F405
    """The number by which MPI's own calls know a communicator or an operation. mpi4py 3 has no `handle`."""
    handle: int = _module()._handleof(item)
    return handle


@cache
def _module() -> Any:
    from mpi4py import MPI

    return MPI


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)  # Python's own probing of modules must not start MPI
    value = globals()[name] = getattr(_module(), name)
    return value
