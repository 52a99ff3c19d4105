"""share: one copy per node of the root's array or object; private: a copy-on-write view of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from itertools import starmap
from types import FunctionType
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from mpishare.arrays.spec import PLAIN_CLASSES, Spec, describe
from mpishare.collectives.arguments import is_of_nodes
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import NO_PAYLOAD, PAYLOAD_BYTES, agree
from mpishare.comm.alone import alone
from mpishare.comm.collective import collective
from mpishare.comm.context import Context, topology
from mpishare.comm.requests import advance_all
from mpishare.errors import ArgumentError, SpecError, checked_integer
from mpishare.memory.allocation import Reservation, node_memory, offered
from mpishare.memory.backends import check_backend
from mpishare.memory.segment import Segment
from mpishare.objects.packing import (
    PackedHeader,
    PackedObject,
    note_bytes,
    replicate_object,
    unpack_object,
)
from mpishare.objects.pickling import pickle_object
from mpishare.objects.private import make_private
from mpishare.objects.references import Referring, named_by, note_shared, pickle_referring
from mpishare.objects.unshared import UnsharedParts
from mpishare.objects.unshared import describe as describe_unshared
from mpishare.transfer.between_nodes import broadcast, broadcast_spec, is_chain
from mpishare.transfer.node_fill import ArraySource, replicate

_T = TypeVar("_T")

_SLEEP_S = 0.001
"""Between two looks whether the root has called the function. Shorter pauses take more of a core."""

_CALLED = b"called".ljust(PAYLOAD_BYTES, b"\0")
"""The payload of a root that calls a function for its object."""


def share(
    obj: _T | None = None,
    *,
    call: Callable[[], _T] | None = None,
    root: int = 0,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
    writable: bool | Literal["private"] = False,
    scope: str = "all",
) -> _T:
    """Brings the array or the object of `root` to all ranks, as a broadcast does, but as views of one copy per node.

    An object is anything that can be pickled, such as a DataFrame, a fitted model, a dict or a bound method. It is
    pickled once, without its arrays. The arrays go into the memory of the node, and each rank unpickles an object of
    its own around views of them. An array that is in several places of the object stays one array, and
    a contiguous view of an array in it stays a view.

    What all ranks have in node memory already is not stored again, unless `backend` or `writable` asks for memory. In
    the new object, a read-only array of `share`, `load`, `allgather` or `allreduce`, or any view of one, is a view of
    the same memory, with the same strides. An object of `share` within the new one is the one that each rank has, if
    its state is in its attributes alone. An array that is itself the argument is stored anew. So what is shared is not
    changed afterwards: a change on one rank is that rank's own, until the object itself is passed to `share` again.

    Arrays of a subclass of ndarray, such as astropy's Quantity, keep their class. The class's extra attributes are
    pickled; the items are not. PyTorch has no read-only tensors: to change a shared one in place ends the process.

    A function is shared as itself; its result is shared with `call`. A `RuntimeWarning` on `root` says so of a function
    without arguments.

    Python objects cannot be views. They travel in the pickle, so that each rank has its own. Some classes copy their
    arrays when they are unpickled, such as random forests. A `RuntimeWarning` on `root` names columns of Python
    objects, and anything else that takes more than 1 MiB on each rank, with its bytes and what to use instead.

    With `call`, the root reads or computes the object within the collective: an error there is every rank's error. The
    other ranks sleep meanwhile, and MPISHARE_TIMEOUT does not count that time.

    Args:
        obj: On `root`, an array of any shape, any strides and any dtype without Python objects, or any object that can
            be pickled; ignored elsewhere. It may be changed or deleted afterwards. cloudpickle, where it is installed
            on all ranks, pickles lambdas and classes that pickle refuses.
        call: Instead of `obj`, a function without arguments that returns it. It is called on `root` alone; the other
            ranks may pass it too. It must not wait for other ranks of `comm`: they wait for it. A call of mpishare with
            such ranks is refused there; one of MPI deadlocks.
        root: The rank whose object is shared.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.
        writable: Whether all ranks of a node may write to the arrays, as to those of `zeros`, and see what the others
            write: after a `fence`. `bcast` and `put` bring it to other nodes. "private" is for libraries that refuse
            read-only arrays: each rank may write, and only it sees what it writes, as with `private`. Then a nameless
            file is tried first, as its pages can be copy-on-write.
        scope: "all" to share among the ranks of `comm`; "node" where each node shares an object of its own, such as
            what `call` computes there once. Then `root` is a node rank, and the nodes do not wait for each other.

    Returns:
        For an array, a plain `numpy.ndarray` with the bits, dtype and shape of `obj`, in Fortran order if `obj` is,
        else in C order. For an object, one of the same type that contains such arrays. Unless `writable`, their pages
        are read-only: a write from C ends the process. An array is valid as long as it or a view of it exists. The
        memory of the node is released with the last view.

    Raises:
        SpecError: `obj` is None or cannot be pickled on `root`, is an array whose dtype has no fixed size, or has no
            array to be `writable`; or this rank cannot unpickle it. What its class raised is the `__cause__`.
        ArgumentError: `root` is not a rank of `comm`, `backend`, `scope` or `writable` is unknown, `call` is not a
            function, or there are both `obj` and `call`.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: The requested backend cannot be used on this node.
        MismatchError: The ranks gave different `root` or `backend`, or made different calls.
        PeerError: Another rank raised one of these, or `call` raised on `root`. That rank raises its own error.

    Collective:
        Over `comm`, or over its ranks on this node, as `scope` says; over `comm` the first time.

    Source:
        MPI 3.1, section 11.2.3 (MPI_Win_allocate_shared); T. Hoefler et al., "MPI + MPI: a new hybrid approach to
        parallel programming with MPI plus shared memory", Computing 95 (2013); PEP 574.

    Example:
        >>> import mpishare as ms, numpy as np
        >>> table = ms.share(np.arange(6.0).reshape(2, 3) if ms.topology().rank == 0 else None)
        >>> table.sum(axis=0).tolist(), table.flags.writeable
        ([3.0, 5.0, 7.0], False)
        >>> model = ms.share({"name": "line", "weights": np.ones(3)} if ms.topology().rank == 0 else None)
        >>> model["name"], model["weights"].flags.writeable
        ('line', False)
        >>> ms.share(call=lambda: np.eye(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    with collective("share", comm, "node" if scope in ("node", "nodes") else "all") as entered:
        context, source, reserved, payload = entered.context, None, None, NO_PAYLOAD
        options = _options(context.topology.size, root, check_backend(backend, context), writable, backend is None)
        if scope != "all":
            is_of_nodes(scope)
        if call is not None and obj is not None:
            raise ArgumentError(f"both obj, {describe(obj)}, and call were given. Give one of them.")
        if call is not None and not callable(call):
            raise ArgumentError(f"call is {describe(call)}; expected a function that returns what is shared.")
        if context.topology.rank == options.root:
            payload = _CALLED
            if call is None:
                payload, source, reserved = _written(context, _source_of(obj, options), options)
        payload = entered.agree(options.call, payload)
        if payload == _CALLED:
            payload, source, reserved = _called(context, call, options, comm)
        result: _T = _spread(entered, payload, source, reserved, options)
        if writable == "private":
            with agree(context.collective_comm):
                return make_private(result, needs_shared=False)  # type: ignore[no-any-return]
        return result


def private(array: _T) -> _T:
    """Makes a view of a node-shared array, or an object around such views, whose changes only this rank sees.

    Its pages are copy-on-write: only pages that this rank changes take memory. Whether later writes of other ranks to
    the same array show in the other pages is undefined. So use it for arrays that do not change, such as the
    arrays of `share`.

    Arrays in nameless files (`backend="memmap"`), and files that are mapped where they lie (`load(map=True)`), can be
    mapped again as copy-on-write as long as their rank keeps the file open: it does so for the newest 64 segments. Of
    all others, such as arrays in windows, the bytes are copied, and a `RuntimeWarning` on the lowest rank of the
    node reports how many.

    Args:
        array: An array from `share`, `empty`, `zeros`, `full` or `load`, or a view of one; or an object with such
            arrays in it, such as a DataFrame, an array with units or a tensor.

    Returns:
        A writable `numpy.ndarray` of the same bits, dtype, shape and strides (no gaps where the bytes were copied).
        For an object, one of the same type with such arrays in it, and with copies of all that is not shared.

    Raises:
        SpecError: No array is a view of node-shared memory, or it is private already. Use `array.copy()` then.

    Collective:
        No, local.

    Source:
        mmap(2), MAP_PRIVATE.

    Example:
        >>> import mpishare as ms
        >>> shared = ms.zeros(3)
        >>> view = ms.private(shared)
        >>> view[0] = 1.0
        >>> float(view[0]), float(shared[0])
        (1.0, 0.0)
    """
    return make_private(array)  # type: ignore[no-any-return]


class _Options(NamedTuple):
    """What all ranks give alike; see `share`. `call` is the text by which they are compared.

    An object `refers` to what is in node memory, unless it is asked for memory of a backend, or that can be written.
    """

    root: int
    backend: str | None
    writable: bool
    refers: bool
    call: str


_PRIVATE_BACKENDS = "memmap,window,private"
"""The backends of arrays that become private: only the first needs no copy for that."""


@lru_cache(maxsize=256, typed=True)
def _options(size: int, root: int, backend: str | None, writable: bool | str, is_choosing: bool) -> _Options:
    root = checked_integer("root", root, largest=size - 1)
    if writable not in (False, True, "private"):
        raise ArgumentError(f"writable is {writable!r}. Use True, False or 'private'.")
    call = f"share(…, root={root}, backend={backend}{f', {writable=}' if writable else ''})"
    if writable == "private":
        return _Options(root, backend or _PRIVATE_BACKENDS, False, False, call)
    return _Options(root, backend, bool(writable), is_choosing and not writable, call)


def _spread(call: collective, payload: bytes, source: Any, reserved: Reservation | None, options: _Options) -> Any:
    """Brings to all ranks what the root has, and has told by `payload`; see `_written`. Collective."""
    context = call.context
    while True:
        header = _header(context, payload, source, options.root)
        segment = _stored(context, header, source, reserved, options)
        if isinstance(header, Spec):
            return segment.view(header)
        call.allow_nested_calls()  # all memory is allocated, so that classes may share arrays while they are unpickled
        result, lacking = _unpacked(context, segment, header, options)
        if not lacking:
            return result
        reserved = None
        with agree(context.collective_comm) as agreement:
            if isinstance(source, _Object):
                packed = _Object(source.obj, options, source.lacking | named_by(source.names, lacking))
                agreement.payload, source, reserved = _written(context, packed, options)
        payload = agreement.payload


def _stored(
    context: Context, header: Spec | PackedHeader, source: Any, reserved: Reservation | None, options: _Options
) -> Segment:
    """Node memory with the bytes of `source`, in what the root has reserved and filled if there is such. Collective."""
    topology, root = context.topology, options.root
    reserved = reserved or _reserved(context, header.nbytes, options)
    if reserved is not None:
        if topology.n_nodes > 1:
            broadcast(context, root, np.frombuffer(reserved.content, np.uint8))
            if topology.node != topology.node_of(root):
                context.node_collective_comm.barrier()
        return reserved.commit("share")
    memory = node_memory(context, header.nbytes, backend=options.backend, made_by="share", writable=options.writable)
    with memory as segment:
        if isinstance(header, Spec):
            replicate(context, root, segment.block(), segment.origin.is_shared, source)
        else:
            replicate_object(context, root, segment, header, source)
    return segment


def _called(
    context: Context, function: Callable[[], Any] | None, options: _Options, of_all: mpi.Comm | None
) -> tuple[bytes, ArraySource | _Object | None, Reservation | None]:
    """Calls `function` on `root` within an agreement; the other ranks sleep until it has ended.

    It may call no collective with other ranks of `of_all`: ranks of other nodes make their calls at any time.

    Returns:
        The payload of the root, and on `root` the others that `_written` returns.
    """
    is_root, source, reserved = context.topology.rank == options.root, None, None
    barrier: list[mpi.Request] = []
    with agree(context.collective_comm) as agreement:
        try:
            with alone(topology(of_all).comm, "within the function of share(call=…)"):
                obj = function() if is_root and function is not None else None
        finally:  # whatever this rank raises, as the others sleep until it has come; see `CollectiveComm.call_together`
            barrier.extend(starmap(context.collective_comm.comm.Ibarrier, [()]))
        while not barrier[0].Test():  # without a limit or a name, as the root works for all
            advance_all()
            time.sleep(_SLEEP_S)
        if is_root:
            agreement.payload, source, reserved = _written(context, _source_of(obj, options), options)
    return agreement.payload, source, reserved


def _source_of(obj: Any, options: _Options) -> ArraySource | _Object:
    """The bytes of `obj` on its root."""
    return ArraySource(Spec.of(obj), obj) if type(obj) in PLAIN_CLASSES else _pack(obj, options)


def _written(
    context: Context, source: ArraySource | _Object, options: _Options
) -> tuple[bytes, ArraySource | _Object, Reservation | None]:
    """The payload of the root, `source`, and a free slot with its bytes; None if there is none."""
    reserved = _reserved(context, source.header.nbytes, options)
    if reserved is not None:
        source.write(reserved.content)
    return source.header.packed[0], source, reserved


def _reserved(context: Context, nbytes: int, options: _Options) -> Reservation | None:
    """What the root fills before the ranks agree; None where no slot is free, or the bytes travel in chunks."""
    if options.writable or (context.topology.n_nodes > 1 and is_chain(context, nbytes)):
        return None
    return offered(context, nbytes, options.backend)


def _header(context: Context, payload: bytes, source: ArraySource | _Object | None, root: int) -> Spec | PackedHeader:
    """What the root has agreed with the others to share."""
    if source is not None and not source.header.packed[1]:
        return source.header
    extension = b"" if source is None else source.header.packed[1]
    return PackedHeader.unpack(payload) or broadcast_spec(context, payload, extension, root)


class _Object(PackedObject):
    """An object on its root, with references to what a rank does not lack.

    Attributes:
        obj: The object.
        lacking: What it does not refer to.
        names: What it refers to.
    """

    def __init__(self, obj: Any, options: _Options, lacking: frozenset[int] = frozenset()) -> None:
        parts = UnsharedParts()
        self.obj, self.lacking, self.names = obj, lacking, list[int]()
        if options.refers:
            pickled, self.names = pickle_referring(obj, parts, lacking)
        else:
            pickled = pickle_object(obj, parts)
        super().__init__(pickled, parts.parts)


def _unpacked(context: Context, segment: Segment, header: PackedHeader, options: _Options) -> tuple[Any, bytes]:
    """The object in a segment that is filled; or None, and what a rank lacks of that to which the object refers.

    Collective:
        Over the communicator.
    """
    warns = context.topology.rank == options.root
    with agree(context.collective_comm) as agreement:
        obj, views = unpack_object(segment, header)
        if isinstance(obj, Referring):
            agreement.payload = obj.hold()
        else:
            note_bytes(segment, header, obj, views, warns=warns)
    if isinstance(obj, Referring):
        if any(agreement.payload):
            return None, agreement.payload
        with agree(context.collective_comm):
            obj = obj.unpickle()
            note_bytes(segment, header, obj, views, warns=warns)
    if options.refers and segment.key is not None:
        note_shared(obj, segment.key)
    return obj, b""


def _pack(obj: Any, options: _Options) -> _Object:
    """The object on its root, which is not an array."""
    if obj is None:
        cure = "Pass the object on that rank, or call a function that returns it."
        raise SpecError(f"root {options.root} gave None, so there is nothing to share. {cure}")
    packed = _Object(obj, options)
    if options.writable and not packed.arrays:
        cure = "Put what the ranks write into an array, or share it without writable=True."
        raise SpecError(f"{describe(obj)} has no array in it, so no rank could see what another one writes. {cure}")
    if isinstance(obj, FunctionType) and _takes_no_arguments(obj):
        name = obj.__name__
        callsite.warn(f"share(): each rank gets the function {name} itself. Use share(call={name}) for its result.")
    if packed.unshared:
        callsite.warn(f"share(): {describe_unshared(packed.unshared)}")
    return packed


def _takes_no_arguments(function: FunctionType) -> bool:
    """Whether a function can be called without arguments."""
    code, n_defaults = function.__code__, len(function.__defaults__ or ()) + len(function.__kwdefaults__ or ())
    return code.co_argcount + code.co_kwonlyargcount == n_defaults
