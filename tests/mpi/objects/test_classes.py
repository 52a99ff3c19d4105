"""Arrays of subclasses of ndarray keep their class, and its attributes, in the calls that move or reduce items."""

from functools import cached_property

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import bits

units = pytest.importorskip("astropy.units")
table = pytest.importorskip("astropy.table")
masks = pytest.importorskip("astropy.utils.masked")


def lengths(comm, n=3, unit="m"):
    return np.arange(2.0 * n).reshape(n, 2) * (comm.rank + 1) * units.Unit(unit)


def is_length(array, expected, unit="m"):
    return type(array) is units.Quantity and array.unit == unit and bits(array.value) == bits(expected)


@pytest.mark.parametrize("n", [0, 1, 3, 50_000])
def test_rows_keep_their_unit(comm, n):
    local = lengths(comm, n)
    expected = np.concatenate(comm.allgather(local.value))
    every = ms.allgather(local)
    assert is_length(every, expected)
    assert not every.flags.writeable
    gathered = ms.gather(local, root=comm.size - 1)
    assert gathered is None or is_length(gathered, expected)
    assert is_length(ms.scatter(gathered, root=comm.size - 1), expected[ms.partition(len(expected))])


def test_sums_keep_their_unit(comm):
    local = lengths(comm)
    factor = comm.size * (comm.size + 1) // 2
    assert is_length(ms.allreduce(local), np.arange(6.0).reshape(3, 2) * factor)
    assert is_length(ms.allreduce(local, MPI.MAX), np.arange(6.0).reshape(3, 2) * comm.size)
    assert is_length(ms.allreduce(local[0, 1]), np.array(float(factor)))


def test_what_would_lose_the_class_or_its_attributes(comm, raised):
    local = lengths(comm)
    total, plain = ms.share(local if comm.rank == 0 else None, writable=True), ms.zeros((3, 2))
    masked, magnitudes = np.ma.array(np.ones((3, 2)), mask=True), np.ones(3) * units.mag(units.Jy)
    cases = {
        "MPI.PROD of astropy.units.quantity.Quantity(unit=m) would have": lambda: ms.allreduce(local, MPI.PROD),
        "MPI.SUM is not defined for astropy.units.function.logarithmic.Magnitude": lambda: ms.allreduce(magnitudes),
        "out is a plain array, but the items": lambda: ms.allreduce(local, out=plain),
        "but the items are of a plain array": lambda: ms.allreduce(local.value, out=total),
        "numpy.ma.MaskedArray has more than its items": lambda: ms.allgather(masked),
    }
    for text, call in cases.items():
        errors = raised(call)
        assert all(error == "SpecError" and text in message for error, message in errors), errors
    errors = raised(lambda: ms.put(total, 0, 1 * units.s if comm.rank == 0 else None))
    assert errors[0][0] == "SpecError"
    assert "data cannot be assigned to astropy" in errors[0][1]
    if comm.size > 1:
        other = lengths(comm, unit="km" if comm.rank == 0 else "m")
        errors = raised(lambda: ms.allgather(other))
        assert all(error == "MismatchError" and "unit=km" in message for error, message in errors), errors


def test_a_mask_that_would_be_lost(comm, raised):
    """The class assigns the items behind it, too."""
    masked = np.ma.array(np.ones(2), mask=[False, True])
    for unit, value in (
        (units.one, masked),
        (units.one, np.ma.masked),
        (units.km, masks.Masked(np.ones(2) * units.m, mask=[False, True])),
        (units.km, [1 * units.km, masks.Masked(1 * units.m, mask=True)]),
    ):
        grid = ms.share(np.zeros(2) * unit if comm.rank == 0 else None, writable=True)
        errors = raised(lambda: ms.put(grid, ..., value))  # noqa: B023
        assert errors[0][0] == "SpecError", errors
        assert "data has a mask" in errors[0][1]
        ms.put(grid, ..., [1 * unit, 2 * unit])
        assert grid.value.tolist() == [1, 2]


class Modular(np.ndarray):
    """Integers modulo 7, and a sum that is computed once."""

    @cached_property
    def total(self):
        return int(np.asarray(self).sum())

    def __array_ufunc__(self, ufunc, method, *args, **options):
        result = getattr(ufunc, method)(*map(np.asarray, args), **options)
        return (result % 7 if ufunc is np.add else result).view(Modular)


def test_items_that_a_class_computes_in_its_own_way(comm, raised):
    residues = np.array([3, 5, 6]).view(Modular)
    if comm.rank == 0:
        assert residues.total == 14  # and the other ranks have not cached it
    assert ms.allgather(residues).tolist() == [3, 5, 6] * comm.size
    assert ms.allreduce(residues, MPI.MAX).tolist() == [3, 5, 6]
    text = f"MPI.SUM of {__name__}.Modular differs from that of plain items. Pass numpy.asarray"
    for error, message in raised(lambda: ms.allreduce(residues)) if comm.size > 1 else []:
        assert (error, text in message) == ("SpecError", True), message
