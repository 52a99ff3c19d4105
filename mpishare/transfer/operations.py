"""How two arrays become one: MPI's operations by NumPy's functions, and those that users make by MPI."""

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
    """One operation on arrays of one shape and dtype."""

    @property
    def name(self) -> str:
        """What all ranks must name alike."""

    @property
    def commutes(self) -> bool:
        """Whether the ranks may come in any order."""

    @property
    def is_known(self) -> bool:
        """Whether it gives the same wherever and however often it is done."""

    def check(self, dtype: np.dtype[Any]) -> None:
        """Returns when it fits `dtype`.

        Raises:
            SpecError: It does not.
        """
        ...

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """All of `inputs`, at least one, into `out`, which is none of them."""
        ...

    def begin_with(self, count: int) -> Sequence[int]:
        """In which order `fold` takes so many inputs."""
        ...

    def add(self, more: Array, out: Array) -> None:
        """Puts the next input, in the order of `fold`, together with those before it."""
        ...

    def into_upper(self, lower: Array, upper: Array) -> None:
        """`lower` together with `upper`, which is of higher ranks, into `upper`."""
        ...


@dataclass(frozen=True)
class _Function:
    """One of MPI's own, by a function of NumPy, from the first input to the last. It satisfies `Operation`."""

    name: str
    function: np.ufunc
    kinds: str
    commutes: bool = True
    is_known: bool = True

    def check(self, dtype: np.dtype[Any]) -> None:
        """By the table of MPI 3.1, section 5.9.2, with bool among what bits are in."""
        if dtype.kind not in self.kinds:
            known = ", ".join(_KINDS[kind] for kind in self.kinds)
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes {known}. {_cure(dtype)}")

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`."""
        if len(inputs) == 1:
            out[:] = inputs[0]
            return
        with np.errstate(all="ignore"):  # an overflow is a value, as in MPI, and a warning may be an error
            self.function(inputs[0], inputs[1], out=out)
            for one in inputs[2:]:
                self.function(out, one, out=out)

    def begin_with(self, count: int) -> Sequence[int]:
        """From the first on."""
        return range(count)

    def add(self, more: Array, out: Array) -> None:
        """See `Operation`."""
        with np.errstate(all="ignore"):
            self.function(out, more, out=out)

    def into_upper(self, lower: Array, upper: Array) -> None:
        """See `Operation`."""
        with np.errstate(all="ignore"):
            self.function(lower, upper, out=upper)


@dataclass(frozen=True)
class _UsersOwn:
    """One made by MPI.Op.Create, from the last input to the first, as MPI leaves it no other memory.

    It satisfies `Operation`.
    """

    op: mpi.Op
    commutes: bool
    is_known: bool = False

    @property
    def name(self) -> str:
        """Handles differ between ranks, so all that is known of it."""
        return f"an operation of the user's that {'commutes' if self.commutes else 'does not commute'}"

    def check(self, dtype: np.dtype[Any]) -> None:
        """It gets an MPI datatype, so there must be one."""
        if not is_native_number(dtype):
            raise SpecError(f"{self.name} does not fit dtype {dtype}: it takes numbers in this machine's byte order.")
        try:
            _datatype(dtype)
        except (ValueError, KeyError) as error:
            words = f"{self.name} does not fit dtype {dtype}: MPI has no type for it. Use .astype('f4')."
            raise SpecError(words) from error

    def fold(self, inputs: Sequence[Array] | Array, out: Array) -> None:
        """See `Operation`."""
        out[:] = inputs[-1]
        for one in inputs[-2::-1]:
            self.add(one, out)

    def begin_with(self, count: int) -> Sequence[int]:
        """From the last on."""
        return range(count)[::-1]

    def add(self, more: Array, out: Array) -> None:
        """See `Operation`."""
        self.into_upper(more, out)

    def into_upper(self, lower: Array, upper: Array) -> None:
        """See `Operation`."""
        kind = _datatype(upper.dtype)
        self.op.Reduce_local([lower, lower.size, kind], [upper, upper.size, kind])


def operation_of(op: mpi.Op) -> Operation:
    """What `op` does.

    Raises:
        ArgumentError: It is no operation, or none for arrays of numbers.
    """
    if not isinstance(op, mpi.Op):
        raise ArgumentError(f"op is {op!r}. Give an operation of mpi4py, such as MPI.SUM, or one of MPI.Op.Create.")
    known = _known().get(mpi.handle_of(op))
    if known is not None:
        return known
    if op == mpi.OP_NULL or op.is_predefined:
        names = ", ".join(one.name for one in _known().values())
        raise ArgumentError(f"op is none that reduces arrays of numbers. Use {names}, or one of MPI.Op.Create.")
    return _UsersOwn(op, op.is_commutative)


@cache
def _known() -> dict[int, _Function]:
    """MPI's own, by handle."""
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
    return {mpi.handle_of(getattr(mpi, name)): _Function(f"MPI.{name}", *found) for name, found in table.items()}


def _datatype(dtype: np.dtype[Any]) -> mpi.Datatype:
    return mpi.Datatype.fromcode(dtype.char)


def _cure(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        return "Reduce its columns one by one."
    if dtype.kind == "b":
        return "Use MPI.LOR or MPI.LAND, or count with .astype('i8')."
    return "Use another operation, or another dtype by .astype."
