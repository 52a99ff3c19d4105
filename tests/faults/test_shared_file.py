"""Where the nameless file of a node's memory cannot be made, or handed to the other ranks, as it is elsewhere."""

import os

from tests.blackbox.launch import run_code

SHARE = """
import os, numpy as np, mpishare as ms
from mpi4py import MPI
table = ms.share(np.arange(1e6) if MPI.COMM_WORLD.rank == 0 else None, backend="memmap")
assert (table == np.arange(1e6)).all()
print(ms.report().segments[0].backend)
"""


def test_a_python_without_memfd_create(tmp_path):
    """A Python without os.memfd_create, as those of miniforge and uv.

    Outcome: nothing: the system call is made by its number.
    """
    (tmp_path / "sitecustomize.py").write_text("import os; del os.memfd_create")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = run_code(2, f"import os; assert not hasattr(os, 'memfd_create'){SHARE}", {"PYTHONPATH": path})
    assert ended.stdout == "memmap in memory\n" * 2
