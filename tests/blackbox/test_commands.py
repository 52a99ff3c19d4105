"""The commands that a user types: those of the README, the job, the set-up from nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mpishare as ms
from tests.blackbox.launch import ROOT, Ended, run, run_code, run_ranks

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
COMMANDS = [line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]


def test_the_readme_opens_with_the_two_commands() -> None:
    assert COMMANDS[:2] == ["make demo", "make test"]


@cache
def typed(command: str) -> Ended:
    """What came of one of them, and nothing of make's own, which may run these tests."""
    return run(shlex.split(command), {"MAKEFLAGS": "--no-print-directory"}, limit_s=110)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "make test"])
def test_readme_command(command: str) -> None:
    ended = typed(command)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout


def test_make_test_is_what_runs_this() -> None:
    """It cannot run itself; what it would run is the runner of all tests."""
    ended = run(["make", "--dry-run", "test"])
    assert "-m tests.run" in ended.stdout


def test_the_readme_shows_the_demos_real_output() -> None:
    shown = next(block for block in BLOCKS if block.startswith("$ make demo"))
    said = typed("make demo").stdout
    said = said[said.index("mpishare: jobs/broadcast.py") :]  # before it, the first time, stands what was set up
    assert without_times(said) in without_times(shown)


def without_times(text: str) -> str:
    """The text without what differs from run to run and from machine to machine: times and the host's name."""
    return re.sub(r"\(\S+~(\d)\)", r"(host~\1)", re.sub(r"\d+\.\d+ (ms|times)", r"# \1", text))


def test_the_readme_example() -> None:
    code, shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0], "60.0 576 bytes saved"
    assert shown in README
    ended = run_code(4, code)
    assert (ended.returncode, ended.stdout) == (0, shown + "\n"), ended.stderr


@pytest.mark.parametrize("size", [1, 2, 5])
def test_broadcast_job(size: int, tmp_path: Path) -> None:
    np.save(tmp_path / "a table.npy", np.asfortranarray(np.random.default_rng(1).standard_normal((300, 70))))
    words = ["jobs/broadcast.py", "--data", str(tmp_path / "a table.npy")]
    ended = run_ranks(size, words, {"MPISHARE_NODES": "cyclic:2"})
    assert ended.returncode == 0, ended.stderr
    assert f"all {size} ranks agree with rank 0 bit for bit" in ended.stdout
    assert ended.stdout.count("168,000 bytes held once") == min(size, 2)
    norm = float(ended.stdout.partition("2-norm ")[2].partition(":")[0])
    assert norm == pytest.approx(np.linalg.norm(np.load(tmp_path / "a table.npy")), rel=1e-12)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--data", "no such file.npy"], "No such file"),
        (["--data", "README.md"], "ValueError"),
        (["--shape", "a,b"], "ValueError"),
        (["--shape", "-3"], "ValueError"),
    ],
)
def test_broadcast_job_with_bad_input_ends_everywhere(words: list[str], told: str) -> None:
    ended = run_ranks(3, ["--", sys.executable, "jobs/broadcast.py", "=".join(words)], limit_s=20)
    assert ended.returncode != 0
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_info_as_json_under_mpiexec() -> None:
    ended = run_ranks(3, ["mpishare", "info", "--json"], {"MPISHARE_NODES": "block:2"})
    facts = json.loads(ended.stdout)
    assert [node["ranks"] for node in facts["nodes"]] == [[0, 1], [2]]
    assert facts["versions"]["mpishare"] == ms.__version__
    assert facts["nodes"][0]["machine"]["shm"]["free"] > 0
    assert facts["nodes"][0]["segments"]["window"].startswith("fits")


def test_info_says_what_it_keeps() -> None:
    ended = run_ranks(2, ["mpishare", "info"], {"MPISHARE_SECOND_MAP": "0"})
    assert "stays until MPI_Finalize; private() copies" in ended.stdout


@pytest.mark.parametrize(("size", "nodes"), [(1, ""), (3, "block:2")])
def test_bench_ends_in_a_verdict(size: int, nodes: str) -> None:
    ended = run_ranks(size, ["mpishare", "bench", "--mib", "1"], {"MPISHARE_NODES": nodes})
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("mpishare.share") == 2
    saved = f"saves {(size - 2 if nodes else 0) << 20:,} bytes of memory"
    assert ended.stdout.splitlines()[-1].startswith("verdict: sharing 1 MiB costs ")
    assert saved in ended.stdout


def test_bench_refuses_nonsense() -> None:
    ended = run([sys.executable, "-m", "mpishare", "bench", "--mib", "0"])
    assert (ended.returncode, "--mib takes 1 or more" in ended.stderr) == (2, True)


def test_usage() -> None:
    assert run([sys.executable, "-m", "mpishare"]).returncode == 2
    assert run([sys.executable, "-m", "mpishare", "fly"]).returncode == 2
    for words in (["--help"], ["info", "--help"], ["run", "--help"]):
        ended = run([sys.executable, "-m", "mpishare", *words])
        assert ended.returncode == 0
        assert "usage: mpishare" in ended.stdout


def test_run_ends_the_job_when_one_rank_raises() -> None:
    program = "from mpi4py import MPI; assert MPI.COMM_WORLD.rank != 1, 'one rank'; MPI.COMM_WORLD.Barrier()"
    ended = run_ranks(3, ["python", "-c", program], limit_s=30)
    assert ended.returncode != 0
    assert "AssertionError: one rank" in ended.stderr


def test_set_up_from_nothing_as_an_ordinary_user_in_a_path_with_a_space() -> None:
    """A copy of the tracked files, an empty environment, and the system's user "nobody" where we are root."""
    folder = Path("/tmp") / f"mpishare test {os.getpid()}"
    try:
        copy_tracked_files(folder)
        user = as_nobody(folder) if os.geteuid() == 0 else []
        bare = ["env", "-i", f"HOME={folder}", "PATH=/usr/local/bin:/usr/bin:/bin", f"TMPDIR={folder}", *pip_settings()]
        ended = subprocess.run(
            [*user, *bare, "make", "demo"], cwd=folder, capture_output=True, text=True, timeout=110, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert "all 4 ranks agree with rank 0 bit for bit" in ended.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_tracked_files(folder: Path) -> None:
    """What a clone would bring, changed files included."""
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def as_nobody(folder: Path) -> list[str]:
    """Gives the folder to nobody; the words that run a command as nobody, with no capability."""
    for file in [folder, *folder.rglob("*")]:
        os.chown(file, 65534, 65534)
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]


def pip_settings() -> list[str]:
    """How this machine's pip reaches its index, and nothing else of the environment."""
    return [f"{name}={value}" for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))]


@pytest.mark.parametrize("words", [[], ["--to", "2"]])
def test_round_trip_job(words: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(1).random((500, 28, 28), np.float32))
    data = ["--data", str(tmp_path / "images.npy"), "--repeats", "2"]
    ended = run_ranks(3, ["--", sys.executable, "jobs/round_trip.py", *data, *words], limit_s=30)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("all bits are the same") == 2
    assert "(500, 28, 28) float32, 1,568,000 bytes" in ended.stdout


@pytest.mark.parametrize(
    ("words", "told"), [(["--to", "3"], "no other rank"), (["--data", "missing.npy"], "missing.npy")]
)
def test_round_trip_job_with_bad_input_ends_everywhere(words: list[str], told: str) -> None:
    ended = run_ranks(3, ["--", sys.executable, "jobs/round_trip.py", *words], limit_s=20)
    assert ended.returncode != 0
    assert told in ended.stderr
