"""The arguments of Checkpoint and Snapshot that are refused, on all ranks alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.mpi.conftest import Raised

pytestmark = pytest.mark.two_launches

ONES = np.ones(3)


def test_what_cannot_be_saved(shared_folder: Path, raised: Raised) -> None:
    checkpoint: Any = ms.Checkpoint(shared_folder)
    refused: list[tuple[Callable[[], object], str, str]] = [
        (lambda: ms.Checkpoint(shared_folder, keep=0), "ArgumentError", "keep is 0; expected an integer >= 1"),
        (lambda: checkpoint.save(-1, {"x": ONES}), "ArgumentError", "step is -1"),
        (lambda: checkpoint.save(1.5, {"x": ONES}), "ArgumentError", "step is 1.5"),
        (lambda: checkpoint.save(2**63, {"x": ONES}), "ArgumentError", "expected an integer >= 0 and < 2**63"),
        (lambda: checkpoint.save(1, {"a/b": ONES}), "ArgumentError", "'a/b' is not a name"),
        (lambda: checkpoint.save(1, {"": ONES}), "ArgumentError", "'' is not a name"),
        (lambda: checkpoint.save(1, [ONES]), "ArgumentError", "arrays is of type list"),
        (lambda: checkpoint.save(1, {"x": ONES}, distributed=["y"]), "ArgumentError", "distributed is ['y']"),
        (lambda: checkpoint.save(1, {"x": ONES}, distributed="x"), "ArgumentError", "distributed is 'x'"),
        (lambda: checkpoint.save(1, {"x": np.array([None])}), "SpecError", "dataset 'x' of"),
        (lambda: checkpoint.save(1, {"x": ONES}, values={"a": ONES}), "SpecError", "values cannot be saved"),
        (lambda: checkpoint.save(1, {}, values={"a": [{1: 2}]}), "SpecError", "the name 1 is not a string"),
    ]
    for call, error, message in refused:
        outcomes = raised(call)
        assert outcomes[0][0] == error, outcomes
        assert all(kind in (error, "PeerError") and message in text for kind, text in outcomes), outcomes
    assert checkpoint.latest() is None
    checkpoint.save(2**63 - 1, {})
    snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.names) == (2**63 - 1, ())


def test_what_cannot_be_loaded(shared_folder: Path, raised: Raised) -> None:
    checkpoint = ms.Checkpoint(shared_folder)
    checkpoint.save(1, {"x": np.ones((4, 2)), "scalar": np.array(2.5)})
    snapshot: Any = checkpoint.latest()
    assert snapshot.load("scalar")[()] == 2.5
    for call in (
        lambda: snapshot.load("y"),
        lambda: snapshot.load("x", region=3),
        lambda: snapshot.load("x", region=slice(0, 4, 2)),
        lambda: snapshot.load("scalar", region=slice(0, 1)),
        lambda: snapshot.load("x", region=slice(0, 2), out=np.empty((2, 3))),
        lambda: snapshot.load("x", region=slice(0, 2), out=np.empty((2, 2), "f4")),
        lambda: snapshot.load("x", region=slice(0, 2), out=np.empty((2, 2), order="F")),
        lambda: snapshot.load("x", out=np.empty((4, 2))),
    ):
        assert {error for error, _ in raised(call)} == {"ArgumentError"}


@pytest.mark.ranks(2)
def test_calls_that_differ(comm: MPI.Intracomm, shared_folder: Path, raised: Raised) -> None:
    checkpoint, last = ms.Checkpoint(shared_folder), comm.rank == comm.size - 1
    for call in (
        lambda: ms.Checkpoint(shared_folder, keep=3 if last else 2),
        lambda: checkpoint.save(1 if last else 2, {"x": ONES}),
        lambda: checkpoint.save(1, {"x" if last else "y": ONES}),
        lambda: checkpoint.save(1, {"x": ONES}, distributed=["x"] if last else []),
        lambda: checkpoint.save(1, {"x": np.ones(3, "f4" if last else "f8")}, distributed=["x"]),
        lambda: checkpoint.latest() if last else checkpoint.save(1, {"x": ONES}),
    ):
        assert {error for error, _ in raised(call)} == {"MismatchError"}
