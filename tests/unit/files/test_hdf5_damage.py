"""HDF5 files with damaged headers are loaded or refused. A process of its own reads them, as HDF5 may abort."""

import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpishare.errors import MpishareError
from mpishare.files.listing import stored
from tests.unit.files.reading import loaded

N_FILES = 400
HEADER_BYTES = 96
SIGNATURES = rb"\x89HDF|TREE|HEAP|SNOD|OHDR|OCHK|FRHP|BTHD|BTLF|FHDB|FAHD|EAHD"
"""What the superblock, B-trees, heaps, nodes of symbols and object headers begin with, and indices of chunks."""


def write(path, libver):
    with h5py.File(path, "w", libver=libver) as file:
        file["plain"] = np.arange(24.0).reshape(4, 6)
        file.create_dataset("group/chunked", data=np.arange(300), chunks=(50,), compression="gzip", fletcher32=True)
        file["group/rows"] = np.zeros(5, [("id", "i4"), ("name", "S5")])
        file["text"] = ["a", "bb"]
        file["text"].attrs["unit"] = "K"
        file["link"] = h5py.SoftLink("/group/rows")


def headers_in(path):
    """Where the headers begin. In older versions those of objects have no signature, but h5py knows their addresses."""
    with h5py.File(path) as file:
        objects = [file[name] for name in ("/", "plain", "group", "group/chunked", "group/rows", "text")]
        addresses = [h5py.h5o.get_info(member.id).addr for member in objects]
    return sorted({*addresses, *(found.start() for found in re.finditer(SIGNATURES, path.read_bytes()))})


def read_damaged(path, first):
    """Reads the file with another byte of a header damaged each time, and prints the number of each such file."""
    content, rng = path.read_bytes(), np.random.default_rng(5)
    for number, header in enumerate(rng.choice(headers_in(path), N_FILES)):
        at = int(header + rng.integers(HEADER_BYTES)) % len(content)
        damaged = bytearray(content)
        damaged[at] = int(rng.choice([0, 0xFF, damaged[at] ^ 1, damaged[at] ^ 0x80]))
        if number < first:
            continue
        other = path.with_name("damaged")
        other.write_bytes(damaged)
        try:
            if sum(array.nbytes for array in stored(other).values()) < 1 << 20:
                loaded(other, tile_bytes=1 << 20)
        except MpishareError as error:
            assert str(path.parent) in str(error), error  # noqa: PT017 - what comes first decides
        print(number, flush=True)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damaged_headers(tmp_path, libver):
    """Where HDF5 ends the process, the next one goes on behind that file."""
    write(tmp_path / "whole", libver)
    first, aborted = 0, []
    while first < N_FILES:
        command = [sys.executable, "-m", __name__, str(tmp_path / "whole"), str(first)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode <= 0, done.stderr
        read = done.stdout.split()
        first = int(read[-1]) + 1 if read else first
        if done.returncode:
            aborted.append(first)
            first += 1
            assert len(aborted) < N_FILES // 100, (aborted, done.stderr)


if __name__ == "__main__":
    read_damaged(Path(sys.argv[1]), int(sys.argv[2]))
