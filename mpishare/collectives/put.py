"""put: a part of a node-shared array on every node, from one rank."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpishare.arrays.dtypes import has_gaps
from mpishare.arrays.raw import Block, bytes_of
from mpishare.arrays.region import checked_region, parse_region, text_of_region
from mpishare.arrays.spec import Spec, leaves, plain
from mpishare.collectives.arguments import LastCall, shared_name
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError, checked_integer
from mpishare.host.memory import allocate_buffer
from mpishare.objects.array_class import ArrayClass, take_apart
from mpishare.transfer.between_nodes import broadcast
from mpishare.transfer.node_fill import ArraySource, replicate
from mpishare.transfer.rows import FEW_BYTES

_CURE = "Put fewer items at a time, or whole rows, which need no buffer."


def put(
    array: NDArray[Any], region: Any, data: ArrayLike | None, *, root: int = 0, comm: mpi.Comm | None = None
) -> None:
    """Writes a part of a node-shared array on every node: `array[region] = data`, with the data of one rank.

    It begins with a fence of all ranks and ends with one of each node: the part changes when all ranks have called, and
    each rank returns when it is written on its own node. The other items do not change.

    A contiguous part, such as some rows of an array in C order, is sent straight into its place. Another part travels
    between nodes in a buffer of its size on the leader of each.

    Args:
        array: On each rank its view of the same array from `empty`, `zeros` or `full`, or of the same part of it.
        region: Which items, the same on all ranks: integers, slices, Ellipsis, None, and at most one list of integers
            or mask, as in NumPy's indexing. Of an item that a list has twice, the last value stays.
        data: On `root`, what NumPy can broadcast to the shape of `array[region]`, and cast to the dtype of `array` by
            its rule "same_kind"; ignored elsewhere. What has that shape and that dtype is not
            copied before it is sent. An array of a subclass converts it as its class does, such as its units; a plain
            array takes none that has units, or whatever else a class of arrays adds.
        root: The rank whose data is written.
        comm: The ranks that share; MPI_COMM_WORLD when None.

    Raises:
        SpecError: `array` is read-only, or not in node-shared memory; or the dtype of `data` cannot be cast, or its
            class would be lost.
        ArgumentError: `region` is not such an index, or is outside of the array; `data` does not have its shape; or
            `root` is not a rank of `comm`.
        CapacityError: A leader has no memory for a buffer, or, as a `PeerCapacityError`, another has none.
        MismatchError: The ranks gave different arrays, different regions or different `root`.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        The NumPy reference, "Assigning values to indexed arrays", `numpy.copyto`; between nodes,
        `transfer.between_nodes`.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> grid = ms.zeros((2, 3))
        >>> ms.put(grid, np.s_[1, :2], [4, 5] if ms.topology().rank == 0 else None)
        >>> grid.tolist()
        [[0.0, 0.0, 0.0], [4.0, 5.0, 0.0]]
    """
    with collective("put", comm) as call:
        context, topology = call.context, call.context.topology
        source = None
        root = checked_integer("root", root, largest=topology.size - 1)
        array, kind = take_apart(array)
        items, spec, part = _selected(array, region)
        if part is None:
            text = _text_of(array, kind, text_of_region(items), root)
        else:
            text = context.cached(_LastText).plan(array, array, items, kind, root)
        if topology.rank == root:
            if data is None:
                raise SpecError(f"root {root} gave None as data. Pass the data on that rank, or its rank as root.")
            source = ArraySource(spec, _as_part(_assigned(data, spec, kind), spec, array if part is None else part))
        is_direct = part is not None and part.flags.forc and not has_gaps(spec.dtype)
        travels = topology.is_leader and topology.n_nodes > 1 and not is_direct
        buffer = allocate_buffer(topology.host, spec.nbytes if travels else 0, _CURE)
        is_few = call.ends_in_collective = is_direct and topology.n_nodes == 1 and spec.nbytes <= FEW_BYTES
        call.agree(text)
        if is_few and part is not None:  # to copy few bytes is not known to fail
            if source is not None:
                source.write(bytes_of(part).data)
            context.collective_comm.barrier()
            return
        with agree(context.collective_comm):
            if part is not None and is_direct:
                replicate(context, root, bytes_of(part), True, source)
            else:
                _replicate_items(context, root, _Items(array, items, part), source, spec, buffer)


class _LastText(LastCall[str]):
    """The last call on a communicator as all ranks must give it, if its items are a view of the array."""

    @staticmethod
    def make(_context: Context, array: Any, _out: Any, items: tuple[Any, ...], kind: ArrayClass, root: int) -> str:
        """See `LastCall.make`."""
        return _text_of(_part_of(array, items), kind, "", root)


def _text_of(part: NDArray[Any], kind: ArrayClass, region: str, root: int) -> str:
    """What the ranks compare of a call: the part of the array, or the array and the region."""
    return f"put({shared_name(part, is_contiguous=False)}{kind.text}, {region}, root={root})"


def _part_of(array: NDArray[Any], items: tuple[Any, ...]) -> NDArray[Any]:
    """The view that integers, slices, None and Ellipsis select."""
    return array[items if Ellipsis in items else (*items, ...)]


class _Items(NamedTuple):
    """`array[items]`, which is `part` if that is a view. Padding bytes stay unchanged."""

    array: NDArray[Any]
    items: tuple[Any, ...]
    part: NDArray[Any] | None

    def read(self) -> NDArray[Any]:
        """The items."""
        return self.array[self.items] if self.part is None else self.part

    def write(self, values: NDArray[Any]) -> None:
        """Assigns `values` to the items."""
        if self.part is not None:
            np.copyto(self.part, values)  # which leaves gaps alone
            return
        if has_gaps(self.array.dtype):
            selected = self.read()
            np.copyto(selected, values)
            values = selected
        self.array[self.items] = values


def _replicate_items(
    context: Context, root: int, items: _Items, source: ArraySource | None, spec: Spec, buffer: Block
) -> None:
    """Writes items that are not contiguous, or have gaps, on every node. Leaders send them in buffers."""
    topology, deferred = context.topology, Deferred()
    leader = topology.placement.leader(topology.node_of(root))
    with deferred:
        if source is not None:
            items.write(source.array)
    if topology.n_nodes > 1:
        context.node_collective_comm.barrier()
        with deferred:
            if topology.rank == leader:
                np.copyto(spec.view(buffer), items.read())
        if topology.is_leader:
            broadcast(context, leader, buffer)
        with deferred:
            if topology.is_leader and topology.rank != leader:
                items.write(spec.view(buffer))
    deferred.raise_first()


def _selected(array: NDArray[Any], region: Any) -> tuple[tuple[Any, ...], Spec, NDArray[Any] | None]:
    """The parsed `region`, the spec of `array[region]`, and a view of these items; None for a list or a mask."""
    if not isinstance(array, np.ndarray):
        shared_name(array)  # which refuses it
    items = checked_region(region)
    if not any(isinstance(item, np.ndarray) for item in items):
        with suppress(IndexError, TypeError):
            part = _part_of(array, items)
            return items, Spec.of(part), part
    axes, view = parse_region(items, array.shape)
    like = np.broadcast_to(np.empty((), array.dtype), [len(axis.indices) for axis in axes])  # which takes no memory
    return items, Spec.checked(view(like).shape, array.dtype), None


def _assigned(data: ArrayLike | None, spec: Spec, kind: ArrayClass) -> ArrayLike | None:
    """`data` as the class of the array assigns it to items, such as with its units converted. As it is, if plain.

    Raises:
        SpecError: The class refuses it; or the array would lose what the class of `data` adds.
    """
    if not kind.name:
        return plain(data)
    items = np.empty(spec.shape, spec.dtype)
    assigned = kind.around(items)
    if type(assigned).__setitem__ is np.ndarray.__setitem__ and take_apart(data)[1].skeleton != kind.skeleton:
        plain(data)
    if any(map(np.ma.is_masked, leaves(data))):
        raise SpecError(f"data has a mask, which {kind.name} would lose. Put the items without one.")
    try:
        assigned[...] = data
    except Exception as error:  # user classes may raise anything
        raise SpecError(f"data cannot be assigned to {kind.name}: {error}") from error
    return items


def _as_part(data: ArrayLike | None, spec: Spec, array: NDArray[Any]) -> NDArray[Any]:
    """`data` on the root with the dtype and the shape of `spec`; in its order, if it is contiguous.

    Raises:
        SpecError: It cannot be cast.
        ArgumentError: It cannot be broadcast.
    """
    try:
        source = np.asarray(data)
        if source.shape == spec.shape and source.dtype == spec.dtype and not np.may_share_memory(source, array):
            return np.asarray(source, order=spec.order) if source.flags.forc else source
        part = np.empty(spec.shape, spec.dtype, order=spec.order)
        # A Python number takes the dtype of the array.
        np.copyto(part, source if isinstance(data, np.ndarray) or source.ndim else data, casting="same_kind")  # type: ignore[arg-type]
    except (TypeError, OverflowError) as error:
        raise SpecError(f"data cannot be cast to {spec.dtype}, the dtype of the array: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"data does not fit the region, of shape {spec.shape}: {error}.") from error
    return part
