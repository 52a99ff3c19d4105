"""progress=True under a launcher: a bar where the launcher has a terminal, lines where it has none."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

import pytest

from tests.blackbox.launch import ROOT, environment, run_code

TASKS = """
import sys, time
import numpy as np
import mpishare as ms
from mpishare import progress_bar
progress_bar._LINE_S = float(sys.argv[1])
ms.map(time.sleep, [0.005] * 100, progress=True)
ms.save(sys.argv[2], ms.share(np.zeros(1 << 20)), progress=True)
ms.load(sys.argv[2], progress=True)
"""


@pytest.fixture
def program(tmp_path):
    """Its path and its arguments: how long a log has no line, and a file."""
    (tmp_path / "program.py").write_text(TASKS)
    return [str(tmp_path / "program.py"), "10", str(tmp_path / "a.npy")]


def test_a_bar_on_the_terminal_of_the_launcher(program):
    """As a user starts it in a shell: standard error of `mpishare run` is a terminal, of the ranks a pipe."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 70, 0, 0))
    command = [sys.executable, "-m", "mpishare", "run", "-n", "2", *program]
    with subprocess.Popen(command, cwd=ROOT, env=environment({}), stdin=subprocess.DEVNULL, stderr=slave) as process:
        os.close(slave)
        text = b"".join(iter(lambda: read(master), b"")).decode()
    os.close(master)
    assert process.returncode == 0, text
    bars = [bar.strip("\n") for bar in text.split("\r") if "|" in bar]
    assert len([bar for bar in bars if "/100 [" in bar]) > 2
    assert [f"{size}/{size} [" in text for size in ("100", "8.00M")] == [True] * 2
    assert text.count("8.00M/8.00M") >= 2  # of save and load
    assert max(map(len, bars)) <= 70


def read(terminal):
    """What was written to a terminal, nothing once no process has it open any more."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


@pytest.mark.parametrize(("seconds", "has_lines"), [("10", False), ("0.02", True)])
def test_lines_where_there_is_no_terminal(program, seconds, has_lines):
    """As in the log of a batch job, or under plain mpiexec. Work that takes no time leaves none."""
    path, _, file = program
    err = run_code(2, f"import sys; sys.argv[1:] = {[seconds, file]}; exec(open({path!r}).read())").stderr
    assert "\r" not in err
    lines = [line for line in err.splitlines() if "/100 [" in line]
    assert (len(lines) > 2) == has_lines == bool(lines)
    assert not lines or lines[-1].startswith("100% 100/100")
