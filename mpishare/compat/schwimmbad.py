"""MPIPool and choose_pool of schwimmbad: the same calls, over `Pool`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

import mpishare as ms

if TYPE_CHECKING:
    from mpi4py import MPI


class MPIPool(ms.Pool):
    """A `Pool` whose ranks but the master, rank 0, run tasks in its constructor and then end, by SystemExit.

    All other methods come from `Pool`. `size` counts the master, which runs tasks of `map` as well.

    Args:
        comm: The ranks; MPI_COMM_WORLD when None.
        use_dill: Ignored. What pickle refuses, cloudpickle pickles where it is installed.

    Raises:
        ValueError: There is no other rank.

    Collective:
        Over `comm`.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, use_dill: bool = False) -> None:
        super().__init__(comm)
        if self.size == 1:
            raise ValueError("an MPIPool needs two ranks or more, but this job has one. Use choose_pool without mpi.")
        self.wait()
        if self.is_worker():
            sys.exit(0)

    @staticmethod
    def enabled() -> bool:
        """Whether the job has several ranks."""
        return ms.topology().size > 1

    def wait(self, callback: Callable[[], object] | None = None) -> None:
        """On a worker: runs tasks until the master closes the pool, then calls `callback`. Nothing on the master."""
        super().wait()
        if callback is not None and self.is_worker():
            callback()

    def map(  # type: ignore[override]
        self,
        worker: Callable[[Any], Any],
        tasks: Iterable[Any],
        callback: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> Any:
        """Like `Pool.map`, with the names of schwimmbad; the third argument is always `callback`."""
        return super().map(worker, tasks, callback=callback, **options)

    def batched_map(self, worker: Callable[[Any], Any], tasks: Iterable[Any], *args: Any, **options: Any) -> list[Any]:
        """Like `map`, where `worker` gets ((first, end), the tasks of this range), once for each rank."""
        items = list(tasks)
        parts = np.array_split(np.arange(len(items)), self.size)
        ranges = [(int(part[0]), int(part[-1]) + 1) for part in parts if part.size]
        results: list[Any] = self.map(worker, [(bounds, items[slice(*bounds)]) for bounds in ranges], *args, **options)
        return results


def choose_pool(mpi: bool = False, processes: int = 1, **options: Any) -> Any:
    """An `MPIPool` with `mpi`; without it, what schwimmbad chooses.

    Where schwimmbad is not installed, that is a `Pool` of this process alone.

    Raises:
        ImportError: Several processes are asked for without `mpi`, and schwimmbad is not installed.
        SystemError: There is no other rank.
    """
    if not mpi:
        try:
            from schwimmbad import choose_pool as choose_local_pool
        except ImportError:
            if processes != 1:
                raise
            return ms.Pool(ms.SELF)
        return choose_local_pool(processes=processes, **options)
    if not MPIPool.enabled():
        raise SystemError("mpi was asked for, but this job has one rank. Start it with mpiexec.")
    return MPIPool(**options)
