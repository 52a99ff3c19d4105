"""What a program prints that ends by an error: one mistake, one traceback, whatever the number of ranks."""

import re

import pytest

from tests.blackbox.launch import PLAIN, run_ranks

HEAD = "import mpishare as ms, numpy as np\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nms.topology()\n"
MISTAKES = {
    "an argument": ("ms.share(np.arange(3.0), root=7)", "rank 0 on host * ended by ArgumentError"),
    "a keyword": ("ms.share(np.arange(3.0), rooot=0)", "rank 0 on host * ended by TypeError"),
    "a file": ("ms.load('nothere.npy')", "rank 0 on host * ended by FileError"),
    "a task": ("ms.map(lambda x: 1 / x, [0, 1, 2])", "rank 0 on host * ended by TaskError[ZeroDivisionError]"),
    "of one rank": ("ms.zeros(-3 if rank == 1 else 3)", "rank 1 on host * ended by SpecError"),
    "on one rank": ("if rank == 1: raise ValueError\nms.zeros(3)", "rank 1 on host * ended by ValueError"),
}


def lines_of(ended):
    """The lines of stderr without those of MPI and its launcher, in which "[warn]" is libevent."""
    text = re.sub(r"^-{60,}\n(.|\n)*?^-{60,}\n", "", ended.stderr.replace("\0", ""), flags=re.MULTILINE)
    of_mpi = re.compile(r"Abort\(1\)|\[warn\]|\[.+\] PMIX ERROR")
    return [line for line in text.splitlines() if line.strip() and not of_mpi.match(line)]


@pytest.fixture(params=["plain python", "mpi4py"])
def end_of(request, tmp_path):
    """Runs a program that ends by an error; returns the lines that it prints."""
    python = PLAIN if request.param == "plain python" else []

    def run_program(code, size=4, environ=None, head=HEAD):
        (program := tmp_path / "program.py").write_text(f"{head}{code}\n")
        return lines_of(run_ranks(size, [*python, str(program)], environ, status=1))

    return run_program


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake(mistake, end_of):
    """The traceback of one rank, which is named; the errors that Python chains to it are part of it."""
    code, last = MISTAKES[mistake]
    lines = end_of(code)
    assert re.sub(" on host [^ ]+ ", " on host * ", lines[-1]) == f"mpishare: {last}, so the job ends"
    assert sum(line.startswith("mpishare: ") for line in lines) == 1


def test_on_many_ranks(end_of):
    assert sum(line.startswith("mpishare: ") for line in end_of("ms.zeros(-3)", size=9)) == 1


DIFFERENT = {
    "of several ranks": ("ms.share(0, root=rank + 8)", {0, 1, 2, 3}),
    "of several ranks alike": ("ms.share(0, root=8 + rank % 2)", {0, 1}),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_errors_that_differ_are_printed_once_each(case, end_of):
    """At least the first; its end may end the other ranks before they print theirs."""
    code, ranks = DIFFERENT[case]
    printed = re.findall(r"rank (\d+) on host \S+ ended by ArgumentError", "\n".join(end_of(code)))
    assert {*map(int, printed)} <= ranks
    assert len({*printed}) == len(printed) > 0


def test_a_peer_error_whose_cause_is_caught(end_of):
    """It ends the job, as the rank with the cause may wait."""
    lines = end_of("try: ms.zeros(3 if rank else -3)\nexcept ms.SpecError: ms.zeros(3)", size=2)
    assert re.fullmatch(r".*PeerError: rank 0 .* failed: SpecError: .*", lines[-2])
    assert re.fullmatch(r"mpishare: rank 1 on host .* ended by PeerError, so the job ends", lines[-1])


def test_the_hook_of_the_program_is_called(end_of):
    """On the rank that prints. Where all ranks end, the functions of `atexit` run on all."""
    code = "import atexit, sys\nsys.excepthook = lambda kind, *_: print('own', kind.__name__, file=sys.stderr)\n"
    hook, last = end_of(f"{HEAD}atexit.register(MPI.COMM_WORLD.Barrier)\nms.zeros(-3)", head=code)
    assert hook == "own SpecError"
    assert last.startswith("mpishare: rank 0 on host ")


def test_a_switch(end_of):
    """For a program or a library with a hook of its own."""
    code = "import sys; print(sys.excepthook is sys.__excepthook__, file=sys.stderr)\nif rank == 0: sys.exit('end')"
    assert end_of(code, size=1, environ={"MPISHARE_EXCEPTHOOK": "0"}) == ["True", "end"]


def test_an_unknown_setting_is_one_warning():
    ended = run_ranks(4, [*PLAIN, "-c", f"{HEAD}ms.topology(MPI.COMM_SELF)"], {"MPISHARE_TIMEUOT": "3"})
    assert ended.stderr == "mpishare: warning: MPISHARE_TIMEUOT is no setting; did you mean MPISHARE_TIMEOUT?\n"
