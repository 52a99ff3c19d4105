"""jobs/heat.py: the same bits on any ranks and nodes, in one go or stopped and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.blackbox.launch import ROOT, environment, run_code, run_ranks
from tests.processes import children_of

JOB = ["jobs/heat.py", "--size", "61,50", "--json"]
TRY_AGAIN = 75


def grid_in(file: Path) -> bytes:
    """The bits of the result."""
    with h5py.File(file) as found:
        return bytes(found["grid"][:].tobytes())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one rank comes to in 2000 steps."""
    file = tmp_path_factory.mktemp("alone") / "heat.h5"
    ended = run_ranks(1, [*JOB, "--steps", "2000", "--output", str(file)])
    assert ended.returncode == 0, ended.stderr
    assert np.frombuffer(grid_in(file)).std() > 0.001
    return grid_in(file)


@pytest.mark.parametrize(("size", "nodes"), [(2, ""), (3, "block:1"), (4, "cyclic:2"), (5, "sizes:1,3,1")])
def test_any_placement_gives_the_bits_of_one_rank(size: int, nodes: str, tmp_path: Path, alone: bytes) -> None:
    file, picture = tmp_path / "heat.h5", tmp_path / "heat.png"
    words = ["--steps", "2000", "--output", str(file), "--check"]
    if size == 2:
        words += ["--picture", str(picture), "--progress"]
    ended = run_ranks(size, [*JOB, *words], {"MPISHARE_NODES": nodes})
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert (told["ranks"], told["first"], told["step"], told["right"]) == (size, 0, 2000, True)
    assert grid_in(file) == alone
    assert picture.exists() == (size == 2)


def test_stopped_by_the_signal_and_resumed_on_other_ranks(tmp_path: Path) -> None:
    words = [*JOB, "--checkpoint", str(tmp_path / "run"), "--every", "50"]
    line = [sys.executable, "-m", "mpishare", "run", "-n", "3", *words, "--steps", "1000000", "--progress"]
    environ = environment({"MPISHARE_NODES": "block:2"})
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=ROOT, env=environ, stdout=pipe, stderr=pipe) as job:
        assert job.stdout is not None
        assert job.stdout.readline().startswith(b"step ")
        os.kill(children_of(job.pid)[-1], signal.SIGUSR1)
        try:
            out, err = job.communicate(timeout=60)
        finally:
            job.kill()
    assert job.returncode == TRY_AGAIN, err
    told = json.loads(out.splitlines()[-1])
    assert told["step"] > 0
    steps = ["--steps", str(told["step"] + 73), "--check"]
    ended = run_ranks(4, [*words, *steps], {"MPISHARE_NODES": "sizes:3,1"})
    assert ended.returncode == 0, ended.stderr
    again = json.loads(ended.stdout)
    assert (again["first"], again["step"], again["right"]) == (told["step"], told["step"] + 73, True)


@pytest.mark.parametrize("words", [["--size", "2,9"], ["--picture", "x.png"]])
def test_bad_input(words: list[str]) -> None:
    ended = run_ranks(1, ["--", sys.executable, *JOB, *words], limit_s=20)
    assert ended.returncode == 2
    assert "heat.py: error: --" in ended.stderr


def test_a_checkpoint_of_another_grid_is_refused(tmp_path: Path) -> None:
    words = ["jobs/heat.py", "--steps", "10", "--every", "10", "--checkpoint", str(tmp_path / "run")]
    assert run_ranks(1, [*words, "--size", "20,20"]).returncode == 0
    ended = run_ranks(2, [*words, "--size", "21,20"])
    assert ended.returncode != 0
    assert "--size (21, 20), but the checkpoint has (20, 20)" in ended.stderr


KERNELS = """
import numpy as np
from jobs.heat import advance, by_loops, by_numpy
old = np.random.default_rng(1).standard_normal((9, 8)) * 10.0 ** np.arange(-4, 4)
found = []
for step in (advance, by_loops, by_numpy):
    new = np.zeros_like(old)
    step(old, new, 2, 7)
    step(old, new, 3, 3)
    found.append(new.tobytes())
assert found[0] == found[1] == found[2]
"""


def test_the_kernels_give_the_same_bits() -> None:
    ended = run_code(1, KERNELS)
    assert ended.returncode == 0, ended.stderr
