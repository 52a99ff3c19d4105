"""A pool of ranks for codes in which one rank, the root, has all tasks. The other ranks serve it until it closes.

Two schedulers stand behind it. A `map` is a call of all ranks, the root among them, who share the tasks among
themselves (`mpishare.tasks.scheduler`). `submit` and its like are single calls, which threads of the root send to the
other ranks (`mpishare.tasks.dispatcher`). A worker waits for commands: which of the two comes next, or the end.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Sized
from concurrent.futures import Future
from itertools import count
from typing import Any

from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import is_known
from mpishare.comm.alone import alone, where_alone
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, MpishareError, SpecError, TaskError
from mpishare.objects.pickling import pickle_object
from mpishare.tasks.dispatcher import IN_CALLBACK, Dispatcher, next_command, send_command, serve_call
from mpishare.tasks.errors import IN_TASK, task_error
from mpishare.tasks.executor import TaskExecutor
from mpishare.tasks.map import Job, run_map

_MAP, _CLOSE = range(2)
"""Commands to the workers. Any other is a call."""


def _numbers_of_pools(_: Context) -> Iterator[int]:
    """Numbers of pools. By its number a worker knows a command for a pool that it left."""
    return count()


class Pool(TaskExecutor):
    """Ranks that run tasks for one of them, the root: an Executor of concurrent.futures with the names of other pools.

    On the root, `with` returns the pool, and the root runs tasks of `map` as well. On the other ranks, `with` returns
    None when the root leaves its block; until then they serve the root, and sleep while it computes. A task that raises
    does not end this, whatever it raises. Each `map` sends its function, in the state that it has then, but not what
    all ranks have from `share`; `initialize` makes state on each rank once.

    Names that other pools have mean what they mean there. Where they differ:

    - `map` returns a list, as multiprocessing's and schwimmbad's do. Its third argument is `chunksize` as in
      multiprocessing if it is a number, `callback` as in schwimmbad if it is a function, else one more iterable, as in
      concurrent.futures; `timeout` is as in concurrent.futures. `callback` gets single results; the callback of
      `map_async` gets the list. The third argument of `starmap` is `chunksize`, as in multiprocessing; in mpi4py it is
      `timeout`.
    - `imap` reads a few chunks ahead, not all items. An error ends it.
    - Calls of `submit`, `apply`, `imap` and the like run on the other ranks. The root stays free. Where MPI allows no
      threads (it does by MPI_THREAD_MULTIPLE, the default of mpi4py), the root makes each call itself, at once.
    - `with` waits for all calls, as in concurrent.futures. `close` does so too; multiprocessing's returns at once.
      `terminate` and an exception cancel the calls that have not begun; a call that has begun runs to its end.
    - `size` and `_processes` count the root; `workers`, which is schwimmbad's, `num_workers`, which is mpi4py's, and
      `_max_workers` do not. adaptive, which does not know this executor, needs `ntasks=pool.num_workers`.
    - `wait` is schwimmbad's: the worker serves the root. concurrent.futures.wait takes the futures of `submit`.
    - A call on a closed pool is an ArgumentError, a ValueError as in multiprocessing.

    A task's own error arrives with its class: see `TaskError`. A pool that is pickled, as a part of an object that a
    task needs, runs its tasks serially where it arrives, and has neither `comm` nor `initialize` there. The root's own
    does so where the other ranks cannot come: within a task, in an iterator whose items `map` reads, and, of `map`, in
    a callback of a future. A copy of a pool is the pool. Several threads may use it; their maps run one by one.

    Attributes:
        is_root: Whether this rank is the root.
        rank: This rank.
        size: Number of ranks that run tasks of `map`, the root among them.
        workers: The ranks that serve the root.

    Args:
        comm: The ranks; MPI_COMM_WORLD when None.
        root: The rank that has the tasks.
        initializer: On `root`, what to call first on each rank, or one rank of each node; ignored elsewhere.
        initargs: Its arguments.
        per: "rank" or "node".

    Raises:
        ArgumentError: `root` is not a rank of `comm`, `per` is unknown, or this is called within a task.
        MismatchError: The ranks gave different `root` or `per`, or made different calls.
        PeerError: Another rank raised one of these, or its initializer raised.

    Collective:
        Over `comm`, to make it and to enter it. All other methods are for the root alone.

    Source:
        The pattern follows mpi4py.futures.MPICommExecutor.

    Example:
        >>> import mpishare as ms
        >>> with ms.Pool() as pool:
        ...     if pool is not None:
        ...         print(pool.map(abs, [-1, 2, -3]))
        [1, 2, 3]
    """

    def __init__(
        self,
        comm: mpi.Comm | None = None,
        *,
        root: int = 0,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        per: str = "rank",
    ) -> None:
        self._per = per
        if isinstance(comm, int):
            cure = "the workers are the ranks that mpiexec has started. Use Pool(), or a communicator of some of them."
            raise ArgumentError(f"Pool({comm}) asks for processes, but {cure}")
        with collective("Pool", comm) as call:
            self._context = context = call.context
            job = Job(abs, (), initializer=initializer, initargs=initargs, per=per)
            run_map(call, job, root, compared=f"Pool(root={root}, per={per!r})")
        self.rank, self.size, self._root = context.topology.rank, context.topology.size, int(root)
        self.is_root = self.rank == root
        self.workers = frozenset(range(self.size)) - {root}
        self._number = next(context.cached(_numbers_of_pools))
        self._dispatcher: Dispatcher | None = None
        self._is_open = True
        self._has_ended = False
        self._lock = threading.RLock()  # of both, and of the commands
        self._turn = threading.Lock()  # of a call that all ranks make
        self._caller: int | None = None  # the thread whose turn it is
        self._call_numbers = count()  # of `submit`
        self._block = alone(context.topology.comm, "by the root of a Pool that the others serve", for_all_threads=True)
        if self.is_root:
            atexit.register(self.shutdown)  # without it, a root that ends would leave the others waiting

    @property
    def comm(self) -> mpi.Comm:
        """The communicator of the ranks."""
        return self._context.topology.comm

    def __enter__(self) -> Pool | None:  # type: ignore[override]
        self.wait()
        return self if self.is_root else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def wait(self) -> None:
        """On a rank other than the root: runs tasks until the root closes the pool.

        On the root it returns at once, as schwimmbad's does. From then on, and from the first call of the pool on, the
        root's collectives with the other ranks are refused until it closes the pool.

        Raises:
            ArgumentError: MPI has ended, or the communicator has been freed.
        """
        if self.is_root:
            with self._lock:
                if self._is_open:
                    self._block.__enter__()
            return
        self._check_comm()
        kept = None
        while self._is_open:
            command = next_command(self._context, self._root, self._number)
            if isinstance(command, tuple):
                kept = serve_call(self._context, self._root, command, kept)
            elif command == _CLOSE:
                self._is_open = False
            else:
                try:
                    self._run(Job())
                except BaseException as error:
                    if not is_known(error, self.size):  # else it is left to the root, which raises it as well
                        raise

    serve = wait

    def initialize(self, initializer: Callable[..., Any], initargs: tuple[Any, ...] = ()) -> None:
        """Calls `initializer(*initargs)` as one that is given when the pool is made: on each rank, or on each node.

        Raises:
            SpecError: It or an argument cannot be pickled.
            ArgumentError: This is called within a task, by the items of a map or by a callback; or as for `map`.
            PeerError: It raised on another rank.
        """
        self._check_usable()
        if self._is_alone():
            raise ArgumentError(
                "initialize was called within a task, by the items of a map, or by a callback, where the other ranks "
                "do not come. Call it before."
            )
        self._with_all_ranks(Job(abs, (), initializer=initializer, initargs=initargs, per=self._per))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Closes the pool, as in concurrent.futures; the other ranks go on behind their `with`.

        Args:
            wait: Whether to wait until all calls have ended. Else this rank makes no call over `comm` before that.
                The callback of a call, and the items and tasks of a map, do not wait.
            cancel_futures: Whether to cancel calls that have not begun.
        """
        if not self.is_root:
            return
        with self._lock:
            self._is_open = False
            self._block.end()
        if self._dispatcher is not None and cancel_futures:
            self._dispatcher.cancel()
        if wait and not self._is_alone():
            self._end_service()
        else:
            threading.Thread(target=self._end_service).start()

    def _end_service(self) -> None:
        """Ends the others' service, once, when the calls and the `map` of another thread have ended."""
        if self._dispatcher is not None:
            self._dispatcher.join()
        with self._turn:
            if not (self._has_ended or self._has_no_comm()):
                self._has_ended = True
                send_command(self._context, self._number, _CLOSE, *self.workers)
                atexit.unregister(self.shutdown)

    def join(self) -> None:
        """Returns when all calls have ended, as in multiprocessing.

        Raises:
            ArgumentError: The pool has not been closed. A ValueError, as multiprocessing raises.
        """
        if self.is_root and self._is_open:
            raise ArgumentError("the pool is open. Call close() or terminate() before join().")
        self.shutdown()

    def _with_all_ranks(self, job: Job) -> list[Any]:
        """`_run` on all ranks, for one thread at a time."""
        with self._turn:
            try:
                with self._lock:  # no thread closes the pool meanwhile
                    self._check_usable()
                    self.wait()
                    self._caller = threading.get_ident()
                    self._block.is_lifted = True
                    send_command(self._context, self._number, _MAP, *self.workers)
                return self._run(job) or []
            finally:
                with self._lock:
                    self._caller = None
                    self._block.is_lifted = False

    def _run(self, job: Job) -> list[Any] | None:
        with collective("Pool.map", self._context.topology.comm) as call:
            return run_map(call, job, self._root)

    def _map(self, job: Job) -> list[Any]:
        if self._is_alone():
            return super()._map(job)
        self._check_usable()
        if self._dispatcher is not None and not isinstance(job.items, Sized):
            self._dispatcher.wait()  # the items may be what these calls return
        try:
            return self._with_all_ranks(job)
        except TaskError:  # which may be a SpecError as well
            raise
        except SpecError as error:
            raise MpishareError(str(error)) from error

    def _initialize(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        if self._is_alone():
            super()._initialize(initializer, initargs)
            return
        try:
            pickle_object((initializer, initargs))
        except SpecError as error:
            callsite.warn(f"lent(): the initializer is not called, as the other ranks cannot have it: {error}")
        else:
            self.initialize(initializer, initargs)

    def _submit(self, number: int, func: Callable[..., Any], args: tuple[Any, ...]) -> Future[Any]:
        if not self._is_alone() or self._where() == IN_CALLBACK:
            with self._lock:
                self._check_usable()
                if self.workers and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
                    if self._dispatcher is None:
                        self.wait()
                        self._dispatcher = Dispatcher(self._context, self._number, self.workers)
                    return self._dispatcher.submit(number, func, args)
        with alone(self._context.topology.comm, IN_TASK):
            return super()._submit(number, func, args)

    def _error_of(self, number: int, error: BaseException) -> BaseException:
        return task_error(self._context, error, number)

    def _is_alone(self) -> bool:
        """Whether this thread is in a task, in a callback, or in a call of all ranks: then the others do not come."""
        return self._caller == threading.get_ident() or self._where() in (IN_TASK, IN_CALLBACK)

    def _where(self) -> str:
        return where_alone(self.comm, of_this_thread=True)

    def _has_no_comm(self) -> bool:
        return mpi.Is_finalized() or self._context.data_comm == mpi.COMM_NULL

    def _check_comm(self) -> None:
        if self._has_no_comm():
            text = "MPI has ended, or the communicator of the pool has been freed. Use a pool before that."
            raise ArgumentError(text)

    def _check_usable(self) -> None:
        self._check_comm()
        if not self.is_root:
            cure = (
                "Use the pool in `with Pool() as pool:`, behind `if pool is not None:`, as the others serve in `with`."
            )
            raise ArgumentError(f"only the root, rank {self._root}, gives tasks, and this is rank {self.rank}. {cure}")
        if not self._is_open:
            raise ArgumentError("the pool has been closed. Make another one, on all ranks.")
