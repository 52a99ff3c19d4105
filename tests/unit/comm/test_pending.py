"""Memory that MPI may still read or write."""

import subprocess
import sys

PROGRAM = """
from mpishare.comm.requests import keep_alive
class Buffer:
    def __del__(self): print("freed", flush=True)
keep_alive([Buffer()])
"""


def test_what_is_kept_alive_outlives_python():
    """MPI_Finalize, which receives what has arrived late, comes after the end of Python."""
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True).stdout == b""
