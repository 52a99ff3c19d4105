"""Whole programs that load: who imports h5py."""

import h5py
import numpy as np

from tests.blackbox.launch import run_code

CODE = """
import sys, mpishare as ms
assert all(ms.load({path!r}, name).sum() == 499500 for name in ("flat", "chunked"))
print(ms.topology().rank, "h5py" in sys.modules)
"""


def test_h5py_is_imported_where_it_reads(tmp_path):
    """One rank looks at the file and reads small datasets; a contiguous one is read without h5py."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file["flat"] = np.arange(1000)
        file.create_dataset("chunked", data=np.arange(1000), chunks=(10,))
    output = run_code(4, CODE.format(path=path), {"MPISHARE_NODES": "block:2"}).stdout
    assert sorted(output.splitlines()) == ["0 True", "1 False", "2 False", "3 False"]
