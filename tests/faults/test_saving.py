"""Files that are saved while ranks are killed, disks fill up and system calls fail: as before, or whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpishare as ms
from tests.blackbox.launch import run_ranks
from tests.faults.test_space import FOLDER, run_with

SAVING = ["-m", "tests.faults.programs.saving"]
INJECTED = ["-m", "tests.faults.programs.injected"]
KEPT = "mpiexec ends the job at once; each file is as before or whole, and the next save removes what is left"


def killed_while_saving(victim: int, folder: Path, nodes: str) -> int:
    """Kills a rank at a random moment of a save, and looks at the files; how many were left half written."""
    ended = run_ranks(4, [*SAVING, str(folder), str(victim)], {"MPISHARE_NODES": nodes}, limit_s=60)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr, ended.stderr
    rows = np.load(folder / "rows.npy")
    assert rows.shape == (1 << 19, 4)
    assert (rows == rows[0, 0]).all()
    assert rows[0, 0] >= 1
    with h5py.File(folder / "both.h5") as file:
        for name, count in (("rows", 1 << 19), ("root", 1 << 17)):
            assert file[name].shape == (count, 4)
            assert (file[name][:] == file[name][0, 0]).all()
    found = ms.Checkpoint(folder / "run").latest()
    assert found is not None
    assert (found.load("rows") == found.step).all()
    left = [file for file in folder.rglob("*") if ".tmp." in file.name]
    ms.save(folder / "rows.npy", np.ones(3))
    ms.save(folder / "both.h5", np.ones(3), "rows")
    ms.Checkpoint(folder / "run").save(0, {})
    assert not [file for file in folder.rglob("*") if ".tmp." in file.name]
    return len(left)


@pytest.mark.fault("SIGKILL of a rank while it saves", KEPT)
@pytest.mark.parametrize(("victim", "nodes"), [(0, ""), (1, "block:2"), (3, "block:2")])
def test_kill(victim: int, nodes: str, tmp_path: Path) -> None:
    assert killed_while_saving(victim, tmp_path, nodes) <= 1


# The system calls by which files are made, filled and named, each with what befalls it.
CALLS = {"pwrite64": "ENOSPC", "ftruncate": "ENOSPC", "copy_file_range": "ENOSPC", "fsync": "EIO", "rename": "EIO"}


@pytest.mark.fault(
    "ENOSPC or EIO at the n-th system call of a save",
    "FileError or PeerError on all ranks; what was there is there still, nothing is left, and the next call works",
)
@pytest.mark.parametrize(("call", "fault"), CALLS.items())
def test_error(call: str, fault: str, tmp_path: Path) -> None:
    ended = run_ranks(2, [*INJECTED, "0", call, fault, "1", str(tmp_path)])
    assert ended.returncode == 0, ended.stderr
    assert all(json.loads(ended.stdout).values()), "the call was never made"


@pytest.mark.fault("a full disk while saving", "FileError on all ranks: which file, no space; the old one stays")
def test_full_disk(tmp_path: Path) -> None:
    code = f"""
import errno, mpishare.files.beside as beside
os.chdir({str(tmp_path / "full")!r})
def rows(n): return np.full(n << 16, n, 'f8')
for name, dataset in (('a.npy', None), ('a.h5', 'x')):
    for look in (True, False):
        if not look: beside.room = lambda folder: None
        ms.save(name, rows(1), dataset, distributed=True)
        before = open(name, 'rb').read()
        try: ms.save(name, rows(7), dataset, distributed=True)
        except (ms.FileError, ms.PeerError) as error:
            assert 'No space left on device' in str(error) and name in str(error), error
            assert dataset is None or "dataset 'x'" in str(error), error
            assert isinstance(error, ms.PeerError) or error.errno == errno.ENOSPC
            print('refused')
        assert open(name, 'rb').read() == before
        comm.Barrier()
        assert not [file for file in os.listdir('.') if '.tmp.' in file]
        ms.save(name, rows(2), dataset, distributed=True)
    comm.Barrier()
    if rank == 0: os.unlink(name)
run = ms.Checkpoint('run')
run.save(1, {{'x': rows(2)}}, distributed=['x'])
try: run.save(2, {{'x': rows(6)}}, distributed=['x'])
except (ms.FileError, ms.PeerError): print('refused')
assert run.latest().step == 1
"""
    ended = run_with(FOLDER.format(tmp_path / "full", ""), code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("refused") == 10


@pytest.mark.fault("no permission to save", "FileError on all ranks: which file, permission denied")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_no_permission(tmp_path: Path) -> None:
    code = f"""
os.setegid(65534); os.seteuid(65534)
for folder in ('mine', 'open'):
    for name, dataset in (('a.npy', None), ('a.h5', 'x')):
        try: ms.save({str(tmp_path)!r} + f'/{{folder}}/{{name}}', np.ones(3), dataset)
        except (ms.FileError, ms.PeerError) as error:
            assert 'Permission denied' in str(error) and f'{{folder}}/{{name}}' in str(error), error
            print('refused')
"""
    for folder in (tmp_path.parent, tmp_path):
        folder.chmod(0o755)
    (tmp_path / "mine").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("a.npy", "a.h5"):
        (tmp_path / "open" / name).write_text("of another user")
    ended = run_with("true", code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("refused") == 8
    assert (tmp_path / "open" / "a.npy").read_text() == "of another user"
