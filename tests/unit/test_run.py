"""mpishare run: the arguments sorted, and only what is needed added."""

from __future__ import annotations

import sys

import pytest

from mpishare.cli.run import Request, additions, command, parse

GUARD = [sys.executable, "-m", "mpi4py"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("-n 4 prog.py -n 9", ["mpiexec", "-n", "4", *GUARD, "prog.py", "-n", "9"]),
        ("prog.py", ["mpiexec", *GUARD, "prog.py"]),
        ("-n 2 -m package.job x", ["mpiexec", "-n", "2", *GUARD, "-m", "package.job", "x"]),
        ("-n 2 python prog.py", ["mpiexec", "-n", "2", "python", "-m", "mpi4py", "prog.py"]),
        (
            "-n 2 python3.11 -u -X dev prog.py",
            ["mpiexec", "-n", "2", "python3.11", "-u", "-X", "dev", "-m", "mpi4py", "prog.py"],
        ),
        (
            "-n 2 --host a:1 --map-by node x.py",
            ["mpiexec", "-n", "2", *["--host", "a:1", "--map-by", "node"], *GUARD, "x.py"],
        ),
        ("-n 2 /usr/bin/python3 -c pass", ["mpiexec", "-n", "2", "/usr/bin/python3", "-m", "mpi4py", "-c", "pass"]),
        ("-n 2 python -m mpi4py prog.py", ["mpiexec", "-n", "2", "python", "-m", "mpi4py", "prog.py"]),
        ("-n 2 mpishare info --json", ["mpiexec", "-n", "2", "mpishare", "info", "--json"]),
        ("--bind-to none -n 2 -- ./a.out -n 3", ["mpiexec", "-n", "2", "--bind-to", "none", "./a.out", "-n", "3"]),
        ("-n 2 python -uc pass", ["mpiexec", "-n", "2", "python", "-u", "-m", "mpi4py", "-c", "pass"]),
        (
            "-n 2 python -X dev -um job",
            ["mpiexec", "-n", "2", "python", "-X", "dev", "-u", "-m", "mpi4py", "-m", "job"],
        ),
        ("-n 2 python", ["mpiexec", "-n", "2", "python"]),
        ("-n 2 ./python_tool.sh x", ["mpiexec", "-n", "2", "./python_tool.sh", "x"]),
        ("-n 2 --mca btl self,sm x.py", ["mpiexec", "-n", "2", "--mca", "btl", "self,sm", *GUARD, "x.py"]),
        ("--wdir /home/python-work --np 2 x.py", ["mpiexec", "-n", "2", "--wdir", "/home/python-work", *GUARD, "x.py"]),
        ("-np 3 -- prog", ["mpiexec", "-n", "3", "prog"]),
    ],
)
def test_command(args: str, expected: list[str]) -> None:
    assert command(parse(args.split()), "mpiexec") == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "no PROGRAM"),
        ("-n 4", "no PROGRAM"),
        ("-n", "takes a number"),
        ("-n x a.py", "takes a number"),
        ("-n ² a.py", "takes a number"),
        ("--oversubscribe prog", "no PROGRAM"),
        ("-n 0 a.py", "'0'"),
    ],
)
def test_arguments_without_a_program_or_a_number(args: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(args.split())


ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OVERSUBSCRIBE = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
NO_UCX = {"OMPI_MCA_osc": "^ucx"}


@pytest.mark.parametrize(
    ("ranks", "is_root", "environ", "added"),
    [
        (2, False, {}, NO_UCX),
        (2, True, {}, NO_UCX | ROOT),
        (3, False, {}, NO_UCX | OVERSUBSCRIBE),
        (3, False, {"SLURM_JOB_ID": "1"}, NO_UCX),
        (1, False, {"OMPI_MCA_osc": "sm"}, {}),
    ],
)
def test_settings_added_on_two_cores(ranks: int, is_root: bool, environ: dict[str, str], added: dict[str, str]) -> None:
    assert additions(Request(ranks=ranks), environ, is_root=is_root, cores=2) == added
