"""WriteBuffer against io.BytesIO: the same reads, and the same file in the end."""

import io
import os

import numpy as np
import pytest

from mpishare.files.hdf5_write import WriteBuffer


@pytest.mark.parametrize("seed", range(20))
def test_random_reads_and_writes(tmp_path, seed, monkeypatch):
    """Where each call writes a part, as on a disk that is nearly full."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:7], offset))
    random = np.random.default_rng(seed)
    old = random.bytes(int(random.integers(0, 300)))
    path = tmp_path / "file"
    path.write_bytes(old)
    expected = io.BytesIO(old)
    with path.open("rb+") as file:
        buffer = WriteBuffer(file.fileno())
        for step in range(50):
            offset, count = (int(number) for number in random.integers(0, 200, 2))
            if step % 3:
                assert buffer.seek(offset) == expected.seek(offset)
                data = random.bytes(count)
                assert buffer.write(data) == expected.write(data)
            else:
                assert buffer.seek(-offset % 100, os.SEEK_END) == expected.seek(-offset % 100, os.SEEK_END)
                assert buffer.seek(-offset // 9, os.SEEK_CUR) == expected.seek(-offset // 9, os.SEEK_CUR)
                assert buffer.read(count) == expected.read(count)
            assert buffer.tell() == expected.tell()
        assert path.read_bytes() == old
        size = int(random.integers(0, 500))
        assert buffer.truncate(size) == size
        buffer.apply()
    assert path.read_bytes() == expected.getvalue()[:size].ljust(size, b"\0")
