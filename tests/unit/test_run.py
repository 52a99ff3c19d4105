"""mpishare run: the words sorted, and only what is needed added."""

from __future__ import annotations

import sys

import pytest

from mpishare.cli.run import Request, additions, command, parse

GUARD = [sys.executable, "-m", "mpi4py"]


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_command(words: str, expected: list[str]) -> None:
    assert command(parse(words.split()), "mpiexec") == expected


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_words_that_cannot_be_run(words: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse(words.split())


def test_nothing_is_added_without_need() -> None:
    assert additions(Request(ranks=2), {}, is_root=False, cores=2) == {"OMPI_MCA_osc": "^ucx"}


def test_root_may_run() -> None:
    added = additions(Request(ranks=2), {}, is_root=True, cores=2)
    assert {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"} < set(added)


def test_more_ranks_than_cores_unless_a_batch_system_places_them() -> None:
    added = additions(Request(ranks=3), {}, is_root=False, cores=2)
    assert added["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert added["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert len(additions(Request(ranks=3), {"SLURM_JOB_ID": "1"}, is_root=False, cores=2)) == 1


def test_what_the_user_set_stays() -> None:
    assert additions(Request(ranks=1), {"OMPI_MCA_osc": "sm"}, is_root=False, cores=2) == {}
