"""The commands that a user types; tests.bare types those of the README."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from functools import cache

import pytest

import mpishare as ms
from tests.blackbox.launch import ROOT, copy_project, environment, run, run_code, run_ranks

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", README, re.DOTALL)


@cache
def result_of(command):
    """The result of a command, without the environment of make, which may run these tests."""
    return run(shlex.split(command), {"MAKEFLAGS": "--no-print-directory"}, limit_s=500, is_cleaned=True)


def shown_of(command):
    """What README shows as the output of a command."""
    return next(block for block in BLOCKS if block.startswith(f"$ {command}")).partition("\n")[2]


def test_the_output_of_make_demo():
    """All of it, but for the host's name and the times."""
    assert shown_of("make demo")
    assert without_host(result_of("make demo").stdout).endswith(without_host(shown_of("make demo")))


def without_host(text):
    return re.sub(r"[\d.]+ ms$", "T ms", re.sub(r"\(\S+~(\d)\)", r"(host~\1)", text), flags=re.MULTILINE)


@pytest.mark.first
def test_before_and_after():
    """The second two lines give what the first two give, in one copy."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    before, after = code.split("\n\n")
    head = "import mpishare as ms, numpy as np\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
    head += "def read_table(): return np.arange(12.0)\n"
    check = "assert table.tolist() == read_table().tolist()\n"
    run_code(4, f"{head}{before}\n{check}{after}\n{check}assert not table.flags.writeable\n")


def test_info_as_json_under_mpiexec():
    environ = {"MPISHARE_NODES": "block:2"}
    facts = json.loads(run_ranks(3, ["mpishare", "info", "--json"], environ).stdout)
    assert [node["ranks"] for node in facts["nodes"]] == [[0, 1], [2]]
    assert facts["versions"]["mpishare"] == ms.__version__
    assert facts["nodes"][0]["machine"]["shm"]["free"] > 0
    assert facts["nodes"][0]["segments"]["window"].endswith("private() copies")
    assert facts["nodes"][0]["segments"]["memmap in memory"].endswith("private() is copy-on-write")


def test_a_wrong_option_is_named_once():
    ended = run_ranks(3, ["mpishare", "bench", "--mob", "3"], status=2)
    assert ended.stderr.count("mpishare bench: error: unrecognized arguments: --mob 3") == 1
    assert ended.stderr.count("usage:") == 1


def test_info_and_bench_say_whether_memory_is_shared():
    lines = run_ranks(3, ["mpishare", "info"], {"MPISHARE_NODES": "block:2"}).stdout.splitlines()
    assert re.fullmatch(r"OK: 3 ranks on 2 nodes share memory by windows; arrays up to [\d.]+ [MGT]iB", lines[0])
    assert re.fullmatch(r"node 0: \S+, ranks 0, 1; \d+ cores?, .* of memory, .* free in /dev/shm", lines[1])
    assert max(map(len, lines)) <= 120
    ended = run_ranks(2, ["mpishare", "info", "--verbose"], {"MPISHARE_BACKEND": "private"}, status=1)
    private = ended.stdout.splitlines()
    ended = run_ranks(2, ["mpishare", "bench", "--mib", "2"], {"MPISHARE_BACKEND": "private"})
    assert ended.stdout.splitlines()[-1].startswith("Sharing 2 MiB saves no memory: each rank holds a copy; ")
    refused = run_ranks(2, ["mpishare", "info"], {"MPISHARE_BACKEND": "nope"}, status=2)
    assert refused.stderr.count("MPISHARE_BACKEND 'nope' is unknown") == 1
    assert private[0].startswith("NOT SHARED: 2 ranks on 1 node; the ranks of host ")
    assert any(line.startswith("  private            fits, up to ") for line in private)


UNREAD = [("info --json", ""), ("run --dry-run true", "1")]


@pytest.mark.parametrize(("args", "unbuffered"), UNREAD)
def test_output_that_nobody_reads(args, unbuffered):
    """As under `| head`, which ends before the command; Python prints at the end, or at once."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mpishare", *args.split()]
    ended = subprocess.run(
        command, env=environment({"PYTHONUNBUFFERED": unbuffered}), stdout=writer, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_make_fills_and_removes_only_folders_that_it_made(tmp_path):
    copy_project(tmp_path)
    own = [tmp_path / name / "own" for name in (".venv", ".venv-docs", "build", "build/docs", "dist")]
    for file in own:
        file.parent.mkdir(exist_ok=True)
        file.write_text("own")
    refused = run(["make", "-C", str(tmp_path), "build/docs/ready"], status="failure")
    assert "build/docs was not made by make" in refused.stderr
    run(["make", "-C", str(tmp_path), "clean"])
    assert {file.read_text() for file in own} == {"own"}
    assert {path.name for file in own for path in file.parent.iterdir()} == {"own", "docs"}
