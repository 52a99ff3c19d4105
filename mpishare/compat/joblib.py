"""A backend of joblib: scikit-learn's `n_jobs` over the ranks of the job, with the tasks' arrays once per node."""

from __future__ import annotations

import io
import math
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
from cloudpickle import CloudPickler
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, register_parallel_backend
from numpy.typing import NDArray

import mpishare as ms

if TYPE_CHECKING:
    from mpi4py import MPI

_pool: ms.Pool
_arrays: dict[int, NDArray[Any]] = {}
"""On each rank the arrays that tasks refer to, by key: arrays of `register`, below 0, and arrays of calls that run."""

_keys = count()
_ended: set[int] = set()
"""On the root, keys of calls that have ended, whose arrays the ranks may still have."""


def register(*arrays: NDArray[Any], comm: MPI.Intracomm | None = None) -> ms.Pool:
    """Registers a backend: within `parallel_config(backend="mpishare")`, tasks of joblib run on the ranks of `comm`.

    On rank 0 it returns, and the program continues. The other ranks run tasks until rank 0 closes the pool or ends, and
    then end themselves, by SystemExit: what follows this call is rank 0's alone.

    Arrays in the arguments of the first tasks of a call come to each node once, and are read-only there, as joblib's
    own processes get them: arrays of at least `max_nbytes`, which is 1 MB unless joblib is given another. So do
    memory-mapped files, as plain arrays: what a task writes to one does not come to the file. Other arrays, and those
    of other subclasses, go with their task. Rank 0 keeps the array that it has. For one copy on its node too, pass an
    array here that all ranks have shared or loaded.

    Args:
        arrays: Node-shared arrays, on each rank its views of the same ones. Of tasks with such an array, or a view of
            one, only a reference is sent, whatever `max_nbytes` is. They are kept until the next `register`.
        comm: The ranks; MPI_COMM_WORLD when None. The others run the tasks of rank 0, as it reads their results.

    Returns:
        The pool.

    Raises:
        ArgumentError: This is called within a task.
        MismatchError: The ranks made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Example:
        >>> from joblib import Parallel, delayed, parallel_config
        >>> from mpishare.compat.joblib import register
        >>> with register(), parallel_config(backend="mpishare"):
        ...     Parallel()(delayed(abs)(number) for number in (-1, 2, -3))
        [1, 2, 3]
    """
    global _pool
    _arrays.clear()
    _arrays.update((-1 - number, array) for number, array in enumerate(arrays))
    register_parallel_backend("mpishare", RanksBackend)
    _pool = ms.Pool(comm)
    _pool.wait()
    if _pool.is_worker():
        sys.exit()
    return _pool


class RanksBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """What joblib calls; see joblib.parallel.ParallelBackendBase."""

    default_n_jobs = -1
    supports_retrieve_callback = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._max_nbytes = math.inf
        self._n_calls = 0
        self._starter: int | None = None  # the thread that begins a call
        self._call_keys: set[int] = set()  # of arrays that calls which run have shared
        self._futures: WeakSet[Future[Any]] = WeakSet()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many tasks may run at once. If it is 1, joblib runs them on this rank."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if not (_pool.is_master() and _pool.workers):
            return 1
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            return 1
        n_jobs = self.default_n_jobs if n_jobs is None else n_jobs
        return n_jobs if n_jobs > 0 else max(1, len(_pool.workers) + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, max_nbytes: int | None = None, **_: Any) -> int:
        """Prepares calls; new arrays of fewer than `max_nbytes`, all if it is None, go with their task."""
        self.parallel = parallel
        self._max_nbytes = math.inf if max_nbytes is None else max_nbytes
        n_tasks = self.effective_n_jobs(n_jobs)
        if n_tasks < len(_pool.workers):
            parallel.pre_dispatch = "n_jobs"  # as the pool begins all that joblib submits
        return n_tasks

    def start_call(self) -> None:
        """Begins a call, whose first batch this thread submits next."""
        if self._n_calls == 0:
            wait(list(self._futures))  # left by an aborted call: their results arrive in a lock of joblib's
        self._n_calls += 1
        self._starter = threading.get_ident()

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        """Has a rank run a batch of tasks. An error is the future's: joblib may call this for a result of it.

        New arrays are shared with the first batch of a call alone. Later ones come from the thread in which results
        arrive: if it waited for all ranks, they would wait for it.
        """
        try:
            is_first = self._starter == threading.get_ident()
            future = _pool.submit(_run, *self._pickled(func, {} if is_first else None))
        except Exception as error:
            future = Future()
            future.set_exception(error)
        self._futures.add(future)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # before joblib 1.5

    def _pickled(self, func: Callable[[], Any], new: dict[int, NDArray[Any]] | None) -> tuple[Any, ...]:
        """The arguments of `_run`. Large arrays go to all ranks before, unless `new` is None."""
        file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        pickler = _TaskPickler(file, protocol=5, buffer_callback=buffers.append)
        pickler.max_nbytes, pickler.new = self._max_nbytes, new
        # Not the arrays of other threads' calls, which may end before.
        pickler.arrays = {key: array for key, array in list(_arrays.items()) if key < 0 or key in self._call_keys}
        pickler.dump(func)
        if new is not None:
            self._starter = None
        if new:
            self._call_keys.update(new)
            _keep_on_all(new)
        return file.getvalue(), [np.asarray(buffer.raw()) for buffer in buffers]

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancels the batches that have not begun."""
        for future in list(self._futures):
            future.cancel()

    def stop_call(self) -> None:
        """Ends a call. Its arrays go now, or as later ones are shared where some of its tasks run still."""
        self._n_calls -= 1
        if self._n_calls == 0 and self._call_keys:
            _ended.update(self._call_keys)
            self._call_keys.clear()
            if all(future.done() for future in list(self._futures)):
                _keep_on_all({})

    def terminate(self) -> None:
        """Ends what `configure` prepared."""
        self.reset_batch_stats()


class _TaskPickler(CloudPickler):  # type: ignore[misc]
    """Pickles tasks: functions of the program by value, `arrays` and large new ones as references."""

    max_nbytes: float
    arrays: dict[int, NDArray[Any]]
    new: dict[int, NDArray[Any]] | None

    def persistent_id(self, obj: Any) -> tuple[Any, ...] | None:
        if type(obj) not in (np.ndarray, np.memmap) or not obj.nbytes or obj.dtype.hasobject:
            return None
        for key, array in self.arrays.items():
            if obj is array:
                return key, None
            offset = obj.ctypes.data - array.ctypes.data
            if array.flags.forc and 0 <= offset <= array.nbytes - _extent(obj):
                return key, (obj.shape, obj.dtype, offset, obj.strides)
        if self.new is None or obj.nbytes < self.max_nbytes:
            return None
        key = next(_keys)
        self.new[key] = self.arrays[key] = np.asarray(obj)
        return key, None


class _TaskUnpickler(pickle.Unpickler):
    """Unpickles what a `_TaskPickler` pickled."""

    def persistent_load(self, reference: tuple[int, tuple[Any, ...] | None]) -> NDArray[Any]:
        key, layout = reference
        array = _arrays[key]
        if layout is None:
            return array
        shape, dtype, offset, strides = layout
        return np.ndarray(shape, dtype, array.reshape(-1, order="A").view(np.uint8), offset, strides)


def _extent(array: NDArray[Any]) -> float:
    """Bytes from the first item of an array to the end of its last; infinite where items lie before the first."""
    if min(array.strides, default=0) < 0:
        return math.inf
    steps: int = sum((length - 1) * step for length, step in zip(array.shape, array.strides, strict=True))
    return steps + array.itemsize


def _keep_on_all(new: Mapping[int, NDArray[Any]]) -> None:
    """On all ranks: adds arrays, and drops the arrays of calls that have ended."""
    ended = tuple(_ended)  # other threads may end a call meanwhile
    _pool.initialize(_keep, (new, ended))
    _ended.difference_update(ended)


def _keep(new: Mapping[int, NDArray[Any]], ended: Iterable[int]) -> None:
    """On this rank: adds arrays, and drops others."""
    _arrays.update(new)
    for key in ended:
        _arrays.pop(key, None)


def _run(task: bytes, buffers: list[NDArray[np.uint8]]) -> Any:
    """Runs a batch of tasks."""
    return _TaskUnpickler(io.BytesIO(task), buffers=buffers).load()()
