"""The names of mpi4py.MPI, fetched at first use: importing mpi4py.MPI starts MPI, and `import mpishare` must not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py.MPI import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)  # Python's own probing of modules must not start MPI
    from mpi4py import MPI

    value = globals()[name] = getattr(MPI, name)
    return value
