"""What a class adds to its items, such as a unit or a mask, is kept or refused by every call that takes values."""

import gc
from functools import cached_property

import numpy as np
import pandas as pd
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import bits
from tests.mpi.test_errors import assert_refused, assert_refused_alike

units = pytest.importorskip("astropy.units")
masks = pytest.importorskip("astropy.utils.masked")
xarray = pytest.importorskip("xarray")

N = 4


class Labelled(np.ndarray):
    """An array with an attribute of its own."""

    label = None

    def __array_finalize__(self, other):
        self.label = getattr(other, "label", None)


def labelled(items):
    array = np.array(items).view(Labelled)
    array.label = "mass"
    return array


def with_info(items):
    quantity = items * units.km
    quantity.info.name = "speed"
    return quantity


PAIR = np.dtype([("a", "f8"), ("b", "f8")])
VALUES = {
    "unit": lambda: np.arange(1.0, N + 1) * units.km,
    "unit with info": lambda: with_info(np.arange(1.0, N + 1)),
    "long doubles with a unit": lambda: np.arange(1, N + 1, dtype="g") * units.km,
    "columns with units": lambda: np.ones(N, PAIR) * units.Unit("km, s"),
    "mask": lambda: np.ma.array(np.arange(1.0, N + 1), mask=np.array([0, 1, 0, 0], bool)),
    "matrix": lambda: np.ones((N, 1)).view(np.matrix),
    "records": lambda: np.ones(N, PAIR).view(np.recarray),
    "attribute": lambda: labelled(np.arange(1.0, N + 1)),
    "series": lambda: pd.Series(np.arange(1.0, N + 1), index=list("abcd"), name="speed"),
    "frame": lambda: pd.DataFrame({"a": np.arange(1.0, N + 1)}, index=list("abcd")),
    "xarray": lambda: xarray.DataArray(np.arange(1.0, N + 1), attrs={"units": "km"}),
}


def grid_of(value):
    return ms.zeros(np.shape(value), getattr(value, "dtype", "f8"))


def saved(path, value, **options):
    ms.save(path, value, **options)
    return ms.load(path)


def put(value, *, inside=lambda value: value):
    grid = grid_of(value)
    ms.put(grid, ..., inside(value))
    return grid


def checkpoint(folder, **saved):
    run = ms.Checkpoint(folder)
    run.save(0, saved.pop("arrays", {}), **saved)
    snapshot = run.latest()
    return snapshot.values["a"] if "values" in saved else snapshot.load("a")


def received(comm, value, **options):
    ring = {"dest": (comm.rank + 1) % comm.size, "source": (comm.rank - 1) % comm.size}
    return ms.sendrecv(value, **ring, **options)


ITEMS_ALONE = "series", "xarray"
"""What load(call=) says of other libraries' arrays: it loads their items alone."""

CALLS = {
    "share": lambda comm, folder, value: ms.share(value),
    "share(writable=)": lambda comm, folder, value: ms.share(value, writable=True),
    "share(call=)": lambda comm, folder, value: ms.share(call=lambda: value),
    "private": lambda comm, folder, value: ms.private(ms.share(value, backend="memmap")),
    "handle": lambda comm, folder, value: ms.handle(value).get(),
    "full": lambda comm, folder, value: ms.full(2, first_of(value)),
    "full(dtype=)": lambda comm, folder, value: ms.full(2, first_of(value), "f8"),
    "put": lambda comm, folder, value: put(value),
    "put of a list": lambda comm, folder, value: put([value, value]),
    "put of an item": lambda comm, folder, value: put(first_of(value)),
    "bcast": lambda comm, folder, value: ms.bcast(ms.share(value, writable=True)),
    "allgather": lambda comm, folder, value: ms.allgather(value),
    "allgather(out=)": lambda comm, folder, value: ms.allgather(value, out=grid_of(np.tile(value, comm.size))),
    "allreduce": lambda comm, folder, value: ms.allreduce(value),
    "allreduce(MAX)": lambda comm, folder, value: ms.allreduce(value, MPI.MAX),
    "allreduce(out=)": lambda comm, folder, value: ms.allreduce(value, out=grid_of(value)),
    "gather": lambda comm, folder, value: ms.gather(value),
    "gather(out=)": lambda comm, folder, value: ms.gather(value, out=np.zeros(N * comm.size)),
    "scatter": lambda comm, folder, value: ms.scatter(value, counts=[0] * (comm.size - 1) + [len(value)]),
    "scatter(out=)": lambda comm, folder, value: ms.scatter(value, counts=[N] + [0] * (comm.size - 1), out=np.zeros(N)),
    "distribute": lambda comm, folder, value: ms.distribute(value).local,
    "distribute(local=)": lambda comm, folder, value: ms.distribute(local=value).local,
    "take(out=)": lambda comm, folder, value: ms.distribute(np.ones(N)).take(range(N), out=value),
    "sendrecv": lambda comm, folder, value: received(comm, value),
    "recv(out=)": lambda comm, folder, value: received(comm, np.ones(N), out=value),
    "map": lambda comm, folder, value: (ms.map(lambda _: value, range(3)) or [value])[0],
    "map of items": lambda comm, folder, value: (ms.map(lambda item: item, [value] * 3) or [value])[0],
    "load(call=)": lambda comm, folder, value: ms.load(call=lambda: value),
    "save": lambda comm, folder, value: saved(folder / "a.npy", value),
    "save of several": lambda comm, folder, value: saved(folder / "a.h5", {"a": value}),
    "save(distributed=)": lambda comm, folder, value: saved(folder / "a.npy", value, distributed=True),
    "Checkpoint": lambda comm, folder, value: checkpoint(folder / "run", arrays={"a": value}),
    "Checkpoint(values=)": lambda comm, folder, value: checkpoint(folder / "run", values={"a": value}),
}


def first_of(value):
    """An item, with what the class adds."""
    return value.iloc[1] if isinstance(value, pd.DataFrame | pd.Series) else value[1]


def additions(value):
    """The class, and what it adds."""
    names = ("unit", "label", "mask", "index", "attrs", "name")
    info = getattr(value, "__dict__", {}).get("info")
    return type(value), [str(getattr(value, name, None)) for name in names], getattr(info, "name", None)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.filterwarnings("ignore:.*holds Python objects:RuntimeWarning")
def test_whatever_a_class_adds_is_kept_or_refused(comm, shared_folder, kind):
    value, lost = VALUES[kind](), {}
    for name, call in CALLS.items():
        if name == "load(call=)" and kind in ITEMS_ALONE:
            continue
        given = first_of(value) if name in ("full", "full(dtype=)", "put of an item") else value
        if type(given) in (float, np.float64, np.record, tuple, np.void):  # of which nothing is lost
            continue
        try:
            result = call(comm, shared_folder, value)
            result = value if result is None else result  # of a rank that gets none
            outcome = "kept" if additions(result) == additions(given) else f"lost: {additions(result)}"
        except (ms.MpishareError, TypeError, ValueError) as error:
            outcome = f"refused: {error}"
        outcomes = comm.allgather(outcome.partition(":")[0])
        if outcomes not in (["kept"] * comm.size, ["refused"] * comm.size):
            lost[name] = outcome, outcomes
    del result
    gc.collect()  # xarray's arrays have cycles
    assert not lost


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
        assert_refused_alike(raised(call), "SpecError", text)
    errors = raised(lambda: ms.put(total, 0, 1 * units.s if comm.rank == 0 else None))
    assert_refused(errors, 0, "SpecError", "data cannot be assigned to astropy")
    if comm.size > 1:
        other = lengths(comm, unit="km" if comm.rank == 0 else "m")
        assert_refused_alike(raised(lambda: ms.allgather(other)), "MismatchError", "unit=km")


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
        assert_refused(errors, 0, "SpecError", "data has a mask")
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
    if comm.size > 1:
        assert_refused_alike(raised(lambda: ms.allreduce(residues)), "SpecError", text)


class Few(np.ndarray):
    """An array of at most 4 rows."""

    def __array_finalize__(self, obj: object) -> None:
        if self.ndim and len(self) > 4:
            raise ValueError("too many rows")


@pytest.mark.ranks(2)
def test_a_class_that_refuses_the_rows_of_all_ranks(configured, raised):
    """A class of arrays that raises on the root of `gather`, when the other ranks have gone on.

    Outcome: an error there, and on all ranks in the next call.
    """
    duplicate = configured()
    errors = raised(lambda: ms.gather(np.arange(3.0).view(Few), comm=duplicate))
    assert [error for error, _ in errors] == ["SpecError", *["nothing"] * (duplicate.size - 1)]
    assert_refused(raised(lambda: ms.gather(np.arange(3.0), comm=duplicate)), 0, "MpishareError", "are out of step")
