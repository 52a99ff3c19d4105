"""Has system calls of this process fail, end it, or take long, by strace."""

import os
import subprocess
from contextlib import contextmanager

WHEN_TOLD = ["sh", "-c", 'read -r line; exec "$@"', "sh"]
"""Runs a command once a line has come, so that no fault comes to the calls by which Popen starts it."""


@contextmanager
def injected(call, fault, log="/dev/null"):
    """While the block runs, `fault` comes to calls of `call`, as in strace(1): `error=EIO:when=2`."""
    command = ["strace", "-f", "-p", str(os.getpid()), "-o", str(log), "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:{fault}"]
    with subprocess.Popen([*WHEN_TOLD, *command], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as tracer:
        tracer.stdin.write(b"\n")
        tracer.stdin.flush()
        line = tracer.stderr.readline()
        assert b" attached" in line, line
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait()
