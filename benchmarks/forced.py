"""Rivals at their best: duplicates of a communicator on which Open MPI's collectives use an algorithm of our choice."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

ALGORITHMS: dict[str, dict[str, int]] = {
    "bcast": {
        "linear": 1,
        "chain": 2,
        "pipeline": 3,
        "split binary tree": 4,
        "binary tree": 5,
        "binomial": 6,
        "knomial": 7,
        "scatter, allgather": 8,
        "scatter, ring": 9,
    },
    "allreduce": {"nonoverlapping": 2, "recursive doubling": 3, "ring": 4, "segmented ring": 5, "rabenseifner": 6},
    "allgather": {"linear": 1, "bruck": 2, "recursive doubling": 3, "ring": 4},
}
"""By the numbers of coll_tuned_bcast_algorithm and its like; those that take any number of ranks."""

_SEGMENTED = {"chain", "pipeline", "split binary tree", "binary tree", "binomial", "knomial", "segmented ring"}
_SEGMENTS = {"60K": 60 << 10, "256K": 256 << 10, "1M": 1 << 20}
"""60 KiB is the largest message that Open MPI over TCP sends at once."""


def choices(collective: str, nbytes: int) -> dict[str, tuple[int, int]]:
    """The algorithm and the size of its segments, by name, of all choices that differ for `nbytes`."""
    result = {}
    for name, algorithm in ALGORITHMS[collective].items():
        if name not in _SEGMENTED:
            result[name] = (algorithm, 0)
            continue
        smallest, *larger = _SEGMENTS.items()
        for segment, size in [smallest, *(item for item in larger if item[1] < nbytes)]:
            result[f"{name}, {segment}"] = (algorithm, size)
    return result


class ForcedComms:
    """Duplicates of `comm`, one for each algorithm and size of segments, made at their first use.

    Open MPI's component "tuned" reads its settings when a communicator is made, so they are written through MPI's tool
    interface just before. Elsewhere there are none.

    Source:
        MPI 4.1, section 15.3, control variables; coll_tuned_module.c of Open MPI 5.
    """

    def __init__(self, comm: Any, collective: str) -> None:
        self._comm, self._prefix = comm, f"coll_tuned_{collective}_algorithm"
        self._made: dict[tuple[int, int], Any] = {}
        self.is_possible = bool(comm.allreduce(_has_variable(self._prefix), _land()))

    def get(self, algorithm: int, segment_bytes: int) -> Any:
        """The communicator. Collective over that which was given."""
        key = algorithm, segment_bytes
        if key not in self._made:
            settings = {"coll_tuned_use_dynamic_rules": 1, "coll_tuned_priority": 90, self._prefix: algorithm}
            self._made[key] = with_settings(self._comm, {**settings, f"{self._prefix}_segmentsize": segment_bytes})
        return self._made[key]


def with_settings(comm: Any, settings: dict[str, int]) -> Any:
    """A duplicate of `comm` that was made while MPI's control variables had these values."""
    before = {name: _exchange(name, value) for name, value in settings.items()}
    duplicate = comm.Dup()
    for name, value in before.items():
        _exchange(name, value)
    return duplicate


def _has_variable(name: str) -> bool:
    library = _library()
    return library is not None and library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(ctypes.c_int())) == 0


def _exchange(name: str, value: int) -> int:
    """Writes a control variable and returns what it was."""
    library, index, handle, count = _library(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    before, after = ctypes.c_int(), ctypes.c_int(value)
    statuses = [
        library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)),
        library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(count)),
        library.MPI_T_cvar_read(handle, ctypes.byref(before)),
        library.MPI_T_cvar_write(handle, ctypes.byref(after)),
        library.MPI_T_cvar_read(handle, ctypes.byref(after)),
        library.MPI_T_cvar_handle_free(ctypes.byref(handle)),
    ]
    if any(statuses) or after.value != value:
        raise RuntimeError(f"MPI does not let {name} be {value}: {statuses}, it is {after.value}")
    return before.value


def _library() -> Any:
    """The library of MPI that this process has loaded, its tool interface started; None where it is not Open MPI."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps if "/libmpi.so" in line}
    if not paths:
        return None
    library = ctypes.CDLL(paths.pop())
    library.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    return library


def _land() -> Any:
    from mpi4py import MPI

    return MPI.LAND
