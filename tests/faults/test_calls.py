"""Ranks that raise, that call something else, that do not come; forks, threads, and drops in any order."""

import pytest

from tests.blackbox.launch import PLAIN, Ended, Status, run_ranks

PROGRAM = ["-m", "tests.faults.programs.calls"]


def run(*args: str, size: int = 3, status: Status = 0, timeout_s: str = "", **environ: str) -> Ended:
    """Runs a function of the program on ranks by plain python."""
    return run_ranks(size, [*PLAIN, *PROGRAM, *args], {"MPISHARE_TIMEOUT": timeout_s, **environ}, status=status)


def errors(ended: Ended, name: str) -> list[str]:
    """The errors that the ranks printed, all of them of the class `name`."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("error:")]
    assert all(line.startswith(f"error: {name} ") for line in lines)
    return lines


@pytest.mark.parametrize("rank", ["0", "1", "2"])
def test_exception(rank: str) -> None:
    """An exception on one rank between two collectives, plain python.

    Outcome: the job ends at once with its traceback, exit status 1.
    """
    ended = run("raise_between", rank, status=1)
    assert "ValueError: no data" in ended.stderr
    assert f"mpishare: rank {rank} on host" in ended.stderr


def test_exception_under_mpi4py() -> None:
    """An exception on one rank between two collectives, python -m mpi4py.

    Outcome: the job ends at once with its traceback, exit status 1.
    """
    assert "ValueError: no data" in run_ranks(3, [*PROGRAM, "raise_between", "1"], status=1).stderr


def test_exception_in_a_collective() -> None:
    """An exception inside a collective: bad input, no room, a missing file.

    Outcome: its own error there, PeerError elsewhere.
    """
    lines = run("raise_inside").stdout.splitlines()
    assert sorted(line.split()[1] for line in lines) == ["PeerError", "PeerError", "SpecError"]
    assert all("dtype object cannot be shared" in line for line in lines)


def test_different_arguments() -> None:
    """The same collective with different arguments.

    Outcome: MismatchError on all ranks, with both calls.
    """
    lines = errors(run("differ"), "MismatchError")
    assert len(lines) == 3
    assert all("ranks 0, 1: zeros(shape=(3,)" in line and "rank 2: zeros(shape=(4,)" in line for line in lines)


@pytest.mark.parametrize("nodes", ["", "block:2"])
def test_different_collectives(nodes: str) -> None:
    """Different collectives, with MPISHARE_CHECK=1.

    Outcome: MismatchError on all ranks of the node, with each call, its file and line.
    """
    ended = run("differ_in_collective", timeout_s="3", MPISHARE_CHECK="1", MPISHARE_NODES=nodes)
    lines = errors(ended, "MismatchError")
    assert len(lines) == 3
    assert all("fence at " in line and "zeros at " in line and "calls.py:" in line for line in lines)


def test_one_node_that_differs() -> None:
    """Ranks of one of several nodes that call different collectives, with MPISHARE_CHECK, and go on.

    Outcome: MismatchError on all ranks of all nodes; the next call works.
    """
    ended = run("differ_on_one_node", size=4, MPISHARE_CHECK="1", MPISHARE_NODES="block:2")
    assert (len(errors(ended, "MismatchError")), ended.stdout.count("right True")) == (4, 4)


def test_a_rank_that_does_not_come() -> None:
    """A rank that does not come, with MPISHARE_TIMEOUT.

    Outcome: StallError on the others: which, on which host.
    """
    lines = errors(run("do_not_come", timeout_s="1"), "StallError")
    assert len(lines) == 3  # the late one as well
    assert all("zeros at " in line and "have not come: rank 2 on host" in line for line in lines)


def test_calls_on_different_communicators() -> None:
    """Ranks that call on different communicators, with MPISHARE_TIMEOUT.

    Outcome: StallError: which rank waits in which call, its file and line.
    """
    lines = errors(run("call_on_another_communicator", timeout_s="1"), "StallError")
    assert any("rank 2 on host" in line and "on another communicator" in line for line in lines)
    assert any("waits in zeros at " in line and "calls.py:" in line for line in lines)


def test_the_first_call() -> None:
    """The first call on a communicator, to which a rank does not come.

    Outcome: StallError, without names.
    """
    lines = errors(run("do_not_come_first", timeout_s="1"), "StallError")
    assert sum("the first call on a communicator has waited 1 s" in line for line in lines) == 2


def test_a_call_after_a_stall() -> None:
    """A call after a StallError.

    Outcome: the same error at once, as the ranks no longer agree on what comes next.
    """
    assert len(errors(run("call_after_a_stall", timeout_s="1"), "StallError")) == 9


def test_messages_that_come_after_a_stall() -> None:
    """A StallError while messages into an array are on their way, and the array dropped.

    Outcome: they keep their memory: nobody else's bytes change, and no rank dies.
    """
    ended = run("receive_after_a_stall", status=1, timeout_s="1", MPISHARE_NODES="block:1", MPISHARE_RECYCLE="0")
    assert ended.stdout.count("right") == 3
    assert len(errors(ended, "StallError")) >= 2


def test_fork() -> None:
    """A fork after MPI_Init.

    Outcome: the child reads the arrays; a collective in it is an ArgumentError.
    """
    run("fork")


def test_store_from_c() -> None:
    """A store into a shared array from C: ctypes, Cython, numba.

    Outcome: SIGSEGV of the rank that stores, as its pages are read-only; the data of all others stay.
    """
    run("store_from_c")


def test_collect_in_any_order() -> None:
    """Garbage collection in different orders on different ranks.

    Outcome: nothing: to release is local.
    """
    run("collect_in_any_order")


def test_free_the_communicator() -> None:
    """The caller's communicator freed while views live.

    Outcome: nothing: the views stay.
    """
    run("free_the_communicator")


def test_threads() -> None:
    """Threads, each on its own communicator, with MPI_THREAD_MULTIPLE.

    Outcome: nothing: they do not disturb each other.
    """
    run("run_threads")
