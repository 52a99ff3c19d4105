"""Ranks that raise, that call something else, that do not come; forks, threads, and drops in any order."""

from __future__ import annotations

import pytest

from tests.blackbox.launch import PLAIN, Ended, nothing_left, run_ranks

PROGRAM = ["-m", "tests.faults.programs.calls"]
ENDED = "the job ends at once with its traceback, exit status 1"


def run(*args: str, size: int = 3, status: int = 0, timeout_s: str = "", **environ: str) -> Ended:
    """Runs a function of the program on ranks by plain python, and checks that nothing is left."""
    with nothing_left():
        ended = run_ranks(size, [*PLAIN, *PROGRAM, *args], {"MPISHARE_TIMEOUT": timeout_s, **environ})
    assert ended.returncode == status, ended.stderr
    return ended


def errors(ended: Ended) -> list[str]:
    """The errors that the ranks printed."""
    return [line for line in ended.stdout.splitlines() if line.startswith("error:")]


@pytest.mark.fault("an exception on one rank between two collectives, plain python", ENDED)
@pytest.mark.parametrize("rank", ["0", "1", "2"])
def test_exception(rank: str) -> None:
    ended = run("raise_between", rank, status=1)
    assert "ValueError: no data" in ended.stderr
    assert f"mpishare: rank {rank} on host" in ended.stderr


@pytest.mark.fault("an exception on one rank between two collectives, python -m mpi4py", ENDED)
def test_exception_under_mpi4py() -> None:
    with nothing_left():
        ended = run_ranks(3, [*PROGRAM, "raise_between", "1"])
    assert ended.returncode == 1
    assert "ValueError: no data" in ended.stderr


@pytest.mark.fault(
    "an exception inside a collective: bad input, no room, a missing file", "its own error there, PeerError elsewhere"
)
def test_exception_in_a_collective() -> None:
    lines = run("raise_inside").stdout.splitlines()
    assert sorted(line.split()[0] for line in lines) == ["PeerError", "PeerError", "SpecError"]
    assert all("dtype object cannot be shared" in line for line in lines)


@pytest.mark.fault("the same collective with different arguments", "MismatchError on all ranks, with both calls")
def test_different_arguments() -> None:
    lines = errors(run("differ"))
    assert len(lines) == 3
    assert all("ranks 0, 1: zeros(shape=(3,)" in line and "rank 2: zeros(shape=(4,)" in line for line in lines)


@pytest.mark.fault(
    "different collectives, with MPISHARE_CHECK=1",
    "MismatchError on all ranks of the node, with each call, its file and line",
)
@pytest.mark.parametrize("nodes", ["", "block:2"])
def test_different_collectives(nodes: str) -> None:
    with nothing_left():
        environ = {"MPISHARE_CHECK": "1", "MPISHARE_TIMEOUT": "3", "MPISHARE_NODES": nodes}
        ended = run_ranks(3, [*PLAIN, *PROGRAM, "differ_in_collective"], environ)
    assert len(errors(ended)) == 3, ended.stderr
    assert all("fence at " in line and "zeros at " in line and "calls.py:" in line for line in errors(ended))


@pytest.mark.fault(
    "ranks of one of several nodes that call different collectives, with MPISHARE_CHECK, and go on",
    "MismatchError on all ranks of all nodes; the next call works",
)
def test_one_node_that_differs() -> None:
    ended = run("differ_on_one_node", size=4, MPISHARE_CHECK="1", MPISHARE_NODES="block:2")
    assert (len(errors(ended)), ended.stdout.count("right True")) == (4, 4)


@pytest.mark.fault("a rank that does not come, with MPISHARE_TIMEOUT", "StallError on the others: which, on which host")
def test_a_rank_that_does_not_come() -> None:
    lines = errors(run("do_not_come", timeout_s="1"))
    assert len(lines) == 3  # the late one as well
    assert all("zeros at " in line and "have not come: rank 2 on host" in line for line in lines)


@pytest.mark.fault(
    "ranks that call on different communicators, with MPISHARE_TIMEOUT",
    "StallError: which rank waits in which call, its file and line",
)
def test_calls_on_different_communicators() -> None:
    lines = errors(run("call_on_another_communicator", timeout_s="1"))
    assert any("rank 2 on host" in line and "on another communicator" in line for line in lines)
    assert any("waits in zeros at " in line and "calls.py:" in line for line in lines)


@pytest.mark.fault("the first call on a communicator, to which a rank does not come", "StallError, without names")
def test_the_first_call() -> None:
    lines = errors(run("do_not_come_first", timeout_s="1"))
    assert sum("the first call on a communicator has waited 1 s" in line for line in lines) == 2


@pytest.mark.fault(
    "a call after a StallError", "the same error at once, as the ranks no longer agree on what comes next"
)
def test_a_call_after_a_stall() -> None:
    assert len(errors(run("call_after_a_stall", timeout_s="1"))) == 9


@pytest.mark.fault(
    "a StallError while messages into an array are on their way, and the array dropped",
    "they keep their memory: nobody else's bytes change, and no rank dies",
)
def test_messages_that_come_after_a_stall() -> None:
    ended = run("receive_after_a_stall", status=1, timeout_s="1", MPISHARE_NODES="block:1", MPISHARE_RECYCLE="0")
    assert ended.stdout.count("right") == 3
    assert len(errors(ended)) >= 2


SURVIVED = {
    "fork": ("a fork after MPI_Init", "the child reads the arrays; a collective in it is an ArgumentError"),
    "store_from_c": (
        "a store into a shared array from C: ctypes, Cython, numba",
        "SIGSEGV of the rank that stores, as its pages are read-only; the data of all others stay",
    ),
    "collect_in_any_order": (
        "garbage collection in different orders on different ranks",
        "nothing: to release is local",
    ),
    "free_the_communicator": ("the caller's communicator freed while views live", "nothing: the views stay"),
    "run_threads": (
        "threads, each on its own communicator, with MPI_THREAD_MULTIPLE",
        "nothing: they do not disturb each other",
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.fault(*row)) for name, row in SURVIVED.items()])
def test_survived(name: str) -> None:
    run(name)
