"""Files that are saved while ranks are killed and system calls fail: as before, or whole."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpishare as ms
from tests.blackbox.launch import run_ranks

SAVING = ["-m", "tests.faults.programs.saving"]
INJECTED = ["-m", "tests.faults.programs.injected"]


def assert_uniform(array: np.ndarray, rows: int) -> None:
    """The array is one that was saved."""
    assert array.shape == (rows, 4)
    assert (array == array[0, 0]).all()


@pytest.mark.parametrize(("victim", "nodes"), [(0, ""), (1, "block:2"), (3, "block:2")])
def test_kill(victim: int, nodes: str, tmp_path: Path) -> None:
    """SIGKILL of a rank while it saves.

    Outcome: mpiexec ends the job at once; each file is as before or whole, and the next save removes what is left.
    """
    ended = run_ranks(4, [*SAVING, str(tmp_path), str(victim)], {"MPISHARE_NODES": nodes}, status="failure")
    assert ended.stdout == "saved\n"
    assert "Traceback" not in ended.stderr, ended.stderr
    rows = np.load(tmp_path / "rows.npy")
    assert_uniform(rows, 1 << 19)
    assert rows[0, 0] >= 1
    with h5py.File(tmp_path / "both.h5") as file:
        assert_uniform(file["rows"][:], 1 << 19)
        assert_uniform(file["root"][:], 1 << 17)
    snapshot = ms.Checkpoint(tmp_path / "run").latest()
    assert snapshot is not None
    assert (snapshot.load("rows") == snapshot.step).all()
    assert len(list(tmp_path.rglob("*.tmp.*"))) <= 1
    ms.save(tmp_path / "rows.npy", np.ones(3))
    ms.save(tmp_path / "both.h5", np.ones(3), "rows")
    ms.Checkpoint(tmp_path / "run").save(0, {})
    assert not list(tmp_path.rglob("*.tmp.*"))


# The system calls by which files are made, filled and named, and the error of each.
CALLS = {"pwrite64": "ENOSPC", "ftruncate": "ENOSPC", "copy_file_range": "ENOSPC", "fsync": "EIO", "rename": "EIO"}


@pytest.mark.parametrize(("call", "fault"), CALLS.items())
def test_error(call: str, fault: str, tmp_path: Path) -> None:
    """ENOSPC or EIO at the n-th system call of a save.

    Outcome: FileError or PeerError on all ranks; what was there is there still, nothing is left, and the next call
    works.
    """
    ended = run_ranks(2, [*INJECTED, "0", call, fault, "1", str(tmp_path)])
    assert all(json.loads(ended.stdout.splitlines()[-1]).values()), "the call was never made"
