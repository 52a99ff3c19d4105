"""share of objects: their arrays are views of one copy per node, and what they are besides is as it was."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.linear_model import LinearRegression

import mpishare as ms
from mpishare.memory.segment import Segment, segment_of
from mpishare.transfer.plan import MIN_CMA_BYTES
from tests.arrays import DTYPES, bits, layouts

pytestmark = pytest.mark.mpi

LARGE = MIN_CMA_BYTES // 8
"""A float64 array of so many items is not among the small ones."""


@dataclass
class Model:
    """What a user might share."""

    name: str
    weights: NDArray[Any]
    table: dict[str, NDArray[Any]]

    def score(self, item: int) -> float:
        return float(self.weights[item]) + len(self.name)


def model(n: int = 1000) -> Model:
    weights = np.arange(float(n))
    return Model("line", weights, {"same": weights, "ids": np.arange(n)[::2], "empty": np.empty((0, 3))})


def shared(comm: MPI.Intracomm, make: Callable[[], Any], root: int | None = None) -> Any:
    """What `make` makes on `root`, the last rank for None, shared."""
    root = comm.size - 1 if root is None else root
    return ms.share(make() if comm.rank == root else None, root=root)


def node_segment(array: NDArray[Any]) -> Segment:
    segment = segment_of(array)
    assert segment is not None
    return segment


@pytest.mark.parametrize("n", [3, 1000, LARGE, 3 * LARGE + 1])
def test_a_dataclass_of_arrays(comm: MPI.Intracomm, n: int) -> None:
    for root in range(min(comm.size, 2)):
        found, expected = shared(comm, lambda: model(n), root), model(n)
        assert type(found) is Model
        assert found.name == "line"
        assert found.weights.tobytes() == expected.weights.tobytes()
        assert found.table["same"] is found.weights
        assert found.table["ids"].tolist() == expected.table["ids"].tolist()
        assert found.table["empty"].shape == (0, 3)
        assert not found.weights.flags.writeable
        assert node_segment(found.weights) is node_segment(found.table["ids"])
        assert node_segment(found.weights).address % 64 == 0
        assert found.weights.ctypes.data % 64 == 0


def test_every_dtype_and_layout_keeps_its_bits(comm: MPI.Intracomm) -> None:
    sources = {(name, kind): array for name in DTYPES for kind, array in layouts(DTYPES[name]).items()}
    found = shared(comm, lambda: sources)
    told = comm.bcast({which: bits(source) for which, source in sources.items()}, comm.size - 1)
    assert {which: bits(array) for which, array in found.items()} == told  # padding is that of the root
    for which, source in sources.items():
        assert (found[which].shape, found[which].dtype) == (source.shape, source.dtype)


def test_large_and_small_arrays_in_one_object(comm: MPI.Intracomm) -> None:
    lengths = [5, 2 * LARGE, 0, LARGE + 7, LARGE - 1, 3 * LARGE]
    found = shared(comm, lambda: [np.full(n, n, "f8") for n in lengths] + [np.ones((LARGE, 2)).T, np.ones(9)])
    assert [len(array) for array in found[:-2]] == lengths
    assert all((array == len(array)).all() for array in found[:-2])
    assert found[-2].shape == (2, LARGE)
    assert found[-2].flags.f_contiguous
    assert found[-2].all()


def test_one_copy_per_node(comm: MPI.Intracomm) -> None:
    """All ranks of a node find the bytes in the same segment, and nobody else's."""
    here = ms.topology()
    found = shared(comm, lambda: model(LARGE))
    keys = here.node_comm.allgather(node_segment(found.weights).key)
    assert len(set(keys)) == 1
    report = ms.report().segments[0]
    assert report.bytes_held == report.nbytes * report.copies
    assert report.nbytes < 1.1 * (found.weights.nbytes + found.table["ids"].nbytes)


def test_memory_goes_with_the_last_array(comm: MPI.Intracomm) -> None:
    found = shared(comm, lambda: model(LARGE))
    kept = found.table["ids"]
    del found
    assert len(ms.report().segments) == 1
    assert kept[-1] == 2 * (len(kept) - 1)
    del kept
    assert not ms.report().segments


def frame() -> pd.DataFrame:
    n = 2000
    return pd.DataFrame(
        {
            "float": np.linspace(0, 1, n),
            "int": np.arange(n),
            "when": pd.date_range("2013-01-01", periods=n, freq="h"),
            "kind": pd.Categorical(["a", "b"] * (n // 2)),
            "text": pd.array(["EWR", "LGA"] * (n // 2), dtype="string[pyarrow]"),
            "missing": pd.array([1, None] * (n // 2), dtype="Int64"),
            "arrow": pd.array(np.arange(n), dtype=pd.ArrowDtype(pa.int32())),
        }
    )


def test_a_frame_is_as_it_was_and_its_columns_are_views(comm: MPI.Intracomm) -> None:
    found = shared(comm, frame)
    pd.testing.assert_frame_equal(found, frame())
    for name in ("float", "int", "when"):
        node_segment(found[name].to_numpy())
    in_arrow = pa.array(found["arrow"].array).buffers()[1].address
    segment = node_segment(found["float"].to_numpy())
    assert 0 <= in_arrow - segment.address < segment.nbytes
    with pytest.raises(ValueError, match="read-only"):
        found["float"].to_numpy()[0] = 1.0


def test_a_table_of_arrow(comm: MPI.Intracomm) -> None:
    found = shared(comm, lambda: pa.table({"a": np.arange(5000), "b": ["x", None] * 2500}))
    assert found.equals(pa.table({"a": np.arange(5000), "b": ["x", None] * 2500}))
    report = ms.report().segments[0]
    assert report.nbytes > 5000 * 8
    assert report.bytes_copied < 5000


def test_kinds_of_arrays(comm: MPI.Intracomm) -> None:
    def make() -> list[Any]:
        return [
            np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")]),
            np.ma.array(np.arange(4), mask=[False, True, False, False], fill_value=9),
            np.ones((2, 2)).view(np.matrix),
            scipy.sparse.csr_matrix(np.eye(50)),
            LinearRegression().fit(np.arange(20.0).reshape(10, 2), np.arange(10.0)),
            np.float64(3),
        ]

    records, masked, matrix, sparse, fitted, number = shared(comm, make)
    assert (type(records), records.b.tolist()) == (np.recarray, [2.0, 4.0])
    assert (masked.tolist(), masked.fill_value) == ([0, None, 2, 3], 9)
    assert type(matrix) is np.matrix
    assert sparse.shape == (50, 50)
    assert (sparse @ np.ones(50)).sum() == 50
    assert fitted.predict(np.ones((1, 2))).shape == (1,)
    assert number == 3
    for array in (records, masked.data, matrix, sparse.data, fitted.coef_):
        node_segment(array)


def test_bound_methods_and_partials(comm: MPI.Intracomm) -> None:
    score = shared(comm, lambda: functools.partial(model().score, item=7))
    assert score() == 11.0
    node_segment(score.func.__self__.weights)


def test_lambdas_and_local_classes(comm: MPI.Intracomm) -> None:
    class Local:
        weights = np.arange(3)

    def make() -> Any:
        table = np.arange(10.0)
        return (lambda item: table[item] + 1), Local

    add, local = shared(comm, make)
    assert add(4) == 5.0
    assert local.weights.tolist() == [0, 1, 2]


def test_things_without_arrays(comm: MPI.Intracomm) -> None:
    assert shared(comm, lambda: {"a": [1, "two", None, b"3"]}) == {"a": [1, "two", None, b"3"]}
    assert shared(comm, lambda: "text" * 1_000_000) == "text" * 1_000_000
    assert shared(comm, lambda: 0) == 0
    assert shared(comm, list) == []
    assert not ms.report().segments


def test_columns_of_python_objects_are_copied_with_a_warning(comm: MPI.Intracomm) -> None:
    names = [f"flight {number}" for number in range(100)]

    def make() -> pd.DataFrame:
        return pd.DataFrame({"tail": pd.Series(names, dtype=object), "delay": np.arange(100.0)})

    if comm.rank == 0:
        with pytest.warns(RuntimeWarning, match=r"column 'tail' of a DataFrame holds Python objects, .* Use") as told:
            found = ms.share(make())
        assert len(told) == 1
        assert told[0].filename == __file__
    else:
        found = ms.share(None)
    assert found is not None
    pd.testing.assert_frame_equal(found, make())
    assert ms.report().bytes_copied > 100 * 50
    node_segment(found["delay"].to_numpy())


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["a", None] * 1000), "an array of shape (2000,) and dtype object holds"),
        (np.zeros(3, [("id", "i4"), ("name", "O")]), "column 'name' of an array of shape (3,), all of which"),
    ],
)
def test_arrays_of_python_objects_within_an_object(comm: MPI.Intracomm, array: NDArray[Any], words: str) -> None:
    if comm.rank == 0:
        with pytest.warns(RuntimeWarning) as told:
            found = ms.share({"names": array})
        assert words in str(told[0].message)
    else:
        found = ms.share({})
    assert found["names"].tolist() == array.tolist()


Raised = Callable[[Callable[[], object]], list[tuple[str, str]]]


def test_what_cannot_be_pickled_fails_on_all_ranks(comm: MPI.Intracomm, raised: Raised) -> None:
    told = raised(lambda: ms.share({"lock": threading.Lock()} if comm.rank == 0 else None))
    assert told[0][0] == "SpecError"
    assert "dict cannot be pickled: cannot pickle '_thread.lock' object" in told[0][1]
    assert all(kind == "PeerError" and told[0][1] in words for kind, words in told[1:])
    assert shared(comm, lambda: [1, 2]) == [1, 2]


class Picky:
    """Cannot be made again on the last rank."""

    def __init__(self, n: int) -> None:
        self.weights = np.arange(n)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            raise ms.ArgumentError("not here")
        self.__dict__.update(state)


@pytest.mark.parametrize("n", [3, LARGE])
def test_what_cannot_be_unpickled_on_one_rank_fails_on_all(comm: MPI.Intracomm, raised: Raised, n: int) -> None:
    told = raised(lambda: shared(comm, lambda: Picky(n), 0))
    assert told[-1] == ("ArgumentError", "not here")
    assert all(kind == "PeerError" and "ArgumentError: not here" in words for kind, words in told[:-1])
    assert not ms.report().segments
    assert shared(comm, lambda: [1, 2]) == [1, 2]


def test_no_byte_of_an_array_is_pickled(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    loads = pickle.loads

    def counting(skeleton: memoryview, **words: Any) -> Any:
        if "buffers" in words:  # ours, and not one of a collective of mpi4py
            lengths.append(len(skeleton))
        return loads(skeleton, **words)

    monkeypatch.setattr("pickle.loads", counting)
    for n in (10, LARGE):
        shared(comm, lambda n=n: (model(n), np.ma.array(np.zeros(n), mask=True)))  # type: ignore[misc]
    assert len(lengths) == 2
    assert lengths[0] == lengths[1]


def test_ten_thousand_arrays(comm: MPI.Intracomm) -> None:
    found = shared(comm, lambda: {number: np.full(number % 7, number) for number in range(10_000)})
    assert all((array == number).all() and len(array) == number % 7 for number, array in found.items())


class Nested:
    """Makes an array of the node when it is made again."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.scratch = ms.zeros(4)


def test_an_object_that_makes_an_array_when_it_is_made_again(comm: MPI.Intracomm) -> None:
    def make() -> Nested:
        found = Nested()
        found.__dict__["weights"] = np.arange(3)
        return found

    for _ in range(2):
        assert shared(comm, make).scratch.tolist() == [0, 0, 0, 0]
    assert shared(comm, lambda: [1]) == [1]
