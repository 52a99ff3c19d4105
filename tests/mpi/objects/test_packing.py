"""Objects that are shared: as they were, around views of one copy of their arrays a node."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import nullcontext
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
from tests.arrays import REPRESENTATIVES, bits
from tests.mpi.conftest import Raised
from tests.mpi.test_errors import assert_refused

LARGE = MIN_CMA_BYTES // 8
"""Float64 items of the smallest array that is not in the prefix."""


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
    table = {"same": weights, "ids": np.arange(n)[::2], "empty": np.empty((0, 3)), "columns": np.ones((n, 2)).T}
    return Model("line", weights, table)


def shared(comm: MPI.Intracomm, make: Callable[[], Any], root: int | None = None) -> Any:
    """What `make` makes on `root`, the last rank for None, shared."""
    root = comm.size - 1 if root is None else root
    return ms.share(make() if comm.rank == root else None, root=root)


def node_segment(array: NDArray[Any]) -> Segment:
    segment = segment_of(array)
    assert segment is not None
    return segment


@pytest.mark.parametrize("n", [3, 1000, LARGE - 1, LARGE, 3 * LARGE + 1])
def test_a_dataclass_of_arrays(comm: MPI.Intracomm, n: int) -> None:
    for root in range(min(comm.size, 2)):
        result, expected = shared(comm, lambda: model(n), root), model(n)
        assert (type(result), result.name) == (Model, "line")
        assert result.weights.tobytes() == expected.weights.tobytes()
        assert result.table["same"] is result.weights
        assert result.table["ids"].tolist() == expected.table["ids"].tolist()
        assert result.table["empty"].shape == (0, 3)
        assert result.table["columns"].flags.f_contiguous
        assert result.table["columns"].sum() == 2 * n
        assert not result.weights.flags.writeable
        assert node_segment(result.weights) is node_segment(result.table["ids"])
        assert result.weights.ctypes.data % 64 == 0


def test_arrays_keep_their_bits(comm: MPI.Intracomm) -> None:
    result = shared(comm, lambda: REPRESENTATIVES)
    for name, array in REPRESENTATIVES.items():
        assert (result[name].dtype, result[name].shape, bits(result[name])) == (array.dtype, array.shape, bits(array))


def test_one_copy_per_node_until_the_last_array_goes(comm: MPI.Intracomm) -> None:
    result = shared(comm, lambda: model(LARGE))
    assert len(set(ms.topology().node_comm.allgather(node_segment(result.weights).key))) == 1
    (entry,) = ms.report().segments
    assert entry.bytes_held == entry.nbytes * entry.copies
    assert entry.nbytes < 1.1 * sum(array.nbytes for array in result.table.values())
    kept = result.table["ids"]
    del result
    assert len(ms.report().segments) == 1
    assert kept[-1] == 2 * (len(kept) - 1)
    del kept
    assert not ms.report().segments


def frame() -> pd.DataFrame:
    n = 2000
    return pd.DataFrame(
        {
            "float": np.linspace(0, 1, n),
            "when": pd.date_range("2013-01-01", periods=n, freq="h"),
            "kind": pd.Categorical(["a", "b"] * (n // 2)),
            "text": pd.array(["EWR", "LGA"] * (n // 2), dtype="string[pyarrow]"),
            "missing": pd.array([1, None] * (n // 2), dtype="Int64"),
            "arrow": pd.array(np.arange(n), dtype=pd.ArrowDtype(pa.int32())),
        }
    )


def test_a_frame_is_as_it_was_and_its_columns_are_views(comm: MPI.Intracomm) -> None:
    result = shared(comm, frame)
    pd.testing.assert_frame_equal(result, frame())
    segment = node_segment(result["float"].to_numpy())
    assert node_segment(result["when"].to_numpy()) is segment
    address = pa.array(result["arrow"].array).buffers()[1].address
    assert 0 <= address - segment.memory.address < segment.nbytes
    with pytest.raises(ValueError, match="read-only"):
        result["float"].to_numpy()[0] = 1.0
    table = pa.table({"a": np.arange(5000), "b": ["x", None] * 2500})
    result = shared(comm, lambda: table)
    assert result.equals(table)
    assert ms.report().bytes_copied < 5000


def test_kinds_of_objects(comm: MPI.Intracomm) -> None:
    table = np.arange(10.0)

    def make() -> list[Any]:
        return [
            scipy.sparse.csr_matrix(np.eye(50)),
            LinearRegression().fit(np.arange(20.0).reshape(10, 2), np.arange(10.0)),
            functools.partial(model().score, item=7),
            lambda item: table[item] + 1,
        ]

    sparse, fitted, score, add = shared(comm, make)
    assert (sparse @ np.ones(50)).sum() == 50
    assert fitted.predict(np.ones((1, 2))).shape == (1,)
    assert (score(), add(4)) == (11.0, 5.0)
    for array in (sparse.data, fitted.coef_, score.func.__self__.weights):
        node_segment(array)
    assert shared(comm, lambda: "text" * 1_000_000) == "text" * 1_000_000
    assert shared(comm, list) == []


def test_columns_of_python_objects_are_copied_with_a_warning(comm: MPI.Intracomm) -> None:
    names = pd.Series([f"flight {number}" for number in range(100)], dtype=object)
    frame = pd.DataFrame({"tail": names, "delay": np.arange(100.0)})
    expected = r"column 'tail' of a DataFrame holds Python objects, .* Use"
    with pytest.warns(RuntimeWarning, match=expected) if comm.rank == 0 else nullcontext() as caught:
        result = ms.share(frame)
    assert caught is None or [warning.filename for warning in caught] == [__file__]
    pd.testing.assert_frame_equal(result, frame)
    assert ms.report().bytes_copied > 100 * 50
    node_segment(result["delay"].to_numpy())


class Picky:
    """Cannot be unpickled on the last rank."""

    def __init__(self, n: int) -> None:
        self.weights = np.arange(n)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            raise ms.ArgumentError("refused")
        self.__dict__.update(state)


@pytest.mark.parametrize("n", [3, LARGE])
def test_what_one_rank_cannot_pickle_or_unpickle_fails_on_all(comm: MPI.Intracomm, raised: Raised, n: int) -> None:
    assert_refused(raised(lambda: shared(comm, lambda: Picky(n), 0)), comm.size - 1, "ArgumentError", "refused")
    assert not ms.report().segments
    errors = raised(lambda: shared(comm, lambda: {"lock": threading.Lock()}, 0))
    assert_refused(errors, 0, "SpecError", "dict cannot be pickled: cannot pickle '_thread.lock' object")
    assert shared(comm, lambda: [1, 2]) == [1, 2]


class Nested:
    """Makes an array of the node when it is unpickled."""

    weights = np.arange(3)

    def __reduce__(self) -> Any:
        return Nested, (), {"weights": self.weights}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.scratch = ms.zeros(4)


def test_an_object_that_makes_an_array_when_it_is_unpickled(comm: MPI.Intracomm) -> None:
    for _ in range(2):
        assert shared(comm, Nested).scratch.tolist() == [0, 0, 0, 0]
    assert shared(comm, lambda: [1]) == [1]
