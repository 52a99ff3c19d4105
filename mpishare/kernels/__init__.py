"""Compiled work on node-shared arrays that NumPy cannot do in place. Needs numba.

It answers how several ranks add to one array without losing an addition. Only users may call it, by
`from mpishare import kernels`. The rest of mpishare must never import it, since numba is optional.
"""

from __future__ import annotations

from typing import Any

try:
    import numba
except ModuleNotFoundError as error:  # not ImportError: numba says itself that NumPy is too new
    raise ImportError("mpishare.kernels needs numba, which is not installed: pip install numba") from error

import numpy as np
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload
from numba.np.arrayobj import basic_indexing
from numpy.typing import ArrayLike, NDArray

from mpishare.errors import ArgumentError, SpecError

__all__ = ["add_at", "atomic_add"]

_NAMES = ("int32", "int64", "uint32", "uint64", "float32", "float64")
_TYPES = frozenset(from_dtype(np.dtype(name)) for name in _NAMES)
_ALLOWED = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"

_READ_ONLY = "this array is read-only, as every array of share is. Add to one from zeros or full."
_NOT_ALIGNED = (
    "the items of this array do not lie at multiples of their size, as in a packed column, so that no "
    "addition can be atomic. Use an array of its own, or np.dtype(…, align=True)."
)


def atomic_add(array: NDArray[Any], index: int | tuple[int, ...], value: float) -> Any:
    """Adds to one item of an array, atomically: no addition of another rank or thread is lost.

    It is for compiled functions. In `numba.njit` code it becomes one instruction for integers; for floats, a few that
    are repeated until no other addition came in between. From Python it works as well, at the price of a call, and
    makes a counter that gives each rank numbers of its own.

    The last bits of a sum of floats depend on the order of the additions.

    In compiled code, a SpecError or an ArgumentError is a TypingError of numba, when the function is compiled. There,
    an array that is not aligned raises ValueError, and integers that are too large lose their upper bits.

    Args:
        array: A writable array of int32, int64, uint32, uint64, float32 or float64, of any layout. One from `empty`,
            `zeros` or `full` is shared with the other ranks of the node.
        index: The item: an integer, or a tuple with one integer for each dimension. Negative ones count from the end.
        value: What to add; an integer if the array holds integers.

    Returns:
        The item before the addition.

    Raises:
        SpecError: `array` is read-only, of another dtype, or not aligned.
        ArgumentError: `index` does not have one integer for each dimension, or `value` does not fit the dtype.
        IndexError: The item is outside of the array.

    Collective:
        No, local. After the next `fence`, every rank of the node sees all additions.

    Source:
        The LLVM language reference, atomicrmw, with the order of C11's atomic_fetch_add (memory_order_seq_cst). On
        x86 it is `lock xadd` or a loop round `lock cmpxchg`, on arm64 ldaddal or a loop round ldaxr and stlxr.

    Example:
        >>> import numba, numpy as np, mpishare as ms
        >>> from mpishare import kernels
        >>> @numba.njit
        ... def count(numbers, counts):
        ...     for number in numbers:
        ...         kernels.atomic_add(counts, number, 1)
        >>> counts = ms.zeros(3, "i8")
        >>> count(np.array([0, 2, 2]), counts)  # the numbers that this rank has
        >>> ms.fence()
        >>> counts.tolist()
        [1, 0, 2]
    """
    _check_array(array)
    return _add(array, _checked_index(array, index), _as_items(array, value, 1)[0])


def add_at(array: NDArray[Any], indices: ArrayLike, values: ArrayLike = 1) -> None:
    """Like `numpy.add.at`, but no addition of another rank or thread is lost. It releases Python's lock.

    Args:
        array: A writable, one-dimensional array of int32, int64, uint32, uint64, float32 or float64.
        indices: Any number of integers, each an index into `array`. Negative ones count from the end.
        values: What to add at each index, or one value for all.

    Raises:
        SpecError: `array` is read-only, not one-dimensional, of another dtype, or not aligned.
        ArgumentError: `indices` are not integers, or `values` fit neither their number nor the dtype.
        IndexError: An index is outside of the array; nothing has been added.

    Collective:
        No, local. After the next `fence`, every rank of the node sees all additions.

    Example:
        >>> import mpishare as ms
        >>> from mpishare import kernels
        >>> counts = ms.zeros(3, "i8")
        >>> kernels.add_at(counts, [0, 2, 2])
        >>> counts.tolist()
        [1, 0, 2]
    """
    _check_array(array)
    if array.ndim != 1:
        raise SpecError(f"this array has {array.ndim} dimensions; expected 1. Pass array.reshape(-1).")
    given = np.asarray(indices).reshape(-1)
    if given.size and given.dtype.kind not in "iu":
        raise ArgumentError(f"indices are of dtype {given.dtype}; expected integers.")
    items = _as_items(array, values, given.size)
    [outside] = np.nonzero((given < -array.size) | (given >= array.size))
    if outside.size:
        place = outside[0]
        raise IndexError(f"add_at: index {given[place]} at {place} is outside of an array of {array.size} items")
    _add_all(array, given.astype(np.intp), items)


def _check_array(array: NDArray[Any]) -> None:
    """Checks for callers in Python what `_why_refused` checks for compiled ones.

    Raises:
        SpecError: No item of `array` can be added to atomically.
    """
    if not isinstance(array, np.ndarray) or array.dtype.name not in _NAMES or not array.dtype.isnative:
        given = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise SpecError(f"{given} has no atomic addition. Use an array of {_ALLOWED}.")
    if not array.flags.writeable or not array.flags.aligned:
        raise SpecError(_NOT_ALIGNED if array.flags.writeable else _READ_ONLY)


def _checked_index(array: NDArray[Any], index: int | tuple[int, ...]) -> tuple[int, ...]:
    """The index as a tuple of Python's integers, so that numba compiles for one type. The compiled code checks them."""
    integers = index if isinstance(index, tuple) else (index,)
    if len(integers) != array.ndim or not all(isinstance(integer, int | np.integer) for integer in integers):
        raise ArgumentError(f"index is {index!r}; expected one integer for each of {array.ndim} dimensions.")
    return tuple(map(int, integers))


def _as_items(array: NDArray[Any], values: ArrayLike, count: int) -> NDArray[Any]:
    """A new array of `count` values, in the dtype of `array`."""
    given = np.asarray(values).reshape(-1)
    if given.size not in (1, count):
        raise ArgumentError(f"there are {given.size} values for {count} indices; expected as many, or one for all.")
    refusal = f"values of {given.dtype} cannot be added to items of {array.dtype}"
    if given.dtype.kind not in ("biu" if array.dtype.kind in "iu" else "biuf"):
        raise ArgumentError(f"{refusal}.")
    items = np.empty(count, array.dtype)
    items[:] = given.astype(array.dtype)
    if array.dtype.kind in "iu" and not (items == given).all():
        raise ArgumentError(f"{refusal}: some are too large.")
    return items


def _why_refused(array: types.Type, index: types.Type, value: types.Type) -> str:
    """Why there is no addition for arguments of these types; "" if there is."""
    if not isinstance(array, types.Array) or array.dtype not in _TYPES:
        return f"{array} has no atomic addition. Use an array of {_ALLOWED}."
    if not array.mutable:
        return _READ_ONLY
    integers = list(index) if isinstance(index, types.BaseTuple) else [index]
    if len(integers) != array.ndim or not all(isinstance(integer, types.Integer) for integer in integers):
        return f"index is {index}; expected one integer for each of {array.ndim} dimensions."
    if not isinstance(value, types.Integer | types.Float | types.Boolean):
        return f"{value} cannot be added to items of {array.dtype}."
    if isinstance(value, types.Float) and isinstance(array.dtype, types.Integer):
        return f"{value} cannot be added to items of {array.dtype}: it would lose its fraction. Use int(…)."
    return ""


def _typed_fetch_add(_: Any, array: types.Type, index: types.Type, value: types.Type) -> tuple[Any, Any]:
    """The signature of the addition, and the function that generates its code."""
    if reason := _why_refused(array, index, value):
        raise TypingError(f"atomic_add: {reason}")
    return array.dtype(array, index, array.dtype), _generate


def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The atomic instruction, after checks of the index and of the alignment."""
    array_type, index_type, _ = signature.args
    array = context.make_array(array_type)(context, builder, args[0])
    is_tuple = isinstance(index_type, types.BaseTuple)
    integers = cgutils.unpack_tuple(builder, args[1]) if is_tuple else [args[1]]
    integer_types = list(index_type) if is_tuple else [index_type]
    pointer, *_ = basic_indexing(context, builder, array_type, array, integer_types, integers, boundscheck=True)
    address = builder.ptrtoint(pointer, context.get_value_type(types.uintp))  # numba's types do not give alignment
    misaligned = builder.and_(address, address.type(context.get_abi_sizeof(pointer.type.pointee) - 1))
    with builder.if_then(cgutils.is_not_null(builder, misaligned), likely=False):
        context.call_conv.return_user_exc(builder, ValueError, (_NOT_ALIGNED,))
    operation = "fadd" if isinstance(array_type.dtype, types.Float) else "add"
    return builder.atomic_rmw(operation, pointer, args[2], "seq_cst")


_fetch_add: Any = intrinsic(_typed_fetch_add)


def _add_one(array: Any, index: Any, value: Any) -> Any:
    return _fetch_add(array, index, value)


_add = numba.njit(nogil=True)(_add_one)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def _add_all(array: Any, indices: Any, values: Any) -> None:
    for number in range(indices.size):
        _fetch_add(array, indices[number], values[number])


def _overload(array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 - numba wants their names
    return _add_one


# Inlined, since numba leaks the arrays of a caller when a function that it calls raises.
overload(atomic_add, inline="always")(_overload)
