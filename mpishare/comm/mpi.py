"""The names of mpi4py.MPI, fetched at first use: importing mpi4py.MPI starts MPI, and `import mpishare` must not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import *  # noqa: F403


def handle_of(item: Comm | Op) -> int:  # noqa: F405
    """The number by which MPI's own calls know a communicator or an operation. mpi4py 3 has no `handle`."""
    from mpi4py import MPI

    return MPI._handleof(item)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)  # Python's own probing of modules must not start MPI
    from mpi4py import MPI

    value = globals()[name] = getattr(MPI, name)
    return value
