"""MPIShared and MPILock of pshmem: the same calls, where each node keeps one copy of an array."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import mpishare as ms

if TYPE_CHECKING:
    from mpi4py import MPI
    from mpi4py.util.sync import Mutex


class MPIShared:
    """An array of zeros that every rank reads, and that one rank at a time writes, on all nodes.

    Attributes:
        shape: Its lengths.
        dtype: Its dtype.
        comm: The ranks that share it; None for this process alone, without MPI.
        nodecomm: The ranks of this node.
        data: This rank's view; None where the array has no items, and after `close`. It may be written until the first
            `set` or assignment, as pshmem's: ranks that fill it together wait for each other themselves.

    Args:
        shape: Lengths, integers >= 0.
        dtype: Any dtype without Python objects.
        comm: The ranks that share it, or None.
        comm_node: What the caller has taken for the ranks of each node. Its size is checked; mpishare asks MPI.
        comm_node_rank: The same of the ranks with one place on all nodes.

    Raises:
        ValueError: A length is not an integer >= 0, or `comm` does not consist of communicators of these sizes.

    Collective:
        Over `comm`, as `set` and assignment are. All else is local, `close` too.

    Example:
        >>> import numpy as np
        >>> from mpi4py import MPI
        >>> from mpishare.compat.pshmem import MPIShared
        >>> with MPIShared((2, 3), np.float64, MPI.COMM_WORLD) as shared:
        ...     shared.set(np.ones((1, 3)), offset=(1, 0), fromrank=0)
        ...     shared[:].tolist()
        [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        shape: Sequence[int] | NDArray[Any],
        dtype: DTypeLike,
        comm: MPI.Intracomm | None,
        comm_node: MPI.Intracomm | None = None,
        comm_node_rank: MPI.Intracomm | None = None,
    ) -> None:
        if not all(isinstance(length, int | np.integer) and length >= 0 for length in shape):
            raise ValueError(f"shape is {shape!r}; expected integers >= 0.")
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.comm = comm
        self.nodecomm = self._nodecomm = None if comm is None else comm_node or ms.topology(comm).node_comm
        if comm is not None and comm_node is not None:
            n_nodes, rest = divmod(comm.size, comm_node.size)
            if rest or (comm_node_rank is not None and comm_node_rank.size != n_nodes):
                raise ValueError(f"{comm.size} ranks are not nodes of {comm_node.size}; leave comm_node out.")
        self._rank = 0 if comm is None else ms.topology(comm).rank
        self._array = np.zeros(self.shape, self.dtype) if comm is None else ms.zeros(self.shape, self.dtype, comm=comm)
        if comm is not None:
            self._is_one_node = ms.topology(comm).n_nodes == 1
            self._marks = ms.zeros(comm.size if self._is_one_node else 1, np.int64, comm=comm)
            self._calls = 0
        self._flat = self._array.reshape(-1)  # TOAST writes to it, and reads _nodecomm, _n and _dsize
        self._n, self._dsize = self._array.size, self.dtype.itemsize
        self.data: NDArray[Any] | None = self._array.view() if self._array.size else None

    def __enter__(self) -> MPIShared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops this rank's view. The memory is freed when no rank of the node has a view."""
        self.data = None
        self._array = self._flat = np.empty(0, self.dtype)
        self._marks = np.empty(0, np.int64)

    def set(self, data: ArrayLike | None, offset: Sequence[int] | None = None, fromrank: int = 0) -> None:
        """Writes `data` of one rank, from the item at `offset` on, on every node.

        Args:
            data: On `fromrank`, an array of as many axes and of the same dtype; ignored elsewhere.
            offset: Where it begins on each axis; at the first item when None. Ignored elsewhere.
            fromrank: The rank that writes.

        Raises:
            RuntimeError: `data` does not fit there, or the array has no items.
        """

        def region(shape: tuple[int, ...]) -> tuple[slice, ...]:
            starts = zip_longest(() if offset is None else offset, shape, fillvalue=0)
            return tuple(slice(start, start + length) for start, length in starts)

        self._write(data, region, fromrank)

    def __setitem__(self, region: Any, value: ArrayLike | None) -> None:
        """Writes the value of the one rank that has one, not None, on every node. The others' `region` is ignored."""
        fromrank = 0
        if self.comm is not None and self.data is not None:
            has_value = value is not None
            count, fromrank = ms.allreduce(np.array([has_value, has_value * self._rank]), comm=self.comm).tolist()
            if count != 1:
                raise RuntimeError(f"{count} ranks assign a value; expected one, and None on all others.")
        self._write(value, lambda _: region, fromrank)

    def _write(self, data: ArrayLike | None, region_of: Callable[[tuple[int, ...]], Any], fromrank: int) -> None:
        """Writes the data of one rank, which alone knows where: in the region for data of that shape.

        That rank writes them on its own node, and as its mark the number of this call. On a single node, one mark says
        that all is done. Else the others learn the region or what is wrong, such as several ranks that wrote.
        """
        if self.data is None:
            raise RuntimeError("the array has no items, or has been closed, so that nothing can be written to it.")
        self.data.flags.writeable = False
        if self.comm is None:
            self._assign(data, region_of)
            return
        region = problem = None
        self._calls += 1
        ms.fence(comm=self.comm, scope="all")  # no rank reads any more
        if self._rank == fromrank:
            try:
                region = self._assign(data, region_of)
                self._marks[self._rank % self._marks.size] = self._calls
            except BaseException as error:
                problem = error
        if self._is_one_node:
            ms.fence(comm=self.comm, scope="all")
            if self._marks.tolist().count(self._calls) == 1:
                return
        region, problem = ms.share((region, problem), root=fromrank, comm=self.comm)
        if problem is not None:
            raise problem
        ms.put(self._array, region, data, root=fromrank, comm=self.comm)

    def _assign(self, data: ArrayLike | None, region_of: Callable[[tuple[int, ...]], Any]) -> Any:
        """Writes data on this node. Returns the region.

        Raises:
            RuntimeError: Their number or dtype is not that of the items in the region.
        """
        values = np.asarray(data)
        region = region_of(values.shape)
        place = self._array[region]
        if values.size != place.size or values.dtype != self.dtype:
            given = f"the data has shape {values.shape} and dtype {values.dtype}"
            raise RuntimeError(f"{given}; its place has shape {place.shape} and {self.dtype}.")
        self._array[region] = values
        return region

    def __getitem__(self, key: Any) -> Any:
        return None if self.data is None else self.data[key]

    def __len__(self) -> int:
        return 0 if self.data is None else len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return iter(() if self.data is None else self.data)

    def __array__(self, *args: Any, **options: Any) -> NDArray[Any]:
        return (self._array if self.data is None else self.data).__array__(*args, **options)

    def __repr__(self) -> str:
        return f"<MPIShared {self.dtype} {self.shape}: {self.data}>"


class MPILock:
    """A lock that one rank holds at a time.

    Attributes:
        comm: The ranks that take it; None for this process alone.

    Args:
        comm: The ranks that take it, or None.
        root: Ignored.
        debug: Ignored.

    Collective:
        Over `comm`, to make it and to `close` it.

    Source:
        mpi4py.util.sync.Mutex: J. M. Mellor-Crummey, M. L. Scott, "Algorithms for scalable synchronization on
        shared-memory multiprocessors", ACM Trans. Comput. Syst. 9 (1991).

    Example:
        >>> from mpi4py import MPI
        >>> from mpishare.compat.pshmem import MPILock
        >>> with MPILock(MPI.COMM_WORLD) as lock:
        ...     lock.lock()
        ...     lock.unlock()
    """

    def __init__(self, comm: MPI.Intracomm | None, root: int = 0, debug: bool = False) -> None:
        self.comm = comm
        self._mutex: Mutex | None = None
        if comm is not None and comm.size > 1:
            from mpi4py.util.sync import Mutex

            self._mutex = Mutex(comm=comm)

    def __enter__(self) -> MPILock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and releases it where this rank holds it."""
        mutex, self._mutex = self._mutex, None
        if mutex is not None:
            mutex.free()

    def lock(self) -> None:
        """Waits until no other rank holds the lock, and takes it; does nothing on the rank that holds it."""
        if self._mutex is not None and not self._mutex.locked():
            self._mutex.acquire()

    def unlock(self) -> None:
        """Gives the lock back, on the rank that holds it."""
        if self._mutex is not None and self._mutex.locked():
            self._mutex.release()
