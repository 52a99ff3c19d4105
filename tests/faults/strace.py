"""Has system calls of this process fail, end it, or take long, by strace."""

import os
import subprocess
from contextlib import contextmanager


@contextmanager
def injected(call, fault, log="/dev/null"):
    """While the block runs, `fault` comes to calls of `call`, as in strace(1): `error=EIO:when=2`."""
    command = ["strace", "-f", "-p", str(os.getpid()), "-o", str(log), "-e", f"trace={call}"]
    with subprocess.Popen([*command, "-e", f"inject={call}:{fault}"], stderr=subprocess.PIPE) as tracer:
        line = tracer.stderr.readline()
        assert b" attached" in line, line
        try:
            yield
        finally:
            tracer.terminate()
