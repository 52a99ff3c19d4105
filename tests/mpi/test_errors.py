"""Bad arguments: refused on all ranks, with one message, and the next call works."""

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms

pytestmark = pytest.mark.once

LAST = MPI.COMM_WORLD.size - 1


def assert_refused(errors, rank, error, message):
    """`rank` raised `error` with `message`, and every other rank the PeerError of it with the same message."""
    assert errors[rank][0] == error, errors
    assert message in errors[rank][1], errors
    peer = f"Peer{error}" if hasattr(ms, f"Peer{error}") else "PeerError"
    for other in errors[:rank] + errors[rank + 1 :]:
        assert other == (peer, other[1])
        assert f"rank {rank} on host" in other[1]
        assert f"{error}: {errors[rank][1]}" in other[1]


def assert_refused_alike(errors, error, message):
    """Every rank raised `error` with the same `message`."""
    assert set(errors) == {(error, errors[0][1])}
    assert message in errors[0][1], errors


def assert_refused_by_some(errors, error, message):
    """Some ranks raised `error`, and the others the PeerError of it, all with `message`."""
    assert error in {kind for kind, _ in errors} <= {error, f"Peer{error}"}, errors
    assert all(message in text for _, text in errors), errors


ANY: Any = ms
SHARE, SCATTER, SPLIT = (partial(call, root=LAST) for call in (ANY.share, ANY.scatter, ANY.distribute))
PUT: Any = lambda data: ms.put(ms.zeros((2, 2)), np.s_[1], data, root=LAST)  # noqa: E731
MAP: Any = lambda func, items=(): ms.map(func, items, root=LAST)  # noqa: E731
ONES = np.ones(2)
BAD_ON_ONE_RANK = [
    (SHARE, (np.zeros(2, [("id", "i4"), ("name", "O")]),), "SpecError: dtype [('id', '<i4'), ('name', 'O')] cannot"),
    (lambda array, root=0: ms.share(array, root=root), (np.ones(2), 99), "ArgumentError: root is 99;"),
    (PUT, (np.ones((2, 3)),), "ArgumentError: data does not fit the region, of shape (2,): could not broadcast"),
    (PUT, (None,), f"SpecError: root {LAST} gave None as data"),
    (lambda lengths: ms.empty(len(lengths) - 1), ([],), "SpecError: shape"),
    (MAP, (None, [1]), f"SpecError: root {LAST} passed None as func"),
    (MAP, (partial(pow, threading.Lock()), [1]), "SpecError: lock cannot be pickled: cannot pickle"),
    (MAP, (abs, iter([1, threading.Lock()])), "SpecError: item 1: "),
    (MAP, (abs, [*range(40), "a", threading.Lock(), 1]), "SpecError: item 41: "),
    (MAP, (abs, None), "ArgumentError: items is None"),
    (ANY.gather, (np.array(3.0),), "SpecError: an array without dimensions has no rows"),
    (SCATTER, (np.array([None, 1]),), "SpecError: dtype object cannot be shared"),
    (SPLIT, (np.array([None, 1]),), "SpecError: dtype object cannot be shared"),
    (SPLIT, (np.array(1.0),), "SpecError: an array without dimensions has no rows"),
    (SPLIT, (None,), "SpecError: None was given"),
    (ANY.allreduce, (np.ones(2), MPI.BAND), "SpecError: MPI.BAND does not fit dtype float64: it takes bool, integers"),
    (ANY.allreduce, (np.ones(2, [("a", "f8")]), MPI.SUM), "SpecError: MPI.SUM does not fit dtype [('a', '<f8')]"),
    (ANY.allreduce, (np.ones(2), MPI.MAXLOC), "ArgumentError: op is <mpi4py.MPI.Op object"),
    (ANY.allreduce, (np.ones(2), np.subtract), "ArgumentError: op is <ufunc 'subtract'>, which does not reduce arrays"),
]


def test_an_error_on_one_rank_is_every_ranks_error(comm, raised):
    for call, args, message in BAD_ON_ONE_RANK:
        errors = raised(lambda call=call, args=args: call(*args) if comm.rank == LAST else call(np.ones(2)))
        assert_refused(errors, LAST, *message.split(": ", 1))
        assert errors[LAST][1].startswith(message.split(": ", 1)[1])


BAD_ARGUMENTS = {
    "empty": (lambda: ms.empty((2**40, 2**40)), "SpecError", "shape (1099511627776, 1099511627776) of float64 cannot"),
    "zeros": (lambda: ms.zeros(3, object), "SpecError", "dtype object cannot be shared"),
    "full: two": (lambda: ms.full(3, [1, 2]), "SpecError", "fill value of shape (2,) is not one item"),
    **{
        f"root is {root!r} of {call.__name__}": (partial(call, array, root=root), "ArgumentError", f"root is {root!r}")
        for root, call, array in (
            (-1, ANY.share, np.ones(3)),
            (MPI.COMM_WORLD.size, ANY.share, np.ones(3)),
            (99, ANY.bcast, None),
            (99, ANY.distribute, np.ones(2)),
            ("0", ANY.gather, np.ones(3)),
        )
    },
    "fence": (lambda: ms.fence(scope="job"), "ArgumentError", "scope 'job' is unknown"),
    "partition -1": (lambda: ms.partition(-1), "ArgumentError", "n is -1; expected an integer from 0"),
    "backend": (lambda: ms.share(np.ones(3), backend="pigeon"), "ArgumentError", "backend 'pigeon'"),
    "put outside": (lambda: ms.put(ms.zeros((2, 3)), np.s_[:, 3], 0), "ArgumentError", "region: 3 is not within"),
    "backend of rows": (partial(SPLIT, ONES, backend="pigeon"), "ArgumentError", "backend 'pigeon' is unknown"),
    "counts": (partial(SPLIT, ONES, counts=[1] * 99), "ArgumentError", "counts has 99 numbers that add up to 99. Give"),
    "array and local": (partial(SPLIT, ONES, local=ONES), "ArgumentError", "local was given with an array of shape"),
    "counts and local": (partial(SPLIT, counts=[1], local=ONES), "ArgumentError", "local was given with None as array"),
    **{
        text: (partial(ANY.map, abs, [1], **{name: value}), "ArgumentError", text)
        for text, name, value in (
            ("gather 'some' is unknown", "gather", "some"),
            ("per 'core' is unknown", "per", "core"),
            *((f"chunk is {value}; expected", "chunk", value) for value in (0, 1.5, 2**70)),
            ("root is 99; expected an integer from 0", "root", 99),
        )
    },
    "obj and call": (lambda: ms.share(1, call=int), "ArgumentError", "both obj, an object of type int, and call were"),
    "call": (lambda: ANY.share(call=3), "ArgumentError", "call is an object of type int; expected a function"),
}


def test_bad_arguments(raised):
    for name, (call, error, message) in BAD_ARGUMENTS.items():
        errors = raised(call)
        assert_refused_alike(errors, error, message)
        assert errors[0][1].startswith(message), name  # a text within it may stand in an error for something else


WORLD, TABLE = MPI.COMM_WORLD, np.arange(3.0)
OTHERS = "mpi4py's lower-case call takes any object: comm.{}(…), with the comm of mpishare.topology()."


def same(array):
    return array.tolist() == TABLE.tolist()


def pooled():
    """Whether the ranks run tasks."""
    with ms.Pool() as pool:
        return pool is None or pool.map(abs, [-1]) == [1]


def csv(path):
    """A file of a format that `load` does not read."""
    if WORLD.rank == 0:
        (path / "table.csv").write_text("0\n1\n2\n")
    WORLD.Barrier()
    return path / "table.csv"


# For a wrong call what it prints, "..." for anything, and whether what that advises works. All are given a folder.
ADVICE: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "SpecError: array is an array of shape (3,), which cannot be traced to node-shared memory. share brings an array "
    "or an object of the root to all ranks; bcast refreshes an array that all have. Pass one from empty, zeros or "
    "full.": (
        lambda path: ms.bcast(TABLE),
        lambda path: same(ms.share(TABLE)) and ms.bcast(ms.zeros_like(TABLE)).sum() == 0,
    ),
    "SpecError: array is read-only, as every array of share is. Pass one from empty, zeros or full.": (
        lambda path: ms.bcast(ms.share(TABLE)),
        lambda path: ms.bcast(array := ms.zeros(3)) is array,
    ),
    "SpecError: array is a part that is not contiguous. Pass the whole array, or a contiguous part of it.": (
        lambda path: ms.bcast(ms.zeros((3, 2))[:, 0]),
        lambda path: ms.bcast(ms.zeros((3, 2))[:2]).shape == (2, 2),
    ),
    f"SpecError: builtins.dict was given; expected a numpy.ndarray. {OTHERS.format('gather')}": (
        lambda path: ANY.gather({"n": WORLD.rank}),
        lambda path: (
            ms.topology().comm.gather({"n": WORLD.rank}, root=LAST) in (None, [{"n": n} for n in range(LAST + 1)])
        ),
    ),
    f"SpecError: builtins.int was given; expected a numpy.ndarray. {OTHERS.format('allreduce')}": (
        lambda path: ms.allreduce(2**70),
        lambda path: ms.topology().comm.allreduce(2**70) == WORLD.size * 2**70,
    ),
    "SpecError: builtins.list was given; expected a numpy.ndarray. Pass numpy.array(…) of it if it holds numbers. "
    f"{OTHERS.format('allgather')}": (
        lambda path: ANY.allgather([WORLD.rank]),
        lambda path: ms.allgather(np.array([WORLD.rank])).tolist() == [*range(WORLD.size)],
    ),
    "SpecError: an array without dimensions has no rows. Pass array[numpy.newaxis] for one row of it.": (
        lambda path: ms.allgather(np.array(WORLD.rank)),
        lambda path: ms.allgather(np.array(WORLD.rank)[np.newaxis]).tolist() == [*range(WORLD.size)],
    ),
    "SpecError: MPI.SUM does not fit dtype bool: it takes integers, unsigned integers, floats, complex numbers. Use "
    "'logical_or' or 'logical_and', or count with int(…) of a number, .astype('i8') of an array.": (
        lambda path: ms.allreduce(True),
        lambda path: ms.allreduce(True, "logical_or") is True and ms.allreduce(int(True)) == WORLD.size,
    ),
    "SpecError: dtype object cannot be shared: it holds Python objects. Use a fixed width, e.g. .astype('S') or "
    ".astype('f8').": (
        lambda path: ms.share(TABLE.astype(object)),
        lambda path: same(ms.share(TABLE.astype(object).astype("f8"))),
    ),
    "SpecError: root 0 gave None, so there is nothing to share. Pass the object on that rank, or call a function that "
    "returns it.": (lambda path: ms.share(None), lambda path: same(ms.share(call=TABLE.copy))),
    "SpecError: an object of type list has no array in it, so no rank could see what another one writes. Put what the "
    "ranks write into an array, or share it without writable=True.": (
        lambda path: ms.share([1, 2], writable=True),
        lambda path: ms.share([1, 2]) == [1, 2] and ms.share([TABLE], writable=True)[0].flags.writeable,
    ),
    "ArgumentError: Pool(3) asks for processes, but the workers are the ranks that mpiexec has started. Use Pool(), or "
    "a communicator of some of them.": (lambda path: ANY.Pool(3), lambda path: pooled()),
    "ArgumentError: op is 'mean', which does not reduce arrays of numbers. Use sum, add, prod, multiply, min, minimum, "
    "max, maximum, ...": (
        lambda path: ms.allreduce(TABLE, "mean"),
        lambda path: same(ms.allreduce(TABLE, "add") / WORLD.size) and same(ms.allreduce(TABLE, np.maximum)),
    ),
    "ArgumentError: scope 'job' is unknown. Use 'node' or 'all'.": (
        lambda path: ms.partition(3, scope="job"),
        lambda path: ms.partition(3, scope="node") and ms.partition(3, scope="all"),
    ),
    "ArgumentError: order 'K' is unknown. Use 'C' or 'F'.": (
        lambda path: ms.zeros(3, order="K"),
        lambda path: ms.zeros((2, 2), order="F").flags.f_contiguous,
    ),
    "FileError: .../table.csv: is of none of the formats that load reads: .npy, .npz, HDF5, netCDF, FITS, safetensors "
    "and zarr. Its 6 bytes begin with b'0\\n1\\n2\\n'. Read it with the library of its format, in a function for "
    "share(call=…).": (
        lambda path: ms.load(csv(path)),
        lambda path: same(ms.share(call=lambda: np.loadtxt(path / "table.csv"))),
    ),
    f"MismatchError: ranks made different calls; expected the same call on all ranks: ...rank {LAST}: ones(...": (
        lambda path: (ms.ones if WORLD.rank == LAST else ms.zeros)(3),
        lambda path: ms.ones(3).sum() == 3,
    ),
    "CapacityError: 35,184,372,088,832 bytes do not fit in ... less...": (
        lambda path: ms.empty(1 << 45, "u1"),
        lambda path: ms.empty(1 << 20, "u1").size == 1 << 20,
    ),
    "BackendError: progress=True needs tqdm, which is not installed: pip install tqdm": (
        lambda path: mock.patch.dict(sys.modules, tqdm=None)(ms.map)(abs, [2], progress=True),
        lambda path: ms.map(abs, [2], progress=True) == ([2] if WORLD.rank == 0 else None),
    ),
    "TaskError[ZeroDivisionError]: item 0 failed on rank ...: ZeroDivisionError: ...": (
        lambda path: ms.map(lambda x: 1 / x, [0]),
        lambda path: ms.map(lambda x: 1 / x, [2]) == ([0.5] if WORLD.rank == 0 else None),
    ),
}


@pytest.mark.ranks(2)
def test_what_an_error_advises_works(raised, shared_folder):
    """Of a LaunchError tests/unit/comm/test_serial.py shows it, of a StallError tests/faults/test_calls.py."""
    for text, (wrong, advised) in ADVICE.items():
        errors = raised(lambda wrong=wrong: wrong(shared_folder))
        printed = [f"{error}: {message}" for error, message in errors if not error.startswith("Peer")]
        pattern = re.escape(text).replace(r"\.\.\.", ".*")
        assert printed
        assert all(re.fullmatch(pattern, line, re.DOTALL) for line in printed), printed
        assert advised(shared_folder), text


X = {"x": ONES}
# Calls that are given whether this rank is the last one, two arrays of four items, and a folder with a file.
DIFFERENCES: tuple[Callable[[bool, Any, Any, Path], Any], ...] = (
    lambda last, a, b, path: ms.empty((2, 3), order="F" if last else "C"),
    lambda last, a, b, path: ms.full(3, 1.0, backend="private" if last else None),
    lambda last, a, b, path: ms.share(a, root=int(last)),
    lambda last, a, b, path: ms.bcast(a[1:3] if last else a[:2]),
    lambda last, a, b, path: ms.put(a if last else b, 0, 1),
    lambda last, a, b, path: ms.put(a, int(last), 1),
    lambda last, a, b, path: ms.allreduce(a[1:] if last else a),
    lambda last, a, b, path: ms.allreduce(a, MPI.MAX if last else MPI.SUM),
    lambda last, a, b, path: ms.allgather(np.ones(2, ">f8" if last else "f8")),
    lambda last, a, b, path: ms.gather(np.ones((2, 4 if last else 3))),
    lambda last, a, b, path: ms.gather(a, root=int(last)),
    lambda last, a, b, path: ms.load(path / "a.npy", writable=last),
    lambda last, a, b, path: ms.load(path / "a.npy", ["a"] if last else None),
    lambda last, a, b, path: ms.load(path / "a.npy", region=1 if last else None),
    lambda last, a, b, path: ms.load(path / "a.npy", read="node" if last else "job"),
    lambda last, a, b, path: ms.load(path / "a.npy", map=last),
    lambda last, a, b, path: ms.load(path / "a.npy", attributes=last),
    lambda last, a, b, path: ms.load(path / "a.npy") if last else ms.load(call=TABLE.copy),
    lambda last, a, b, path: ms.save(path / ("b.npy" if last else "a.npy"), ONES),
    lambda last, a, b, path: ms.save(path / "a.npy", ONES, distributed=last),
    lambda last, a, b, path: ms.save(path / "a.h5", {"a": a, "b": b}, distributed=["a"] if last else ["b"]),
    lambda last, a, b, path: ms.save(path / "a.npy", np.ones((2, 4 if last else 3)), distributed=True),
    lambda last, a, b, path: ms.Checkpoint(path, keep=3 if last else 2),
    lambda last, a, b, path: ms.Checkpoint(path).save(1 if last else 2, X),
    lambda last, a, b, path: ms.Checkpoint(path).save(1, {"x" if last else "y": ONES}),
    lambda last, a, b, path: ms.Checkpoint(path).save(1, X, distributed=["x"] if last else []),
    lambda last, a, b, path: ms.Checkpoint(path).save(1, X, overwrite=last),
    lambda last, a, b, path: ms.Checkpoint(path).save(1, {"x": np.ones(3, "f4" if last else "f8")}, distributed=["x"]),
    lambda last, a, b, path: ms.Checkpoint(path).latest() if last else ms.Checkpoint(path).save(1, X),
)


@pytest.mark.ranks(2)
def test_calls_that_differ_between_ranks(comm, raised, shared_folder):
    """The same collective with different arguments.

    Outcome: MismatchError on all ranks, with both calls.
    """
    arrays = ms.zeros(4), ms.zeros(4)
    ms.save(shared_folder / "a.npy", TABLE)
    for call in DIFFERENCES:
        errors = raised(lambda call=call: call(comm.rank == LAST, *arrays, shared_folder))
        assert_refused_alike(errors, "MismatchError", f"rank {LAST}: ")
    assert [file.name for file in shared_folder.iterdir()] == ["a.npy"]
    assert same(np.load(shared_folder / "a.npy"))


@pytest.mark.ranks(2)
def test_a_fence_meets_other_calls_on_one_node(comm, raised):
    node_comm = ms.topology().node_comm
    is_last = node_comm.rank == node_comm.size - 1
    error = "MismatchError" if node_comm.size > 1 else "nothing"
    for call in (
        lambda: ms.fence(comm=node_comm) if is_last else ms.zeros(3, comm=node_comm),
        lambda: ms.fence(comm=node_comm, scope="all" if is_last else "node"),
    ):
        assert raised(call)[comm.rank][0] == error


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("name", "value"), [("NODES", "cyclic:7"), ("BACKEND", "private"), ("BACKEND", "\udcff")])
def test_environments_that_differ_between_ranks(comm, raised, monkeypatch, name, value):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(f"MPISHARE_{name}", value)
    duplicate = comm.Dup()
    index = duplicate.py2f()
    for _ in range(5):
        assert_refused_alike(raised(lambda: ms.topology(duplicate)), "MismatchError", "MPISHARE_")
    duplicate.Free()
    again = comm.Dup()
    assert again.py2f() == index  # a topology that failed keeps no communicator
    again.Free()


@pytest.mark.ranks(2)
def test_communicators_that_ranks_cannot_share_over(comm):
    side = comm.Split(comm.rank == 0, comm.rank)
    inter = side.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0)
    for wrong in (inter, MPI.COMM_NULL, "world", 3):
        with pytest.raises(ms.ArgumentError, match="intracommunicator"):
            ANY.share(np.arange(3), comm=wrong)
    inter.Free()
    side.Free()
