"""Files that are saved while ranks are killed and system calls fail: as before, or whole."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpishare as ms
from tests.blackbox.launch import run_ranks

INJECTED = ["-m", "tests.faults.programs.injected"]


KILLS = [(0, "rename", 1), (0, "rename", 2), (0, "rename", 3), (0, "pwrite64", 3), (1, "pwrite64", 1)]


@pytest.mark.parametrize(("victim", "call", "number"), KILLS)
def test_kill(victim: int, call: str, number: int, tmp_path: Path) -> None:
    """SIGKILL of a rank while it saves.

    Outcome: mpiexec ends the job at once; each file is as before or whole, and the next save removes what is left.
    """
    ended = run_ranks(2, [*INJECTED, str(victim), call, "SIGKILL", str(number), str(tmp_path)], status="failure")
    assert ended.stdout == "shared\n"
    assert "Traceback" not in ended.stderr, ended.stderr
    snapshot = ms.Checkpoint(tmp_path / "run").latest()
    assert snapshot is not None
    with h5py.File(tmp_path / "a.h5") as file:
        arrays = [np.load(tmp_path / "a.npy"), file["rows"][:], snapshot.load("rows")]
    for array in arrays:
        assert array.shape == (100_000, 2)
        assert (array == array[0, 0]).all()
    assert len(list(tmp_path.rglob("*.tmp.*"))) == 1
    ms.save(tmp_path / "a.npy", np.ones(3))
    ms.save(tmp_path / "a.h5", np.ones(3), "rows")
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
