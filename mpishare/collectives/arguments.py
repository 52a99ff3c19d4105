"""Arguments that several calls take: scopes, and arrays that must lie in node-shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import is_native_number
from mpishare.arrays.raw import address_of
from mpishare.arrays.spec import Spec, describe
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError
from mpishare.memory.pool import segment_with
from mpishare.memory.segment import segment_at, segment_of
from mpishare.objects.array_class import ArrayClass

_Plan = TypeVar("_Plan")


def is_of_nodes(scope: object) -> bool:
    """Whether a scope is the ranks of each node, "node" or "nodes", and not "all" ranks of the communicator.

    Raises:
        ArgumentError: There is no such scope.
    """
    if not isinstance(scope, str) or scope not in ("node", "nodes", "all"):
        raise ArgumentError(f"scope {scope!r} is unknown. Use 'node' or 'all'.")
    return scope != "all"


def refuse_objects(value: Any, call: str) -> None:
    """Refuses what is no array, but for None and what other libraries have as arrays: `Spec` says what to do then.

    Raises:
        SpecError: It names the call of mpi4py that takes any object.
    """
    kind = type(value)
    if value is None or (hasattr(kind, "__array__") and not isinstance(value, np.generic)):
        return
    cure = "Pass numpy.array(…) of it if it holds numbers. " if isinstance(value, list | tuple) else ""
    raise SpecError(
        f"{kind.__module__}.{kind.__name__} was given; expected a numpy.ndarray. {cure}mpi4py's lower-case call takes "
        f"any object: comm.{call}(…), with the comm of mpishare.topology()."
    )


def shared_name(array: NDArray[Any], *, is_contiguous: bool = True, argument: str = "array", cure: str = "") -> str:
    """A name for the bytes of a node-shared array to write to, the same on all ranks, for an agreement to compare.

    Args:
        array: The array.
        is_contiguous: Whether it must be contiguous.
        argument: Its name in errors.
        cure: What else to do about an array that is not node-shared, for the error.

    Raises:
        SpecError: `array` is not in node-shared memory, not contiguous, or read-only.
    """
    segment = segment_of(array) if isinstance(array, np.ndarray) else None
    if segment is None or segment.key is None:
        given = f"{argument} is {describe(array)}, which cannot be traced to node-shared memory"
        raise SpecError(f"{given}. {cure}Pass one from empty, zeros or full.")
    if not array.flags.writeable:
        raise SpecError(f"{argument} is read-only, as every array of share is. Pass one from empty, zeros or full.")
    if is_contiguous and not array.flags.forc:
        raise SpecError(
            f"{argument} is a part that is not contiguous. Pass the whole array, or a contiguous part of it."
        )
    offset = address_of(array) - segment.address
    strides = "" if array.flags.forc else f", strides={array.strides}"
    return f"array {segment.key:x} from byte {offset}, {Spec.of(array)}{strides}"


def name_of_out(out: NDArray[Any] | None) -> str:
    """What an agreement compares of an array that a result is written into; "" without one.

    Raises:
        SpecError: It is not in node-shared memory, not contiguous, or read-only.
    """
    return "" if out is None else f", out={shared_name(out, argument='out')}"


def is_in_shared_memory(array: NDArray[Any] | None) -> bool:
    """Whether all ranks of this node see the same bytes of a node-shared array; else each has its own."""
    segment = None if array is None else segment_of(array)
    return segment is not None and segment.origin.is_shared


def is_written_by_node(array: NDArray[Any] | None) -> bool:
    """Whether ranks of this node may write to the node-shared memory of an array, also where it is read-only here."""
    segment = None if array is None else segment_at(array)
    return segment is not None and segment.origin.is_shared and segment_with(segment.key or 0) is not segment


@dataclass(frozen=True)
class RowsPlan:
    """What the rows of a rank mean in a call that stacks the rows of all ranks.

    Attributes:
        call: The call as all ranks must give it.
        told: The payload by which this rank tells how many rows it has.
        spec: The spec of this rank's rows.
        kind: Their class.
        whole: The spec of the rows of all ranks, if all have as many; too large for an array, maybe.
        fits: Whether they can be written to `out`; true without it.
    """

    call: str
    told: bytes
    spec: Spec
    kind: ArrayClass
    whole: Spec
    fits: bool


def facts_of(out: NDArray[Any]) -> tuple[object, ...]:
    """What may have changed of an array that a call has checked, when it is given to the next one."""
    return out.dtype, out.shape, out.strides, out.flags.writeable


class LastCall(Generic[_Plan]):
    """What the last call of one kind on a communicator has checked, for the next one with the same arguments.

    In a loop it mostly has them. The checks take several times as long as the messages of few bytes. They are made anew
    but for plain arrays of numbers: dtypes with columns can be equal and yet differ, in titles for example.
    """

    make: Callable[..., _Plan]
    """Checks the arguments, and raises what the call does for this rank's. It must not keep `out` alive."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._dtype: object = None
        self._facts: tuple[object, ...] = ()
        self._out: Callable[[], object] = NoneType  # in place of a reference to `out`
        self._plan: Any = None

    def plan(self, array: Any, out: Any, *others: object) -> _Plan:
        """What was kept, or made for these arguments: the rows or items of this rank, `out`, and what else there is."""
        if not (type(array) is np.ndarray and (out is None or type(out) is np.ndarray)):
            return self.make(self._context, array, out, *others)
        facts: tuple[object, ...] = array.shape, array.strides, others
        if out is not None:
            facts += facts_of(out)
        if array.dtype is not self._dtype or facts != self._facts or self._out() is not out:
            plan, self._dtype = self.make(self._context, array, out, *others), None  # until all is kept
            self._plan, self._facts, self._out = plan, facts, NoneType if out is None else ref(out)
            self._dtype = array.dtype if is_native_number(array.dtype) else None
        return self._plan  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Makes the next plan anew."""
        self._dtype = None
