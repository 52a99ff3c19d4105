"""joblib's own tests on the ranks of a job."""

import os
import sys
from pathlib import Path

import pytest
from mpi4py import MPI

from mpishare.compat.joblib import register
from tests.originals import source_of

CHANGES = {
    'PROCESS_BACKENDS = ["multiprocessing", "loky"]': 'PROCESS_BACKENDS = ["mpishare"]',
    "RETURN_GENERATOR_BACKENDS = BACKENDS.copy()": 'RETURN_GENERATOR_BACKENDS = {"mpishare": BACKENDS["mpishare"]}',
    'RETURN_GENERATOR_BACKENDS.pop("multiprocessing", None)': "",
    "ALL_VALID_BACKENDS = [None] + sorted(BACKENDS.keys())": 'ALL_VALID_BACKENDS = ["mpishare"]',
    "ALL_VALID_BACKENDS += [BACKENDS[backend_str]() for backend_str in BACKENDS]": "",
    'ALL_VALID_BACKENDS.append(mp.get_context("spawn"))': "pass",
    "task_time = 2.0 / n_inputs": "task_time = 0.2 / n_inputs",
}


def run_tests(comm, folder, args):
    """Runs joblib's tests of backends, with its own ones changed to ours; returns pytest's exit status."""
    sys.path.append(folder)  # where the other ranks find the tasks
    if comm.rank == 0:
        text = source_of("joblib", "test/test_parallel.py")
        for before, after in CHANGES.items():
            assert before in text, before
            text = text.replace(before, after)
        Path(folder, "test_original.py").write_text(text)
    comm.Barrier()
    with register():
        return pytest.main([folder, "-c", os.devnull, "-p", "no:cacheprovider", "-q", "--color=no", *args])


if __name__ == "__main__":
    raise SystemExit(run_tests(MPI.COMM_WORLD, sys.argv[1], sys.argv[2:]))
