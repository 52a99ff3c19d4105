"""Objects that are shared: as they were, around views of one copy of their arrays a node."""

import functools
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import mpishare as ms
from mpishare.memory.segment import segment_of
from mpishare.objects.packing import OWN_PLACE_BYTES
from tests.arrays import DTYPES, REPRESENTATIVES, assert_same, filled
from tests.mpi.test_errors import assert_refused

LARGE = OWN_PLACE_BYTES // 8
"""Float64 items of the smallest array that is not in the prefix."""


@dataclass
class Model:
    """What a user might share."""

    name: str
    weights: np.ndarray
    table: dict[str, np.ndarray]

    def score(self, item):
        return float(self.weights[item]) + len(self.name)


def model(n=1000):
    weights = np.arange(float(n))
    table = {"same": weights, "ids": np.arange(n)[::2], "empty": np.empty((0, 3)), "columns": np.ones((n, 2)).T}
    return Model("line", weights, {**table, **REPRESENTATIVES})


def shared(comm, make, root=-1):
    """What `make` makes on `root`, shared."""
    root %= comm.size
    return ms.share(make() if comm.rank == root else None, root=root)


@pytest.mark.filterwarnings("ignore:share.* what dict pickles")
def test_no_rank_reads_the_places_of_arrays_before_they_are_written(comm):
    """In memory that is used again, it would find the places of another object's arrays."""
    for number in range(12):
        arrays = [np.full(number % 7, number), np.full(LARGE + number, number), np.full(3 + number % 2, number)]
        result: Any = ms.share({"text": bytes(2 << 20), "arrays": arrays} if comm.rank == 0 else None)
        for found, expected in zip(result["arrays"], arrays, strict=True):
            assert_same(found, expected)


@pytest.mark.parametrize("n", [3, 1000, LARGE - 1, LARGE, 3 * LARGE + 1])
@pytest.mark.parametrize("root", [0, -1])
def test_a_dataclass_of_arrays(comm, root, n):
    """One copy a node, until the last of its arrays goes."""
    result, expected = shared(comm, lambda: model(n), root), model(n)
    assert (type(result), result.name, list(result.table)) == (Model, "line", list(expected.table))
    assert result.table["same"] is result.weights
    segment = segment_of(result.weights)
    for name, array in result.table.items():
        assert_same(array, expected.table[name])
        assert not array.flags.writeable
        assert segment_of(array) is segment
        assert array.ctypes.data % 64 == 0 or not array.nbytes
    assert result.table["columns"].flags.f_contiguous
    assert len(set(ms.topology().node_comm.allgather(segment.key))) == 1
    (entry,) = ms.report().segments
    assert entry.bytes_held == entry.nbytes * entry.copies
    assert n < LARGE or entry.nbytes < 1.1 * sum(array.nbytes for array in result.table.values())
    kept = result.table["ids"]
    del result, array, segment
    assert len(ms.report().segments) == 1
    assert kept.tolist() == expected.table["ids"].tolist()
    del kept
    assert not ms.report().segments


def frame(n=2000):
    frame = pd.DataFrame({"float": np.linspace(0, 1, n), "when": pd.date_range("2013-01-01", periods=n, freq="h")})
    frame["kind"] = pd.Categorical(["a", "b"] * (n // 2))
    frame["text"] = pd.array(["EWR", "LGA"] * (n // 2), dtype="string[pyarrow]")
    frame["missing"] = pd.array([1, None] * (n // 2), dtype="Int64")
    frame["arrow"] = pd.array(np.arange(n), dtype=pd.ArrowDtype(pa.int32()))
    return frame


def test_a_frame_is_as_it_was_and_its_columns_are_views(comm):
    result = shared(comm, frame)
    pd.testing.assert_frame_equal(result, frame())
    segment = segment_of(result["float"].to_numpy())
    assert segment_of(result["when"].to_numpy()) is segment
    address = pa.array(result["arrow"].array).buffers()[1].address
    assert 0 <= address - segment.address < segment.nbytes
    with pytest.raises(ValueError, match="read-only"):
        result["float"].to_numpy()[0] = 1.0
    table = pa.table({"a": np.arange(5000), "b": ["x", None] * 2500})
    result = shared(comm, lambda: table)
    assert result.equals(table)
    assert ms.report().bytes_copied < 5000


def test_kinds_of_objects(comm):
    import scipy.sparse

    table = np.arange(10.0)
    objects = [scipy.sparse.eye(50, format="csr"), functools.partial(model().score, item=7), lambda: table[4] + 1]
    sparse, score, add = shared(comm, lambda: objects)
    assert (sparse @ np.ones(50)).sum() == 50
    assert (score(), add()) == (11.0, 5.0)
    assert all(map(segment_of, (sparse.data, score.func.__self__.weights)))
    assert shared(comm, lambda: "text" * 100_000) == "text" * 100_000
    assert shared(comm, list) == []


class Copying:
    """Copies its table when it is unpickled, as a random forest does, or leaves it out."""

    def __init__(self, keep, n=1 << 18):
        self.keep, self.weights, self.table = keep, np.ones(n), np.arange(float(n))

    def __setstate__(self, state):
        self.__dict__.update(state)
        vars(self)["table"] = np.array(self.table) if self.keep else None


@pytest.mark.parametrize(
    ("make", "text", "copied", "saved"),
    [
        (functools.partial(Copying, keep=True), "arrays that .*Copying copies when it is unpickled", 1 << 21, 1 << 21),
        (functools.partial(Copying, keep=False), None, 0, 1 << 21),
        (lambda: {"names": [*map(str, range(200_000))], "v": np.ones(1000)}, "what dict pickles", 1 << 20, 8000),
        (lambda: [np.ones(1000), [n / 3 for n in range(200_000)]], "what list pickles besides arrays", 1 << 20, 8000),
    ],
)
def test_whole_copies_are_told_and_not_counted_as_saved(comm, make, text, copied, saved):
    warns = pytest.warns(RuntimeWarning, match=f"{text}.* bytes on each rank. Use")
    with warns if text and not comm.rank else nullcontext():
        result = shared(comm, make, 0)
    (entry,) = ms.report().segments
    assert copied <= entry.bytes_copied < 2 * copied + 50_000
    assert entry.bytes_saved == entry.bytes_in_views * (entry.node_size - entry.copies)
    assert saved <= entry.bytes_in_views < max(1.1 * saved, saved + 9 * (1 << 20) * (text is None))
    del result


@pytest.mark.filterwarnings("ignore:private.* were copied")
def test_a_private_object(comm):
    """Its arrays are copies of this rank's, or show the changes of this rank alone."""
    result, local = shared(comm, model), np.arange(3)
    own = ms.private([result, local])
    assert (own[0].score(7), own[0].table["same"] is own[0].weights) == (11.0, True)
    own[0].weights[0] = own[1][0] = comm.rank + 5
    comm.Barrier()
    assert (own[0].weights[0], result.weights[0], local[0]) == (comm.rank + 5, 0, 0)
    assert_same(own[0].table["columns"], result.table["columns"])
    with pytest.raises(ms.SpecError, match=r"private to this rank already|cannot be traced"):
        ms.private(own)
    for other in ("text", [local]):
        with pytest.raises(ms.SpecError, match="cannot be traced to node-shared memory"):
            ms.private(other)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("n", [3, LARGE])
def test_a_dtype_whose_module_one_rank_lacks(comm, raised, monkeypatch, n):
    """Its name travels. A rank that cannot import the module raises, the others hear of it, and messages go on."""
    array = filled(DTYPES["foreign"], (n,))
    if comm.rank == comm.size - 1:
        monkeypatch.setitem(sys.modules, array.dtype.type.__module__, None)
    for call in (lambda: ms.share(array), lambda: ms.scatter(array), lambda: ms.share({"a": array})):
        assert_refused(raised(call), comm.size - 1, "SpecError", "cannot be imported on this rank")
    if comm.rank == 0:
        ms.send(array, comm.size - 1)
        ms.send(("next", [array]), comm.size - 1)
        ms.send(np.ones(n), comm.size - 1)
    elif comm.rank == comm.size - 1:
        for _ in range(2):
            with pytest.raises(ms.SpecError, match="Install it for all ranks"):
                ms.recv(0)
        assert ms.recv(0).sum() == n


@pytest.mark.parametrize("n", [10, 3_000_000])
def test_views_of_one_array_stay_views_of_it(comm, n):
    """In whatever order they come; the bytes are stored once."""
    table, cube = np.arange(float(n)), np.arange(12.0).reshape(3, 4)
    parts = {
        "train": table[: n // 2],
        "all": table,
        "test": table[n // 2 :],
        "bits": table.view("i8"),
        "rows": cube[1:],
    }
    shared = ms.share(parts | {"cube": cube, "columns": cube[:, 1:]} if comm.rank == 0 else None)
    for name, part in parts.items():
        assert (shared[name] == part).all()
        assert np.shares_memory(shared[name], shared["cube" if name == "rows" else "all"])
    assert (shared["columns"] == cube[:, 1:]).all()
    largest = ms.report().segments[0]
    assert table.nbytes + cube.nbytes <= largest.nbytes < table.nbytes + 8192
