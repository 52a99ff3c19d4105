"""The file of a checkpoint: any byte that is altered is noticed."""

import json
from functools import reduce
from operator import getitem
from zlib import crc32

import numpy as np
import pytest

import mpishare as ms
from mpishare.checkpoints import contents
from mpishare.checkpoints.contents import DAMAGE, FORMAT, HEADER, CheckpointFile
from mpishare.files import replace_file
from mpishare.files.input_file import InputFile
from tests.arrays import filled

ARRAYS = {"grid": filled(np.dtype("f8"), (9, 4)), "more": filled(np.dtype("i2"), (3,)), "none": np.ones((0, 2))}


def saved(folder, arrays, values=None):
    """The file of a checkpoint of one rank."""
    ms.Checkpoint(folder, comm=ms.SELF).save(2, arrays, values=values)
    return folder / "000000000002.h5"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A checkpoint whose longest run has 64 bytes."""
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", 64)
    return saved(tmp_path, ARRAYS, {"time": 0.5})


def verified(path):
    """The contents, after all of the file has been read."""
    with InputFile(str(path)) as source:
        contents = CheckpointFile.read(source)
        for run in contents.runs:
            run.read(source.descriptor)
    return contents


def test_any_byte_that_is_altered_or_missing_is_noticed(path):
    contents, saved = verified(path), path.read_bytes()
    assert (contents.step, contents.values) == (2, '{"time": 0.5}')
    cuts = (saved[:end] for end in range(0, len(saved), 99))
    flips = (saved[:place] + bytes([byte ^ 1 << place % 8]) + saved[place + 1 :] for place, byte in enumerate(saved))
    for altered in (*cuts, *flips, saved + b"\0"):
        path.write_bytes(altered)
        with pytest.raises(DAMAGE):
            verified(path)


HOSTILE = [
    (["gaps"], []),
    (["arrays"], []),
    (["gaps", 0, 0], 1 << 61),
    (["gaps", 0, 1], 1 << 61),
    (["arrays", "grid", "at"], 1 << 70),
    (["arrays", "grid", "checks"], [1]),
    (["arrays", "grid", "dtype"], ["f8", [1], [1], [1]]),
]


@pytest.mark.parametrize(("place", "value"), HOSTILE)
def test_a_manifest_that_does_not_fit_the_file_is_noticed(path, place, value):
    saved = path.read_bytes()
    magic, version, _, length, block_bytes = HEADER.unpack_from(saved)
    manifest = json.loads(saved[HEADER.size :][:length])
    reduce(getitem, place[:-1], manifest)[place[-1]] = value
    text = json.dumps(manifest).encode()
    header = HEADER.pack(magic, version, crc32(text, FORMAT - 1), len(text), block_bytes)
    path.write_bytes((header + text).ljust(block_bytes, b"\0") + saved[block_bytes:])
    with pytest.raises(DAMAGE):
        verified(path)


@pytest.mark.parametrize("count", [0, 1, 10, 100])
def test_sizes_that_files_depend_on(tmp_path, count):
    """The user block is a power of two from 512 on, as HDF5 demands; another block size is another version."""
    assert replace_file.BLOCK_BYTES == 4 << 20
    path = saved(tmp_path, {f"grid {number}": ARRAYS["grid"] for number in range(count)})
    nbytes = HEADER.unpack_from(path.read_bytes())[-1]
    assert nbytes.bit_count() == 1
    assert 512 <= nbytes <= 1024 + 512 * count


def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "_LARGEST_USER_BLOCK_BYTES", 1024)
    with pytest.raises(ms.SpecError, match="values and names take more than 512"):
        saved(tmp_path, {}, {"long": "1" * 1000})
    assert list(tmp_path.iterdir()) == []
