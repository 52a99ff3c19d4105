"""What a program prints that ends by an error: one mistake, one traceback, whatever the number of ranks."""

import re

import pytest

from tests.blackbox.launch import PLAIN, run_ranks

pytestmark = pytest.mark.first
HEAD = "import mpishare as ms, numpy as np\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nms.topology()\n"
# For each mistake whether plain Python runs it, the code, and who says that the job ends.
MISTAKES = {
    "an argument": (True, "ms.share(np.arange(3.0), root=7)", "rank 0 on host * ended by ArgumentError"),
    "a keyword": (False, "ms.share(np.arange(3.0), rooot=0)", "rank 0 on host * ended by TypeError"),
    "a task": (True, "ms.map(lambda x: 1 / x, [0, 1, 2])", "rank 0 on host * ended by TaskError[ZeroDivisionError]"),
    "of one rank": (False, "ms.zeros(-3 if rank == 1 else 3)", "rank 1 on host * ended by SpecError"),
    "on one rank": (True, "if rank == 1: raise ValueError\nms.zeros(3)", "rank 1 on host * ended by ValueError"),
    "on one rank, mpi4py": (
        False,
        "if rank == 1: raise ValueError\nms.zeros(3)",
        "rank 1 on host * ended by ValueError",
    ),
}


def end_of(folder, code, *, size=3, is_plain=True, environ=None):
    """The lines of stderr of a program that fails, without those of MPI and its launcher. "[warn]" is libevent's."""
    (program := folder / "program.py").write_text(f"{code}\n")
    ended = run_ranks(size, [*(PLAIN if is_plain else []), str(program)], environ, status=1)
    text = re.sub(r"^-{60,}\n(.|\n)*?^-{60,}\n", "", ended.stderr.replace("\0", ""), flags=re.MULTILINE)
    of_mpi = re.compile(r"Abort\(1\)|\[warn\]|\[.+\] PMIX ERROR")
    return [line for line in text.splitlines() if line.strip() and not of_mpi.match(line)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake(mistake, tmp_path):
    """An exception on all ranks, or on one rank between two collectives; plain python, or python -m mpi4py.

    Outcome: the job ends at once with the traceback of one rank, which is named, exit status 1.
    """
    is_plain, code, last = MISTAKES[mistake]
    lines = end_of(tmp_path, HEAD + code, is_plain=is_plain)
    assert re.sub(" on host [^ ]+ ", " on host * ", lines[-1]) == f"mpishare: {last}, so the job ends"
    assert sum(line.startswith("mpishare: ") for line in lines) == 1


def test_errors_that_differ_are_told_by_the_first_rank(tmp_path):
    lines = end_of(tmp_path, f"{HEAD}ms.share(0, root=8 + rank % 2)", size=4)
    assert sum(line.startswith("Traceback") for line in lines) == 1
    assert re.fullmatch(r"mpishare: other ranks failed by other errors; ranks 1, 3: ArgumentError: root .*", lines[-2])
    assert re.fullmatch(r"mpishare: rank 0 on host \S+ ended by ArgumentError, so the job ends", lines[-1])


@pytest.mark.parametrize("late", [0, 5])
def test_ranks_that_give_up_at_one_line_print_one_traceback(tmp_path, late):
    """They know nothing of each other, as one of them may have no error."""
    code = f"{HEAD}import time\nif rank == {late}: time.sleep(60)\nms.zeros(3)"
    lines = end_of(tmp_path, code, size=6, environ={"MPISHARE_TIMEOUT": "1"})
    assert sum("gives up after 1 s" in line for line in lines) == 5
    assert sum(line.startswith("Traceback") for line in lines) == 1
    assert sum(line.endswith("ended by StallError, so the job ends") for line in lines) == 1


def test_a_peer_error_whose_cause_is_caught(tmp_path):
    """It ends the job, as the rank with the cause may wait."""
    code = f"{HEAD}try: ms.zeros(3 if rank else -3)\nexcept ms.SpecError: ms.zeros(3)"
    lines = end_of(tmp_path, code, size=2)
    assert re.fullmatch(r".*PeerError: rank 0 .* failed: SpecError: .*", lines[-2])
    assert re.fullmatch(r"mpishare: rank 1 on host .* ended by PeerError, so the job ends", lines[-1])


def test_the_hook_of_the_program_is_called(tmp_path):
    """On the rank that prints. Where all ranks end, the functions of `atexit` run on all."""
    code = "import atexit, sys\nsys.excepthook = lambda kind, *_: print('own', kind.__name__, file=sys.stderr)\n"
    hook, last = end_of(tmp_path, f"{code}{HEAD}atexit.register(MPI.COMM_WORLD.Barrier)\nms.zeros(-3)")
    assert hook == "own SpecError"
    assert last.startswith("mpishare: rank 0 on host ")


def test_a_switch(tmp_path):
    """For a program or a library with a hook of its own."""
    code = "import sys; print(sys.excepthook is sys.__excepthook__, file=sys.stderr)\nif rank == 0: sys.exit('end')"
    assert end_of(tmp_path, HEAD + code, size=1, environ={"MPISHARE_EXCEPTHOOK": "0"}) == ["True", "end"]


LOGS = {
    "": "mpishare: ",
    "import logging; logging.basicConfig(format='%(name)s, %(levelname)s: %(message)s')\n": "mpishare, WARNING: ",
    "import logging; logging.getLogger('mpishare').setLevel(logging.ERROR)\n": None,
}


@pytest.mark.parametrize("setup", LOGS, ids=["no logging", "basicConfig", "silenced"])
def test_an_unknown_setting_is_one_warning_of_the_log(setup):
    code = f"{setup}{HEAD}ms.topology(MPI.COMM_SELF)"
    ended = run_ranks(2, [*PLAIN, "-c", code], {"MPISHARE_TIMEUOT": "3"})
    text = "warning: MPISHARE_TIMEUOT is no setting; did you mean MPISHARE_TIMEOUT?\n"
    assert ended.stderr == ("" if LOGS[setup] is None else f"{LOGS[setup]}{text}")
