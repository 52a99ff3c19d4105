"""progress=True under a launcher that has a terminal; tests/unit/test_progress_bar.py has lines in a log."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

from tests.blackbox.launch import ROOT, environment

TASKS = """
import sys, time
import numpy as np
import mpishare as ms
ms.map(time.sleep, [0.005] * 100, progress=True)
ms.save(sys.argv[1], ms.share(np.zeros(1 << 20)), progress=True)
ms.load(sys.argv[1], progress=True)
"""


def test_a_bar_on_the_terminal_of_the_launcher(tmp_path):
    """As a user starts it in a shell: standard error of `mpishare run` is a terminal, of the ranks a pipe."""
    (tmp_path / "program.py").write_text(TASKS)
    program = [str(tmp_path / "program.py"), str(tmp_path / "a.npy")]
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
