"""Runs mpi4py's own tests of MPI_COMM_SELF with the names of `comm.serial` in the place of mpi4py.MPI.

    python -m tests.blackbox.programs.mpi4py_tests

Prints how many there are, and the names of those that do not pass, as JSON. They run as by mpi4py's test/main.py, which
hides numba and cupy. Left out are its arrays that claim to lie on a GPU, and those of dlpackimpl, whose memory NumPy
may not keep past a call.
"""

import json
import pickle
import re
import sys
import unittest
from importlib import import_module
from types import SimpleNamespace
from typing import Any, cast

from mpishare.comm import serial
from tests.originals import original

FILES = (
    *("test_cco_buf", "test_cco_obj", "test_cco_vec", "test_cco_nb_buf", "test_cco_nb_vec", "test_comm"),
    *("test_msgspec", "test_p2p_buf", "test_p2p_obj"),
)

ELSEWHERE = re.compile("CAI|CuPy|DLPack|Numba|RMA|VectorW")
"""Classes of test_msgspec that need memory of GPUs, dlpackimpl, windows or Alltoallw."""

NEEDED = {
    "Alloc_mem": bytearray,
    "Attach_buffer": lambda _: None,
    "BSEND_OVERHEAD": 0,
    "DATATYPE_NULL": None,
    "Detach_buffer": lambda: None,
    "Free_mem": lambda _: None,
    "Get_version": lambda: (4, 1),
    "MESSAGE_NO_PROC": object(),
    "get_vendor": lambda: ("mpishare", (0, 0, 0)),
    "pickle": pickle,
}
"""Names of mpi4py.MPI that the tests themselves use, and that no communicator has."""


def replace_mpi4py():
    """Has `from mpi4py import MPI` give the names of `comm.serial`."""
    modules: dict[str, Any] = dict.fromkeys(("numba", "cupy", "dlpackimpl"))  # which cannot be imported
    modules["mpi4py.MPI"] = mpi = SimpleNamespace(**{**vars(serial), **NEEDED})
    sys.modules.update(modules, mpi4py=cast("Any", SimpleNamespace(MPI=mpi)))
    sys.path.insert(0, str(original("mpi4py") / "test"))


def is_bound_to_self(file, item):
    """Whether an item of a file is a class of tests for MPI_COMM_SELF. Those of test_msgspec say so in a function."""
    if not (isinstance(item, type) and issubclass(item, unittest.TestCase) and item.__module__ == file):
        return False
    return item.__name__.endswith(("Self", "SelfDup")) or (
        file == "test_msgspec" and not ELSEWHERE.search(item.__name__)
    )


def load_tests():
    """The tests of all files."""
    replace_mpi4py()
    arrays = import_module("arrayimpl")
    arrays.ArrayBackends[:] = [kind for kind in arrays.ArrayBackends if not issubclass(kind, arrays.BaseFakeGPUArray)]
    for file in FILES:
        for item in vars(import_module(file)).values():
            if is_bound_to_self(file, item):
                yield from unittest.defaultTestLoader.loadTestsFromTestCase(item)


def names(outcomes):
    """The names of tests, of which a test may have several outcomes."""
    return sorted({getattr(test, "test_case", test).id() for test, _ in outcomes})


if __name__ == "__main__":
    result = unittest.TextTestRunner(sys.stderr).run(unittest.TestSuite(load_tests()))
    failed = names([*result.failures, *result.errors])
    print(json.dumps({"run": result.testsRun, "failed": failed, "skipped": names(result.skipped)}))
