"""Runs blocks of code, the strings of the JSON file argv[1], one after the other on all ranks; prints the outcomes.

Each has a namespace of its own, with the name of an empty folder.
"""

import gc
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi4py import MPI

comm = MPI.COMM_WORLD


def outcome(code, folder):
    """Its output, and the error that it raised."""
    printed, raised = io.StringIO(), ""
    known = {"__name__": "__main__", "folder": folder}
    with redirect_stdout(printed):
        try:
            exec(compile(code, "block", "exec"), known)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
    known.clear()  # numba keeps the functions that it has compiled, and so what they could see
    return printed.getvalue(), raised


outcomes = []
for code in json.loads(Path(sys.argv[1]).read_text()):
    with TemporaryDirectory() as folder:
        printed, raised = outcome(code, folder)
        outcomes.append({"printed": comm.allgather(printed), "raised": comm.allgather(raised)})
    gc.collect()
if comm.rank == 0:
    print(json.dumps(outcomes))
