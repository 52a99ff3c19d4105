"""Distributed: an array whose rows are split over the nodes, how many each holds, and the rows that a rank takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpishare.arrays.raw import bytes_of
from mpishare.arrays.slices import parts_of
from mpishare.arrays.spec import Spec
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, CapacityError
from mpishare.host.memory import memory_room
from mpishare.memory.segment import segment_of
from mpishare.transfer.exchange import Exchange, Numbers
from mpishare.transfer.rows import memory_of


class Distributed:
    """One copy per job of an array: each node holds a range of its rows in its memory, read-only.

    `distribute` and `load(split=True)` make it. It is not an array: what a program needs of the rows of other nodes it
    takes by `take`, and it computes with plain arrays. `d[i]` and `d[a:b]` are views of rows of this node.

    Attributes:
        shape: The lengths of the whole array, in items; the first one is the number of rows.
        dtype: The dtype of its items.
        nbytes: The bytes of the whole array, of all nodes.
        rows: The rows that this node holds.
        local: These rows, a read-only `numpy.ndarray` in node memory. It is valid as long as it or a view of it exists.
    """

    __iter__ = None  # else Python would take the rows one by one

    def __init__(self, context: Context, whole: Spec, counts: Sequence[int], local: NDArray[Any]) -> None:
        """`counts[node]` rows on each node; `local` are those of this node. All ranks call it."""
        self.shape = whole.shape
        self.dtype = whole.dtype
        self.nbytes = whole.nbytes
        self.local = local
        self._starts = np.array([0, *accumulate(counts)])
        self.rows = range(*self._starts[context.topology.node : context.topology.node + 2].tolist())
        self._comm = context.topology.comm
        self._call = f"take(rows of distributed array {context.new_keys()}, {whole})"
        row_bytes = whole.nbytes // max(len(self), 1)
        self._exchange = Exchange(context, bytes_of(local), self._starts, max(row_bytes, 1))
        segment = segment_of(local)
        if segment is not None:
            segment.rows_per_node, segment.row_bytes = tuple(counts), row_bytes

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        rows = f"rows {self.rows.start} to {self.rows.stop} on this node"
        return f"<Distributed of shape {self.shape}, dtype {self.dtype}, {rows}>"

    def __getitem__(self, index: Any) -> Any:
        """A row of this node, or a slice of its rows. A view; local.

        Raises:
            ArgumentError: The rows are not of this node, or `index` is neither an integer nor a slice.
        """
        try:
            chosen = range(len(self))[index]
        except TypeError:
            text = f"index {index!r} is not an integer or a slice. take() takes lists and arrays of rows."
            raise ArgumentError(text) from None
        except IndexError:
            raise _no_row(index, len(self)) from None
        if isinstance(chosen, int):
            return self[chosen : chosen + 1][0]
        if not chosen:
            return self.local[:0]
        first = self.rows.start
        for row in (chosen[0], chosen[-1]):
            if row not in self.rows:
                own = f"this node has rows {first} to {self.rows.stop}, without the last"
                text = f"row {row} is on node {self.node_of(row)}; {own}. take() brings rows of all nodes."
                raise ArgumentError(text)
        start, stop = chosen.start - first, chosen.stop - first
        return self.local[start : stop if stop >= 0 else None : chosen.step]

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a Distributed is no array. Use its local, or take() the rows.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Distributed cannot be pickled: its rows are in the memory of the nodes.")

    def node_of(self, rows: ArrayLike) -> NDArray[np.intp]:
        """The number of the node that has each of some rows.

        Args:
            rows: Integers, as `take` takes them.

        Returns:
            An array of the shape of `rows`.

        Raises:
            ArgumentError: One of them is not a row.

        Collective:
            No, local.
        """
        return self._starts[1:].searchsorted(_checked_rows(rows, len(self)), side="right")

    def take(self, indices: ArrayLike, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The rows that this rank wants, of any nodes: as `array[indices]` of the whole array.

        Rows of this node are copied from its memory. The others are asked for, and come as bytes: each once, however
        often this rank wants it. Where several ranks of a node want a row, each gets its own copy over the link. The
        manual's page on data larger than a node says how to take the same rows once for all of them.

        Args:
            indices: Any integers from -n to n - 1 for n rows, in any order, repeated or none at all, an array of any
                shape. Each rank gives its own.
            out: An array in C order that may be written, into which the rows go. New memory is taken when None.

        Returns:
            `out`, or a writable `numpy.ndarray` of this rank's own: the shape of `indices`, and then that of a row.

        Raises:
            ArgumentError: An index is not a row, or not an integer.
            SpecError: `out` does not fit the rows.
            CapacityError: This process has too little memory; on the other ranks as a `PeerCapacityError`.
            MismatchError: The ranks made different calls.
            PeerError: Another rank raised one of these. Then no row has travelled.

        Collective:
            Over the communicator of the array, but a rank may return before others have come.

        Example:
            >>> import mpishare as ms, numpy as np
            >>> squares = ms.distribute(np.arange(10) ** 2)
            >>> squares.take([3, 9, -1]).tolist()
            [9, 81, 81]
        """
        with collective("take", self._comm) as call:
            context = call.context
            numbers = _checked_rows(indices, len(self))
            spec = Spec.checked((*numbers.shape, *self.shape[1:]), self.dtype)
            block = memory_of(context, spec, out)
            wanted = np.unique(numbers.ravel(), return_index=True, return_inverse=True)
            stage = self._exchange.allocate_stage()
            call.agree(self._call)
            if self.nbytes:
                self._exchange.take(*wanted, block, stage)
            return spec.view(block) if out is None else out


def _checked_rows(indices: ArrayLike, n_rows: int) -> Numbers:
    """The numbers of rows, from 0 on, in an array of the shape of `indices`.

    Raises:
        ArgumentError: One of them is not a row.
    """
    try:
        given = np.asarray(indices)
    except ValueError as error:
        raise ArgumentError(f"indices are not an array: {error}") from error
    if not given.size:
        return np.empty(given.shape, np.int64)
    if given.dtype.kind not in "iu":
        cure = "For a mask, pass numpy.flatnonzero(mask)."
        raise ArgumentError(f"indices have dtype {given.dtype}; expected integers. {cure}")
    numbers = given.astype(np.int64, copy=False)
    if int(numbers.view(np.uint64).max()) < n_rows:  # so none is negative
        return numbers
    for number in (int(given.min()), int(given.max())):
        if not -n_rows <= number < n_rows:
            raise _no_row(number, n_rows)
    return np.where(numbers < 0, numbers + n_rows, numbers)


def _no_row(number: int, n_rows: int) -> ArgumentError:
    return ArgumentError(f"index {number} is not one of {n_rows} rows; expected {-n_rows} to {n_rows - 1}.")


def node_counts(context: Context, whole: Spec, counts: Sequence[int] | None) -> list[int]:
    """How many rows each node takes.

    Args:
        context: The context of the communicator.
        whole: The spec of all rows.
        counts: The numbers of the user. When None, all nodes take equally many; but if these are too many for the free
            memory of a node, each takes rows in proportion to its free memory.

    Raises:
        ArgumentError: `counts` does not fit the nodes and the rows.

    Collective:
        Over the communicator.
    """
    n_rows, nodes = whole.shape[0], context.topology.placement.nodes
    with agree(context.collective_comm):
        numbers = [part.stop - part.start for part in parts_of(n_rows, len(nodes), counts, "nodes")]
        own = memory_room().free
    if counts is not None:
        return numbers
    free_bytes = context.collective_comm.allgather_int(own)
    free = [free_bytes[ranks[0]] for ranks in nodes]
    row_bytes = whole.nbytes // max(n_rows, 1)
    if all(number * row_bytes <= room for number, room in zip(numbers, free, strict=True)):
        return numbers
    ends = [n_rows * end // (sum(free) or 1) for end in accumulate(free, initial=0)]
    return [stop - start for start, stop in pairwise(ends)]


@contextmanager
def on_each_node(context: Context, whole: Spec) -> Iterator[Context]:
    """An agreement of all ranks, in which each node makes its part of an array.

    Args:
        context: The context of the communicator.
        whole: The spec of the whole array.

    Yields:
        The context of the ranks of this node. Its memory has another size on each node.

    Raises:
        CapacityError: The block raised one. It says how many nodes would do.

    Collective:
        Over the communicator.
    """
    with agree(context.collective_comm):
        try:
            yield context.of_node()
        except CapacityError as error:
            room = max(error.free, memory_room().free, 1)
            n_nodes = max(-(-whole.nbytes // room), context.topology.n_nodes + 1)
            cure = f"{n_nodes} nodes with {room:,} bytes each would hold all {whole.nbytes:,}. {error.cure}"
            raise CapacityError(error.host, error.where, error.wanted, error.free, cure) from error
