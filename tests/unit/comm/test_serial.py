"""One rank without MPI: the same program prints the same with and without mpi4py."""

import subprocess
import sys

import pytest

from tests.blackbox.launch import PROGRAMS, ROOT, environment


def run(*args, **environ):
    line = [sys.executable, "-m", f"{PROGRAMS}.alone", *map(str, args)]
    return subprocess.run(line, cwd=ROOT, env=environment(environ), capture_output=True, text=True, timeout=100)


def test_the_same_with_and_without_mpi(tmp_path):
    outputs = []
    for option in ([], ["--without-mpi"]):
        folder = tmp_path / str(len(option))
        folder.mkdir()
        result = run(folder, *option)
        assert result.returncode == 0, result.stderr
        outputs.append(result.stdout)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_processes_that_a_launcher_started_together(tmp_path, name):
    """Each would do the whole work."""
    result = run(tmp_path, "--without-mpi", **{name: "3"})
    assert result.returncode == 1
    assert "LaunchError: 3 processes were started together, but there is no MPI here" in result.stderr
    assert "install mpi4py" in result.stderr
    assert run(tmp_path, "--without-mpi", **{name: "3", "MPISHARE_SINGLETONS": "1"}).returncode == 0
