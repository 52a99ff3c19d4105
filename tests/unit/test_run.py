"""mpishare run: the arguments sorted, and only what is needed added."""

import os
import shlex
import sys

import pytest

from mpishare.cli.run import additions, command, find_mpiexec, split

GUARD = f"{shlex.quote(sys.executable)} -m mpi4py"
COMMANDS = {
    "-n 4 prog.py -n 9": f"-n 4 {GUARD} prog.py -n 9",
    "-n 2 -m package.job x": f"-n 2 {GUARD} -m package.job x",
    "-n 2 python3.11 -u -X dev prog.py": "-n 2 python3.11 -u -X dev -m mpi4py prog.py",
    "-n 2 --host a:1 --map-by node x.py": f"-n 2 --host a:1 --map-by node {GUARD} x.py",
    "-n 2 /usr/bin/python3 -c pass": "-n 2 /usr/bin/python3 -m mpi4py -c pass",
    "-n 2 python -m mpi4py prog.py": "-n 2 python -m mpi4py prog.py",
    "-n 2 mpishare info --json": "-n 2 mpishare info --json",
    "--bind-to none -n 2 -- ./a.out -n 3": "--bind-to none -n 2 ./a.out -n 3",
    "-n 2 python -uc pass": "-n 2 python -uc pass",
    "-n 2 python -X dev -uWignore -m job": "-n 2 python -X dev -uWignore -m job",
    "-n 2 python -Wignore -X dev -m job": "-n 2 python -Wignore -X dev -m mpi4py -m job",
    "-n 2 python": "-n 2 python",
    "-n 2 ./python_tool.sh x": "-n 2 ./python_tool.sh x",
    "--wdir /home/python-work --np 2 x.py": f"--wdir /home/python-work --np 2 {GUARD} x.py",
}


@pytest.mark.parametrize("args", COMMANDS)
def test_command(args):
    assert command(*split(args.split()))[1:] == shlex.split(COMMANDS[args])


def test_a_program_beside_python(tmp_path, monkeypatch):
    """It is found where the environment is not activated. A folder of its name here is not the program."""
    for name in ("python", "mpiexec", "mpishare", "setup.py"):
        (tmp_path / name).touch(0o700)
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/python")
    monkeypatch.setenv("PATH", f"{tmp_path / 'empty'}")
    assert command([], ["mpishare", "info"]) == [f"{tmp_path}/{name}" for name in ("mpiexec", "mpishare")] + ["info"]
    assert command([], ["setup.py"])[1:] == [f"{tmp_path}/python", "-m", "mpi4py", "setup.py"]  # that of this folder
    assert command([], ["./mpishare"])[1:] == ["./mpishare"]


@pytest.mark.parametrize("args", ["", "-n 4", "-n", "--oversubscribe ./tool", "-n 1 --bind-to none ./tool --", "--"])
def test_no_program(args):
    """A word behind an option of mpiexec may be its value."""
    with pytest.raises(ValueError, match="no PROGRAM"):
        split(args.split())


@pytest.mark.parametrize(("folder", "is_own"), [("/usr/bin", False), ("venv/bin", True)])
def test_mpiexec(folder, is_own, tmp_path, monkeypatch):
    """That of a loaded module, and not the system's; but that beside a Python which is not the system's."""
    own, module = tmp_path / folder, tmp_path / "module"
    for path in (tmp_path / "venv/bin", module):
        path.mkdir(parents=True)
        (path / "mpiexec").touch(0o700)
    monkeypatch.setattr(sys, "executable", str(own / "python3"))
    monkeypatch.setenv("PATH", f"{module}:/usr/bin")
    assert find_mpiexec() == str((own if is_own else module) / "mpiexec")


ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVERSUBSCRIBE = {
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
ALWAYS = {"OMPI_MCA_osc": "^ucx", "PYTHONFAULTHANDLER": "1"}


ADDED = [
    (2, False, {}, ALWAYS),
    (2, True, {}, ALWAYS | ROOT),
    (3, False, {}, ALWAYS | OVERSUBSCRIBE),
    (3, False, {"SLURM_JOB_ID": "1"}, ALWAYS),
    (1, False, {"OMPI_MCA_osc": "sm", "PYTHONFAULTHANDLER": ""}, {}),
]


@pytest.mark.parametrize(("ranks", "is_root", "environ", "added"), ADDED)
def test_settings_added_on_two_cores(monkeypatch, ranks, is_root, environ, added):
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3})
    assert additions(["-n", str(ranks)], environ) == added
