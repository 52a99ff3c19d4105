"""A file is opened as a regular file, read to the last byte that is asked for, and refused if it has changed."""

import errno
import os
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from mpishare.errors import FileError
from mpishare.files.source import Source, read_exactly
from tests.unit.files.reading import failing, inspected


def test_read_exactly(tmp_path, monkeypatch):
    """Also where the system reads less than it was asked for."""
    path, preadv = tmp_path / "a", os.preadv
    path.write_bytes(bytes(range(100)))
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:7]], at))
    buffer = bytearray(60)
    with path.open("rb") as file:
        read_exactly(file.fileno(), 40, memoryview(buffer))
        assert buffer == bytes(range(40, 100))
        with pytest.raises(EOFError, match="ends at byte 100, but its contents go on to byte 101"):
            read_exactly(file.fileno(), 41, memoryview(buffer))


CHANGES = {
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"!"),
    "written": lambda path: os.utime(path, ns=(1, 1)),
    "replaced": lambda path: shutil.copy2(path, path.with_suffix(".new")) and path.with_suffix(".new").replace(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed(tmp_path, change):
    """Whoever has the old file open may go on to read it."""
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(100))
    contents = inspected(path)
    with Source(contents.path, contents.stamp) as source:
        source.read_bytes(0, 6)
        CHANGES[change](path)
        with nullcontext() if change == "replaced" else pytest.raises(FileError, match="was changed while"):
            source.check()
    with Source(contents.path, contents.stamp) as source, pytest.raises(FileError, match="was changed while"):
        source.read_bytes(0, 6)


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for name, message in {"pipe": "is not a regular file", "": "is a folder", "none": "No such file"}.items():
        with pytest.raises(FileError, match=f"{tmp_path / name}: {message}"):
            inspected(tmp_path / name)
    np.save(tmp_path / "a.npy", np.zeros(3))
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(FileError, match=r"a\.npy: Permission denied") as caught:
        inspected(tmp_path / "a.npy")
    assert caught.value.errno == errno.EACCES
