"""The file of a checkpoint: any byte that is altered is noticed, and any range of an array is read."""

import json
from dataclasses import replace
from functools import reduce
from operator import getitem
from zlib import crc32

import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.checkpoints import contents
from mpishare.checkpoints.contents import DAMAGE, FORMAT, HEADER, CheckpointFile, CheckpointWriter
from mpishare.errors import SpecError
from mpishare.files import replace_file
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.input_file import InputFile
from mpishare.files.replace_file import RowBlocks
from tests.arrays import filled

ARRAYS = {"grid": filled(np.dtype("f8"), (9, 4)), "more": filled(np.dtype("i2"), (3,)), "none": np.ones((0, 2))}
LENGTHS = {"grid": [2, 0, 4, 3], "more": [1, 1, 1, 0], "none": [0, 0, 0, 0]}
"""The rows of each of four ranks."""


def written(path, by_name):
    """A checkpoint of `ARRAYS`, written as the root does."""
    writer = CheckpointWriter(2, json.dumps({"time": 0.5}))
    with AtomicFile(path) as new:
        offsets = writer.lay_out(new, by_name)
        blocks = [replace(array, offset=offset) for array, offset in zip(by_name.values(), offsets, strict=True)]
        checksums = []
        for name, array in zip(by_name, blocks, strict=True):
            data = ARRAYS[name.split()[0]].tobytes()
            write_exactly(new.fd, array.offset, memoryview(data))
            parts = [data[run.offset - array.offset :][: run.nbytes] for run in array.all_runs()]
            checksums.append(np.array([crc32(part) for part in parts], np.uint32))
        writer.complete(new, dict(zip(by_name, blocks, strict=True)), checksums)
        new.commit()
    return path


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A checkpoint of four ranks, whose longest run has 64 bytes."""
    monkeypatch.setattr(replace_file, "BLOCK_BYTES", 64)
    blocks = {name: RowBlocks.of_rows(Spec.of(array), LENGTHS[name]) for name, array in ARRAYS.items()}
    return written(tmp_path / "2.h5", blocks)


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


@pytest.mark.parametrize("name", ARRAYS)
def test_any_range_and_any_run_is_read(path, name):
    part, data = verified(path).arrays[name], ARRAYS[name].tobytes()
    assert part.spec == Spec.of(ARRAYS[name])
    block = np.zeros(len(data), np.uint8)
    with InputFile(str(path)) as source:
        for start in range(0, len(data), 7):
            for stop in range(start, len(data) + 1, 5):
                part.read(source, block[: stop - start], start=start)
                assert block[: stop - start].tobytes() == data[start:stop]
        block[:] = 0
        tiles = list(part.tiles(source, 1))
        for tile in reversed(tiles):
            tile.read(block)
    assert block.tobytes() == data
    assert name != "grid" or [tile.first for tile in tiles] == [64 * n for n in range(5)]


@pytest.mark.parametrize("count", [0, 1, 10, 100])
def test_sizes_that_files_depend_on(tmp_path, count):
    """The user block is a power of two from 512 on, as HDF5 demands; another block size is another version."""
    assert replace_file.BLOCK_BYTES == 4 << 20
    blocks = {f"grid {number}": RowBlocks.of_root(Spec.of(ARRAYS["grid"]), 2) for number in range(count)}
    path = written(tmp_path / "2.h5", blocks)
    assert verified(path).arrays.keys() == blocks.keys()
    nbytes = HEADER.unpack_from(path.read_bytes())[-1]
    assert nbytes.bit_count() == 1
    assert 512 <= nbytes <= 1024 + 512 * count


def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "_LARGEST_USER_BLOCK_BYTES", 1024)
    with pytest.raises(SpecError, match="values and names take more than 512"), AtomicFile(tmp_path / "2.h5") as new:
        CheckpointWriter(2, "1" * 1000).lay_out(new, {})
