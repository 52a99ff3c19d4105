"""The names of mpi4py.MPI, fetched at first use: importing mpi4py.MPI starts MPI, and `import mpishare` must not.

Where mpi4py is not installed, or finds no MPI library, the names of `comm.serial` stand for them, and this process is
one rank.
"""

from __future__ import annotations

from ctypes import CDLL
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mpishare.config import rank_variables
from mpishare.errors import ArgumentError
from mpishare.host.procfs import rank_above

if TYPE_CHECKING:
    from mpi4py.MPI import *  # noqa: F403

    HAS_MPI: bool


def missing() -> str:
    """Why there is no MPI; "" if there is."""
    return _found()[1]


def versions() -> dict[str, str]:
    """The versions of mpi4py and MPI, or why there are none."""
    if missing():
        return {"MPI": f"none, so this process is one rank: {missing()}"}
    from mpi4py import __version__

    library = _module().Get_library_version().split("\0")[0].strip()
    return {
        "mpi4py": __version__,
        "MPI library": library.splitlines()[0],
        "MPI standard": ".".join(map(str, _module().Get_version())),
    }


def _module() -> Any:
    return _found()[0]


class _Self:
    """MPI_COMM_SELF, the communicator of this rank alone. It is fetched at first use, as its import must not start MPI.

    It has the attributes and calls of the communicator. Without MPI it is the one rank that there is.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_module().COMM_SELF, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other == _module().COMM_SELF

    def __hash__(self) -> int:
        return hash(_Self)

    def __repr__(self) -> str:
        return "mpishare.SELF"

    def __reduce__(self) -> str:
        return "SELF"


SELF: Intracomm = _Self()  # type: ignore[assignment]  # noqa: F405


def refuse_children_of_ranks() -> None:
    """Checks that this process may be a rank. Local.

    Raises:
        ArgumentError: A rank has started it, such as a worker of multiprocessing.
    """
    if (pid := rank_above(rank_variables())) is not None:
        raise ArgumentError(
            f"this process was started by a rank, process {pid}, and is not a rank of its own. Read arrays in it, by "
            "handles, and call mpishare in the rank."
        )


def communicator(comm: Comm | None) -> Comm:  # noqa: F405
    """The communicator that a public call was given: MPI_COMM_WORLD for None, MPI_COMM_SELF for `SELF`."""
    if comm is None:
        return _module().COMM_WORLD  # type: ignore[no-any-return]
    return _module().COMM_SELF if comm is SELF else comm


def ranks_in(comm: Intracomm, other: Intracomm) -> list[int]:  # noqa: F405
    """The ranks in `other` of the ranks of `comm`, by rank; MPI_UNDEFINED for those that it has not. Local."""
    groups = comm.Get_group(), other.Get_group()
    ranks = groups[0].Translate_ranks(range(comm.size), groups[1])
    for group in groups:
        group.Free()
    return ranks


@cache
def _found() -> tuple[Any, str]:
    """The module that has the names, and why it is not mpi4py's."""
    refuse_children_of_ranks()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        from mpishare.comm import serial

        return serial, str(error)
    return MPI, ""


def _has_mpi() -> bool:
    """Whether mpi4py is there and loads an MPI library, as its import would. MPI does not start."""
    try:
        spec = find_spec("mpi4py.MPI")  # where mpi4py looks for its library at import, it does so here
        return spec is not None and bool(CDLL(spec.origin))
    except (ImportError, RuntimeError, OSError):
        return False


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)  # Python's own probing of modules must not start MPI
    return globals().setdefault(name, _has_mpi() if name == "HAS_MPI" else getattr(_module(), name))
