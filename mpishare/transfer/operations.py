"""Reduction operations on arrays: those of MPI by NumPy's functions, and those made by MPI.Op.Create by MPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.dtypes import is_native_number
from mpishare.comm import mpi
from mpishare.errors import ArgumentError, SpecError

Array = NDArray[Any]

_KINDS = {"b": "bool", "i": "integers", "u": "unsigned integers", "f": "floats", "c": "complex numbers"}


class Operation(Protocol):
    """An operation on arrays of one shape and dtype.

    Attributes:
        name: What all ranks must give alike.
        commutes: Whether the ranks may be taken in any order.
        is_deterministic: Whether it is known to give the same result wherever and however often it is computed.
    """

    name: str
    commutes: bool
    is_deterministic: bool

    def check(self, dtype: np.dtype[Any]) -> None:
        """Returns if the operation fits `dtype`.

        Raises:
            SpecError: It does not.
        """

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """Reduces `inputs`, at least one, into `out`.

        It overlaps none of them, or is one of the first two where the operation is deterministic.
        """

    def into_upper(self, lower: Array, upper: Array) -> None:
        """Reduces `lower` and `upper`, which is of higher ranks, into `upper`."""


@dataclass
class _Function:
    """One of MPI's operations by a NumPy function, which takes the inputs from first to last. Satisfies `Operation`."""

    name: str
    function: np.ufunc
    kinds: str
    commutes: bool = True
    is_deterministic: bool = True

    def check(self, dtype: np.dtype[Any]) -> None:
        """By the table of MPI 3.1, section 5.9.2, with bool among the kinds that have bits."""
        if dtype.kind not in self.kinds:
            known = ", ".join(_KINDS[kind] for kind in self.kinds)
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes {known}. {_cure(dtype)}")

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`."""
        result, *others = inputs
        if not others:
            out[:] = result
        for array in others:
            self._apply(result, array, out)
            result = out

    def into_upper(self, lower: Array, upper: Array) -> None:
        """See `Operation`."""
        self._apply(lower, upper, upper)

    def _apply(self, lower: Array, upper: Array, out: Array) -> None:
        """Reduces `lower` and `upper` into `out`, which may be one of them.

        An overflow is a value, as in MPI; a warning could be an error. NumPy takes one item that is its own result for
        a reduction: it swaps the operands, and a complex product is then rounded in another way.
        """
        with np.errstate(all="ignore"):
            if out.size == 1:
                out[...] = self.function(lower, upper)
            else:
                self.function(lower, upper, out=out)


@dataclass
class _UserFunction:
    """An operation made by MPI.Op.Create. It satisfies `Operation`.

    It takes the inputs from last to first, as MPI_Reduce_local writes the result over the upper input.
    """

    name: str
    op: mpi.Op
    commutes: bool
    is_deterministic: bool = False

    def check(self, dtype: np.dtype[Any]) -> None:
        """The operation gets an MPI datatype, so MPI must have one."""
        if not is_native_number(dtype):
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes numbers in this machine's byte order.")
        try:
            mpi.Datatype.fromcode(dtype.char)
        except (ValueError, KeyError) as error:
            raise SpecError(
                f"{self.name} does not fit dtype {dtype}: MPI has no type for it. Use .astype('f4')."
            ) from error

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`."""
        out[:] = inputs[-1]
        for array in inputs[-2::-1]:
            self.into_upper(array, out)

    def into_upper(self, lower: Array, upper: Array) -> None:
        """See `Operation`."""
        datatype = mpi.Datatype.fromcode(upper.dtype.char)
        self.op.Reduce_local([lower, lower.size, datatype], [upper, upper.size, datatype])


def operation_of(op: mpi.Op) -> Operation:
    """The operation that `op` stands for.

    Raises:
        ArgumentError: `op` is not an operation, or not one on arrays of numbers.
    """
    if not isinstance(op, mpi.Op):
        raise ArgumentError(f"op is {op!r}. Give an operation of mpi4py, such as MPI.SUM, or one of MPI.Op.Create.")
    known = _known_operations().get(mpi.handle_of(op))
    if known is not None:
        return known
    if op == mpi.OP_NULL or op.is_predefined:
        names = ", ".join(operation.name for operation in _known_operations().values())
        raise ArgumentError(f"op does not reduce arrays of numbers. Use {names}, or one of MPI.Op.Create.")
    law = "commutes" if op.is_commutative else "does not commute"  # handles differ between ranks, so the name has none
    return _UserFunction(f"an operation of the user's that {law}", op, op.is_commutative)


@cache
def _known_operations() -> dict[int, _Function]:
    """MPI's own operations, by handle."""
    table = {
        "SUM": (np.add, "iufc"),
        "PROD": (np.multiply, "iufc"),
        "MIN": (np.minimum, "iuf"),
        "MAX": (np.maximum, "iuf"),
        "LAND": (np.logical_and, "biu"),
        "LOR": (np.logical_or, "biu"),
        "LXOR": (np.logical_xor, "biu"),
        "BAND": (np.bitwise_and, "biu"),
        "BOR": (np.bitwise_or, "biu"),
        "BXOR": (np.bitwise_xor, "biu"),
    }
    return {
        mpi.handle_of(getattr(mpi, name)): _Function(f"MPI.{name}", function, kinds)
        for name, (function, kinds) in table.items()
    }


def _cure(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "Reduce its columns one by one."
    if dtype.kind == "b":
        return "Use MPI.LOR or MPI.LAND, or count with .astype('i8')."
    return "Use another operation, or another dtype by .astype."
