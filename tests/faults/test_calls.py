"""Ranks that raise, that call something else, that do not come; forks, threads, and drops in any order."""

import re

import pytest

from tests.blackbox.launch import PLAIN, other_python, run_ranks
from tests.blackbox.launch import run as launch

pytestmark = pytest.mark.first
PROGRAM = ["-m", "tests.faults.programs.calls"]


def run(*args, size=3, status=0, timeout_s="", limit_s=300, **environ):
    """Runs a function of the program on ranks by plain python."""
    settings = {"MPISHARE_TIMEOUT": timeout_s, **environ}
    return run_ranks(size, [*PLAIN, *PROGRAM, *args], settings, status=status, limit_s=limit_s)


def errors(ended, name):
    """The errors that the ranks printed, all of them of the class `name`."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("error:")]
    assert all(re.match(f"error: {name} ", line) for line in lines)
    return lines


def test_exception_on_mpich():
    """An exception on one rank between two collectives, MPICH.

    Outcome: the job ends at once with its traceback, and MPI adds a line.
    """
    python = other_python("mpich")
    line = [python, "-m", "mpishare", "run", "-n", "4", "--", python, *PROGRAM, "raise_between", "1"]
    ended = launch(line, status="failure")
    assert ended.stderr.count("ValueError: no data") == 1


def test_a_rank_that_does_not_come():
    """A rank that does not come, with MPISHARE_TIMEOUT.

    Outcome: StallError on the others, which says in which call, at which line and on which host each of them waited, as
    does stderr; later calls raise it at once, as the ranks no longer agree on what comes next.
    """
    ended = run("come_late", "2", "3", timeout_s="1")
    lines = errors(ended, "StallError")
    assert len(lines) == 9  # of the late one as well
    assert all(re.search(r"zeros at .*calls.py:\d+, on rank \d on host", line) for line in lines)
    gave_up = re.findall(
        r"mpishare: rank (\d) on host .* gives up after 1 s .* in zeros at .*calls.py:\d+", ended.stderr
    )
    assert sorted(gave_up) == ["0", "1", "2"]


def test_a_task_that_takes_long(tmp_path):
    """A task of a map that takes longer than MPISHARE_TIMEOUT.

    Outcome: StallError on the ranks that wait.
    """
    lines = errors(run("take_long", "map", str(tmp_path), timeout_s="1"), "StallError")
    assert any(re.search("map at .*calls.py:.* has waited 1 s", line) for line in lines), lines


def test_a_long_wait_is_named_by_default():
    """A rank that waits for 60 s in a call, without MPISHARE_TIMEOUT.

    Outcome: one line on stderr: which rank, in which call, at which line, and how to end such waits.
    """
    ended = run("wait_long", MPISHARE_NODES="block:2")
    pattern = r"mpishare: rank (\d) has waited 1 s in (\w+) at .*calls.py:\d+; it is on host .*MPISHARE_TIMEOUT=600"
    lines = [line for line in ended.stderr.splitlines() if "has waited" in line]
    found = sorted(re.match(pattern, line).groups() for line in lines)
    assert found == sorted((rank, call) for rank in "02" for call in ("share", "recv", "topology", "fence")), lines


def test_messages_that_come_after_a_stall():
    """A StallError while messages into an array are on their way, and the array dropped.

    Outcome: they keep their memory: nobody else's bytes change, and no rank dies.
    """
    ended = run("receive_after_a_stall", status=1, timeout_s="1", MPISHARE_NODES="block:1", MPISHARE_RECYCLE="0")
    assert ended.stdout.count("right") == 3
    assert len(errors(ended, "StallError")) >= 2


def test_an_interrupted_transfer(tmp_path):
    """An exception from outside, such as a signal handler's, in the middle of bcast, put, share, save or load.

    Outcome: that rank raises it at once, and refuses the communicator from then on; the others wait for it until
    MPISHARE_TIMEOUT or the job's end. No array gets wrong values.
    """
    ended = run("interrupt", str(tmp_path), size=4, timeout_s="0.5", MPISHARE_NODES="block:2", MPISHARE_CHUNK="64K")
    assert set(ended.stdout.splitlines()) == {"bcast", "put", "share", "save", "load"}


@pytest.mark.parametrize(("nodes", "backend"), [("", "window"), ("block:2", "memmap")])
def test_an_exception_from_outside_at_any_instruction(nodes, backend):
    """An exception from outside at any instruction of a call, in windows and in files.

    Outcome: that rank raises it, the others PeerError or, after MPISHARE_TIMEOUT, StallError; the job goes on.
    """
    run("interrupt_anywhere", "share_and_gather", timeout_s="0.3", MPISHARE_NODES=nodes, MPISHARE_BACKEND=backend)


@pytest.mark.parametrize("nodes", ["", "block:2"])
def test_an_exception_from_outside_at_any_instruction_of_a_map(nodes):
    """The same of a `map`, on one node and on several, also twice in a row.

    Outcome: that rank raises it, or all ranks a TaskError of its class; the others PeerError or, after
    MPISHARE_TIMEOUT, StallError; the job goes on.
    """
    run("interrupt_anywhere", "map_tasks", timeout_s="3", MPISHARE_NODES=nodes)


@pytest.mark.parametrize(("place", "others"), [("window", "StallError"), ("task", "PeerError")])
def test_an_exception_from_outside_at_one_instruction(place, others):
    """The same before a rank comes to the others for a window, or where a task's end is noted; its traceback is kept.

    Outcome: that rank raises it, the others StallError or PeerError; calls on other communicators work.
    """
    ended = run("interrupt_before", place, timeout_s="0.5", MPISHARE_BACKEND="window")
    lines = sorted(ended.stdout.splitlines())
    assert lines == sorted(["FromOutside FromOutside", *[f"{others} {others}"] * 2])


def test_an_interrupted_transfer_ends_the_job():
    """The same without MPISHARE_TIMEOUT, plain python, where the program does not catch it.

    Outcome: the job ends at once with its traceback, exit status 130.
    """
    ended = run("end_by_an_interrupt", status=130, limit_s=60, MPISHARE_NODES="block:1", MPISHARE_CHUNK="64K")
    assert "KeyboardInterrupt, so the job ends" in ended.stderr


@pytest.mark.parametrize(("nodes", "backend"), [("", ""), ("block:2", "private")])
def test_a_root_that_cannot_copy_its_array(nodes, backend):
    """A root without memory to copy what it shares, on one node and on several.

    Outcome: its MemoryError, PeerError on the others; the next call works.
    """
    ended = run("fail_to_copy", size=4, MPISHARE_NODES=nodes, MPISHARE_BACKEND=backend)
    assert ended.stdout.split() == ["True"] * 12


def test_threads():
    """Threads, each on its own communicator, with MPI_THREAD_MULTIPLE.

    Outcome: nothing: they do not disturb each other.
    """
    run("run_threads")
