"""Runs the programs of the JSON file argv[1], each a list of blocks of code, on all ranks; prints the outcomes.

The programs run one after the other. Each has a namespace of its own, in which its blocks go on from one to the next,
and a working folder of its own, empty and the same on all ranks, whose name is `folder`.
"""

import gc
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from mpi4py import MPI

comm = MPI.COMM_WORLD


def outcome(code, namespace):
    """What each rank printed, and the error that it raised."""
    printed, raised = io.StringIO(), ""
    with redirect_stdout(printed):
        try:
            exec(compile(code, "block", "exec"), namespace)
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
    return {"printed": comm.allgather(printed.getvalue()), "raised": comm.allgather(raised)}


def outcomes(blocks):
    """Those of the blocks of a program."""
    start = Path.cwd()
    with TemporaryDirectory() as own:
        folder = comm.bcast(own)
        os.chdir(folder)
        namespace = {"__name__": "__main__", "folder": folder}
        result = [outcome(code, namespace) for code in blocks]
        os.chdir(start)
        comm.Barrier()
    namespace.clear()  # numba keeps the functions that it has compiled, and so what they could see
    gc.collect()
    gc.freeze()  # what modules keep need not be searched after each program
    return result


results = [outcomes(blocks) for blocks in json.loads(Path(sys.argv[1]).read_text())]
if comm.rank == 0:
    print(json.dumps(results))
