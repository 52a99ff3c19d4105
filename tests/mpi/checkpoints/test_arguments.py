"""The arguments of Checkpoint and Snapshot that are refused, on all ranks alike."""

import os
import sys
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from tests.mpi.test_errors import assert_refused

pytestmark = pytest.mark.once

X = {"x": np.ones(3)}


def test_what_cannot_be_saved_or_loaded(shared_folder, raised):
    checkpoint: Any = ms.Checkpoint(shared_folder)
    checkpoint.save(2**63 - 1, {"x": np.ones((4, 2)), "scalar": np.array(2.5)})
    snapshot, two = checkpoint.latest(), slice(0, 2)
    refused = {
        "ArgumentError: keep is 0": lambda: ms.Checkpoint(shared_folder, keep=0),
        "ArgumentError: step is -1": lambda: checkpoint.save(-1, X),
        "ArgumentError: 'a/b' is not a name": lambda: checkpoint.save(1, {"a/b": X["x"]}),
        "ArgumentError: arrays is of type list": lambda: checkpoint.save(1, [X]),
        "ArgumentError: distributed is 'x'": lambda: checkpoint.save(1, X, distributed="x"),
        "SpecError: dataset 'x' of": lambda: checkpoint.save(1, {"x": np.array([None])}),
        "SpecError: values['a'][0] is of <class 'object'>": lambda: checkpoint.save(1, X, values={"a": [object()]}),
        "has no array 'y'; it has x, scalar": lambda: snapshot.load("y"),
        "ArgumentError: region is 3": lambda: snapshot.load("x", region=3),
        "ArgumentError: region is slice(0, 4, 2)": lambda: snapshot.load("x", region=slice(0, 4, 2)),
        "has 1 indices; expected at most 0, one for each axis": lambda: snapshot.load("scalar", region=two),
        "ArgumentError: out has (2, 3)": lambda: snapshot.load("x", region=two, out=np.empty((2, 3))),
        "ArgumentError: out must be": lambda: snapshot.load("x", region=two, out=np.empty((2, 2), order="F")),
        "ArgumentError: out is for rows": lambda: snapshot.load("x", out=np.empty((4, 2))),
    }
    for message, call in refused.items():
        outcomes = raised(call)
        assert outcomes[0][0] in ("ArgumentError", "SpecError")
        assert all(message in f"{error}: {text}" for error, text in outcomes), (message, outcomes)
    snapshot = checkpoint.latest()
    assert (snapshot.step, snapshot.names, snapshot.load("scalar")[()]) == (2**63 - 1, ("x", "scalar"), 2.5)


def test_what_saves_need_is_checked_at_once(comm, shared_folder, raised, monkeypatch):
    """And nothing is made. Where h5py is missing on the last rank alone, that rank says so."""
    if comm.rank == 0:
        (shared_folder / "file").touch()
        (shared_folder / "link").symlink_to("nowhere")
    comm.Barrier()
    for path, message in {"file": "is not a folder", "link": "No such file", "no/run": "No such file"}.items():
        outcomes = raised(lambda path=path: ms.Checkpoint(shared_folder / path))
        assert_refused(outcomes, 0, "FileError", message)
        assert "no checkpoint can be saved there" in outcomes[0][1]
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        outcomes = raised(lambda: ms.Checkpoint(shared_folder / "new"))
        assert_refused(outcomes, 0, "FileError", f"{shared_folder} cannot be written")
    for victim in (0, comm.size - 1):
        with monkeypatch.context() as patched:
            if comm.rank == victim:
                patched.setitem(sys.modules, "h5py", None)
            outcomes = raised(lambda: ms.Checkpoint(shared_folder / "new"))
        assert_refused(outcomes, victim, "BackendError", "h5py, which is not installed")
    assert {file.name for file in shared_folder.iterdir()} == {"file", "link"}
