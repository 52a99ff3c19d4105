"""Adding to the items of an array, from many ranks at once, so that no addition is lost."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numba import from_dtype, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, overload
from numpy.typing import ArrayLike, NDArray

from mpishare.errors import ArgumentError, SpecError
from mpishare.kernels.compiling import compiled

_NAMES = ("int32", "int64", "uint32", "uint64", "float32", "float64")
_TYPES = frozenset(from_dtype(np.dtype(name)) for name in _NAMES)
_ALLOWED = f"{', '.join(_NAMES[:-1])} or {_NAMES[-1]}"

_READ_ONLY = "this array is read-only, as those of share are. Add to one from zeros or full."
_NOT_ALIGNED = (
    "the items of this array do not lie at multiples of their size, as those of a packed column, so that none can be "
    "added to at once. Use an array of its own, or np.dtype(…, align=True)."
)
_OUTSIDE = "atomic_add: the index is outside of the array"


def atomic_add(array: NDArray[Any], index: int | tuple[int, ...], value: float) -> Any:
    """Adds to one item of an array such that no addition of another rank or thread is lost.

    It is for compiled functions: called in the user's own `numba.njit` code it becomes one instruction for integers,
    and for floats a few that are tried again until nobody came in between. From Python it works as well, at the price
    of a call, and makes a counter from which each rank takes its own numbers.

    Sums of floats depend on the order of the additions in their last bits, as everywhere.

    Args:
        array: A writable array of int32, int64, uint32, uint64, float32 or float64, of any layout. It is shared with
            the other ranks of the node where it comes from `empty`, `zeros` or `full`.
        index: The item: one integer for each dimension, a tuple where these are several. Negative ones count from the
            end.
        value: What to add; an integer where the array holds integers.

    Returns:
        The item as it was before.

    Raises:
        SpecError: `array` is read-only, of another dtype, or not aligned.
        ArgumentError: `index` has not one integer for each dimension, or `value` does not fit the dtype. In compiled
            code all these are numba's TypingError, when the function is compiled, but for the alignment, a ValueError,
            and for integers that are too large, which lose their upper bits, as everywhere in such code.
        IndexError: The item is outside of the array.

    Collective:
        No, local. All that the ranks of the node added is there after their `fence`.

    Source:
        The LLVM language reference, atomicrmw, with the order of C11's atomic_fetch_add (memory_order_seq_cst).

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
    _check(array)
    places = _places(array, index)
    return _add(array, places, _amount(array, value))


def add_at(array: NDArray[Any], indices: ArrayLike, values: ArrayLike = 1) -> None:
    """Like `numpy.add.at`, such that no addition of another rank or thread is lost. Python's lock is free meanwhile.

    Args:
        array: A writable, one-dimensional array of int32, int64, uint32, uint64, float32 or float64.
        indices: Any number of integers, each an index into `array`. Negative ones count from the end.
        values: What to add at each of them, or one value for all.

    Raises:
        SpecError: `array` is read-only, not one-dimensional, of another dtype, or not aligned.
        ArgumentError: `indices` are no integers, or `values` do not fit their number or the dtype.
        IndexError: An index is outside of the array; nothing has been added.

    Collective:
        No, local. All that the ranks of the node added is there after their `fence`.

    Example:
        >>> import mpishare as ms
        >>> from mpishare import kernels
        >>> counts = ms.zeros(3, "i8")
        >>> kernels.add_at(counts, [0, 2, 2])
        >>> counts.tolist()
        [1, 0, 2]
    """
    _check(array)
    if array.ndim != 1:
        raise SpecError(f"this array has {array.ndim} dimensions; add_at takes one. Pass array.reshape(-1).")
    where = np.asarray(indices)
    if where.dtype.kind not in "iu" and where.size:
        raise ArgumentError(f"indices are of dtype {where.dtype}; an index is an integer.")
    where = np.ascontiguousarray(where, where.dtype.newbyteorder("=")).reshape(-1)
    amounts = _amounts(array, values, where.size)
    step = int(amounts.size > 1)
    wrong = _add_all(array, _sealed(where, array), _sealed(amounts, array), step) if where.size else -1
    if wrong >= 0:
        raise IndexError(f"add_at: index {where[wrong]} at {wrong} is outside of an array of {array.size} items")


def _check(array: NDArray[Any]) -> None:
    """The same for callers in Python as `_refusal` for compiled ones."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in _NAMES or not array.dtype.isnative:
        told = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else f"{type(array).__name__}"
        raise SpecError(f"{told} cannot be added to at once. Use an array of {_ALLOWED}.")
    if not array.flags.writeable:
        raise SpecError(_READ_ONLY)
    if not array.flags.aligned:
        raise SpecError(_NOT_ALIGNED)


def _places(array: NDArray[Any], index: int | tuple[int, ...]) -> tuple[int, ...]:
    try:
        found = tuple(map(operator.index, index if isinstance(index, tuple) else (index,)))
    except TypeError as error:
        raise ArgumentError(f"index {index!r} is no integer, nor a tuple of integers.") from error
    if len(found) != array.ndim:
        raise ArgumentError(f"index {index!r} has {len(found)} integers; an item of this array has {array.ndim}.")
    if not all(-length <= place < length for place, length in zip(found, array.shape, strict=True)):
        raise IndexError(_OUTSIDE)
    return found


def _amount(array: NDArray[Any], value: Any) -> Any:
    """`value` as an item of `array`."""
    try:
        return array.dtype.type(operator.index(value) if array.dtype.kind in "iu" else float(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"value {value!r} cannot be added to items of {array.dtype}: {error}") from error


def _amounts(array: NDArray[Any], values: ArrayLike, count: int) -> NDArray[Any]:
    """`values` as items of `array`: one, or as many as `count`."""
    given = np.asarray(values)
    if given.size not in (1, count):
        raise ArgumentError(f"there are {given.size} values for {count} indices. Give as many, or one for all.")
    if given.size == 1:
        return np.array([_amount(array, given.reshape(-1)[0])])
    if not np.can_cast(given.dtype, array.dtype, "same_kind"):
        raise ArgumentError(f"values of {given.dtype} cannot be added to items of {array.dtype}.")
    amounts = np.ascontiguousarray(given, array.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(amounts, given):
        raise ArgumentError(f"values of {given.dtype} cannot be added to items of {array.dtype}: some are too large.")
    return amounts.reshape(-1)


def _sealed(given: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view, so that the caller's flags do not each make a function to compile.

    Of a copy where adding to `array` would change it.
    """
    view = given.copy() if np.may_share_memory(given, array) else given.view()
    view.flags.writeable = False
    return view


def _refusal(array: types.Type, index: types.Type, value: types.Type) -> str:
    """Why numba's types do not do; nothing where they do."""
    if not isinstance(array, types.Array) or array.dtype not in _TYPES:
        return f"{array} cannot be added to at once. Use an array of {_ALLOWED}."
    if not array.mutable:
        return _READ_ONLY
    kinds = list(index) if isinstance(index, types.BaseTuple) else [index]
    if len(kinds) != array.ndim or not all(isinstance(kind, types.Integer) for kind in kinds):
        return f"index {index} has not one integer for each of {array.ndim} dimensions."
    if not isinstance(value, types.Integer | types.Float | types.Boolean):
        return f"{value} cannot be added to items of {array.dtype}."
    if isinstance(value, types.Float) and isinstance(array.dtype, types.Integer):
        return f"{value} cannot be added to items of {array.dtype}: it would lose its fraction. Use int(…)."
    return ""


def _typed_fetch_add(_: Any, array: types.Type, index: types.Type, value: types.Type) -> tuple[Any, Any]:
    """The signature of the addition, and what makes its code."""
    why = _refusal(array, index, value)
    if why:
        raise TypingError(f"atomic_add: {why}")
    return array.dtype(array, index, array.dtype), _generate


def _generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """The instruction, behind a look at the bounds."""
    array_type, index_type, _ = signature.args
    array = context.make_array(array_type)(context, builder, args[0])
    is_tuple = isinstance(index_type, types.BaseTuple)
    given = cgutils.unpack_tuple(builder, args[1]) if is_tuple else [args[1]]
    kinds = list(index_type) if is_tuple else [index_type]
    lengths = cgutils.unpack_tuple(builder, array.shape)
    places = [_place(context, builder, *one) for one in zip(given, kinds, lengths, strict=True)]
    pointer = cgutils.get_item_pointer(context, builder, array_type, array, places)
    _check_alignment(context, builder, pointer, context.get_abi_sizeof(pointer.type.pointee))
    word = "fadd" if isinstance(array_type.dtype, types.Float) else "add"
    return builder.atomic_rmw(word, pointer, args[2], "seq_cst")


def _check_alignment(context: Any, builder: Any, pointer: Any, nbytes: int) -> None:
    """Raises where the item does not lie at a multiple of its size, of which numba's type tells nothing."""
    address = builder.ptrtoint(pointer, context.get_value_type(types.uintp))
    with builder.if_then(cgutils.is_not_null(builder, builder.and_(address, address.type(nbytes - 1))), likely=False):
        context.call_conv.return_user_exc(builder, ValueError, (_NOT_ALIGNED,))


def _place(context: Any, builder: Any, given: Any, kind: Any, length: Any) -> Any:
    """The index from the beginning on. A negative one is a very large one where it is compared without its sign."""
    place = context.cast(builder, given, kind, types.intp)
    if kind.signed:
        is_negative = builder.icmp_signed("<", place, place.type(0))
        place = builder.select(is_negative, builder.add(place, length), place)
    with builder.if_then(builder.icmp_unsigned(">=", place, length), likely=False):
        context.call_conv.return_user_exc(builder, IndexError, (_OUTSIDE,))
    return place


_fetch_add: Any = intrinsic(_typed_fetch_add)


def _add_one(array: Any, index: Any, value: Any) -> Any:
    return _fetch_add(array, index, value)


_add = compiled(_add_one)


@compiled
def _add_all(array: Any, indices: Any, values: Any, step: int) -> int:
    """Adds `values`, of which there is one for all if `step` is 0; the first index that is outside, or -1."""
    for number in range(indices.size):
        if not -array.size <= indices[number] < array.size:
            return number
    for number in range(indices.size):
        _fetch_add(array, indices[number], values[number * step])
    return -1


def _in_compiled_code(array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001 - their types do not matter here
    return _add_one


# Within the caller's code: numba loses the arrays of a caller when what it calls raises.
overload(atomic_add, inline="always")(_in_compiled_code)
