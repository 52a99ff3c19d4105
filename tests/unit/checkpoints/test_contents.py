"""The file of a checkpoint: any byte that is altered is noticed, and any range of an array is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from mpishare.arrays.spec import Spec
from mpishare.checkpoints import manifest
from mpishare.checkpoints.contents import DAMAGE, CheckpointWriter, Contents
from mpishare.files import row_blocks
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.row_blocks import RowBlocks
from mpishare.files.source import Source
from tests.arrays import filled

ARRAYS = {"grid": filled(np.dtype("f8"), (9, 4)), "more": filled(np.dtype("i2"), (3,)), "none": np.ones((0, 2))}
LENGTHS = {"grid": [2, 0, 4, 3], "more": [1, 1, 1, 0], "none": [0, 0, 0, 0]}

Change = Callable[[bytearray], object]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of four ranks, written as the root does."""
    monkeypatch.setattr(row_blocks, "BLOCK_BYTES", 64)
    path = tmp_path / "2.h5"
    by_name = {name: RowBlocks.of_rows(Spec.of(array), LENGTHS[name]) for name, array in ARRAYS.items()}
    writer = CheckpointWriter(2, json.dumps({"time": 0.5}), by_name)
    with AtomicFile(path) as new:
        offsets = writer.lay_out(new)
        blocks = [replace(array, offset=offset) for array, offset in zip(by_name.values(), offsets, strict=True)]
        checksums = []
        for rows, array in zip(blocks, ARRAYS.values(), strict=True):
            data = array.tobytes()
            write_exactly(new.fd, rows.offset, memoryview(data))
            parts = [data[run.offset - rows.offset :][: run.nbytes] for run in rows.all_runs()]
            checksums.append(np.array([crc32(part) for part in parts], np.uint32))
        writer.complete(new, blocks, checksums)
        new.sync()
        new.commit()
    return path


def verified(path: Path) -> Contents:
    """The contents, after each of three ranks has read its part of the arrays."""
    with Source(str(path)) as source:
        contents = Contents.read(source)
        for part in contents.arrays.values():
            for number in range(3):
                part.verify(source, 3, number)
    return contents


def rewritten(change: Callable[[dict[str, Any]], object]) -> Change:
    """A manifest whose checksum is right, but not what it says."""

    def rewrite(content: bytearray) -> None:
        magic, version, _, length, block_bytes = manifest.HEADER.unpack_from(content)
        manifest_json = json.loads(content[manifest.HEADER.size : manifest.HEADER.size + length])
        change(manifest_json)
        text = json.dumps(manifest_json).encode()
        header = manifest.HEADER.pack(magic, version, crc32(text), len(text), block_bytes)
        content[:block_bytes] = (header + text).ljust(block_bytes, b"\0")

    return rewrite


CHANGES: dict[str, Change] = {
    "cut": lambda content: content.pop(),
    "longer": lambda content: content.append(0),
    "empty": lambda content: content.clear(),
    "cut within the user block": lambda content: content.__delitem__(slice(700, None)),
    "another version": lambda content: content.__setitem__(8, 2),
    "no gaps": rewritten(lambda content: content.update(gaps=[])),
    "a list of arrays": rewritten(lambda content: content.update(arrays=[])),
    "a gap beyond the end": rewritten(lambda content: content["gaps"][0].__setitem__(1, 1 << 61)),
    "another first gap": rewritten(lambda content: content["gaps"].__delitem__(0)),
    "an offset that is too large": rewritten(lambda content: content["arrays"]["grid"].update(checks_at=1 << 70)),
    "a deep dtype": rewritten(lambda content: content["arrays"]["grid"].update(dtype=["f8", *[[1]] * 3])),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_altered_is_noticed(path: Path, name: str) -> None:
    content = bytearray(path.read_bytes())
    CHANGES[name](content)
    path.write_bytes(content)
    with pytest.raises(DAMAGE):
        verified(path)


def test_any_byte_that_is_altered_is_noticed(path: Path) -> None:
    contents = verified(path)
    assert (contents.manifest.step, contents.manifest.values) == (2, '{"time": 0.5}')
    with path.open("rb+") as file:
        for place, byte in enumerate(path.read_bytes()):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << place % 8]), place)
            with pytest.raises(DAMAGE):
                verified(path)
            os.pwrite(file.fileno(), bytes([byte]), place)
    verified(path)


@pytest.mark.parametrize("name", ARRAYS)
def test_any_range_and_any_run_is_read(path: Path, name: str) -> None:
    part, data = verified(path).arrays[name], ARRAYS[name].tobytes()
    assert part.spec == Spec.of(ARRAYS[name])
    block = np.zeros(len(data), np.uint8)
    with Source(str(path)) as source:
        for start in range(0, len(data), 7):
            for stop in range(start, len(data) + 1, 5):
                buffer = bytearray(stop - start)
                part.read_range(source, start, memoryview(buffer))
                assert buffer == data[start:stop]
        for piece in reversed(list(part.pieces(1))):
            part.read(source, piece.items, block)
    assert block.tobytes() == data
    assert name != "grid" or [piece.start for piece in part.pieces(1)] == [0, 64, 128, 192, 256]


def test_sizes_that_files_depend_on() -> None:
    """The user block is a power of two from 512 on, as HDF5 demands; another block size is another version."""
    assert row_blocks.BLOCK_BYTES == 4 << 20
    for count in (0, 1, 10, 100):
        blocks = {f"array {number}": RowBlocks.of_root(Spec.of(ARRAYS["grid"]), 2) for number in range(count)}
        nbytes = manifest.Manifest.user_block_bytes(1, "{}", blocks)
        assert nbytes.bit_count() == 1
        assert 512 <= nbytes <= 1024 + 512 * count
