"""Archives are read as NumPy reads them; a damaged one is refused."""

import zipfile

import numpy as np
import pytest

from mpishare.errors import FileError
from tests.arrays import assert_same
from tests.unit.files.reading import inspected, loaded


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions(tmp_path, compression):
    np.save(tmp_path / "a.npy", np.arange(1000))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.write(tmp_path / "a.npy", "a.npy")
    assert_same(loaded(tmp_path / "a.npz", "a"), np.arange(1000))


def test_damaged_members(tmp_path):
    array = np.random.default_rng(5).integers(0, 9, 10_000)
    np.savez_compressed(tmp_path / "a.npz", a=array)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    for at, message in ((2000, "it cannot be read"), (len(content) // 2, "it cannot be read")):
        damaged = content.copy()
        damaged[at] ^= 0xFF
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(FileError, match=f"'a' of .*a.npz: {message}"):
            loaded(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(content[:-30])
    with pytest.raises(FileError, match="the archive cannot be read: BadZipFile"):
        inspected(tmp_path / "a.npz")


def test_a_member_shorter_than_its_array(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1000))
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
            archive.writestr("a.npy", (tmp_path / "a.npy").read_bytes()[:-1])
        with pytest.raises(FileError, match="is truncated: it has 8,127 bytes; 8,128 are needed"):
            inspected(tmp_path / "a.npz")
