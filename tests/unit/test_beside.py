"""A new file beside the old one: whole in the end, or gone, whatever else is in the folder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from mpishare.errors import FileError
from mpishare.files.atomic_file import AtomicFile, telling

HOSTILE = ["a.npy", "with space.h5", "(a|b)*.npy", "größe-名.h5", "x" * 250 + ".h5", "-n.npy"]


@pytest.mark.parametrize("name", HOSTILE)
def test_it_takes_the_name_when_it_is_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"old")
    path.chmod(0o640)
    with AtomicFile(path) as new:
        os.write(new.fd, b"new")
        assert path.read_bytes() == b"old"
        assert new.temporary.parent == tmp_path
        new.commit()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_it_goes_where_something_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"old")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(KeyboardInterrupt), AtomicFile(path) as new:
        os.write(new.fd, b"ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def refuses(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_it_holds_nothing_where_it_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(b"old")
    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "fchmod", refuses)
    with pytest.raises(PermissionError):
        AtomicFile(path)
    assert list(tmp_path.iterdir()) == [path]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_it_holds_no_descriptor_where_it_cannot_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PermissionError), AtomicFile(tmp_path / "a.npy"):
        monkeypatch.setattr(os, "unlink", refuses)
    monkeypatch.undo()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", HOSTILE)
def test_leftovers_of_the_same_file_go_and_nothing_else(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with AtomicFile(path) as new:
        stem = new.temporary.name[:-16]
    left = tmp_path / f"{stem}0123456789abcdef"
    others = [
        tmp_path / other for other in (f"{stem}old", "b.npy.tmp.0123456789abcdef", f"{stem}0123456789abcdef0"[:255])
    ]
    others = [other for other in others if other != left]
    for file in [left, *others]:
        file.write_bytes(b"left")
    with AtomicFile(path):
        assert not left.exists()
    assert all(file.exists() for file in others)


def test_one_that_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with AtomicFile(path) as first, AtomicFile(path) as second:
        assert first.temporary.exists()
        first.commit()
        second.commit()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there/data.npy", tmp_path / "link.npy"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with AtomicFile(link) as new:
        os.write(new.fd, b"new")
        new.commit()
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_folder_that_cannot_be_synced_has_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error must not say that nothing was saved."""
    path, usual = tmp_path / "a.npy", os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        usual(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(FileError, match="it was saved, but") as raised, telling(path, None), AtomicFile(path) as new:
        os.write(new.fd, b"new")
        new.commit()
    assert raised.value.errno == errno.EIO
    assert path.read_bytes() == b"new"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    for path, number in (
        (tmp_path / "circle", errno.ELOOP),
        (tmp_path, errno.EISDIR),
        (tmp_path / "pipe", errno.EINVAL),
        (tmp_path / "nowhere" / "a.npy", errno.ENOENT),
        (tmp_path / "pipe" / "a.npy", errno.ENOTDIR),
        (tmp_path / ("x" * 300), errno.ENAMETOOLONG),
    ):
        with pytest.raises(FileError, match="not saved") as raised, telling(path, "grid"):
            AtomicFile(path)
        assert raised.value.errno == number
        assert f"dataset 'grid' of {path}" in str(raised.value)
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", "circle"}


def test_more_than_there_is_room_for(tmp_path: Path) -> None:
    with (
        AtomicFile(tmp_path / "a.npy") as new,
        pytest.raises(OSError, match=r"bytes are to be written and [\d,]+ are free"),
    ):
        new.check_room(1 << 60)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file to add to."""
    path = tmp_path / "a.h5"
    path.write_bytes(bytes(range(256)) * 5000)
    return path


def test_it_begins_with_the_old_bytes(old: Path) -> None:
    with AtomicFile(old) as new:
        new.copy_old()
        assert new.temporary.read_bytes() == old.read_bytes()
        new.commit()


def test_what_another_process_writes_meanwhile_is_not_lost(old: Path) -> None:
    with pytest.raises(OSError, match="another process has changed the file"), AtomicFile(old) as new:
        new.copy_old()
        old.write_bytes(b"other")
        new.commit()
    assert old.read_bytes() == b"other"


def test_a_file_that_is_open_for_writing_is_not_copied(old: Path) -> None:
    with old.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does
        with pytest.raises(OSError, match="open for writing"), AtomicFile(old) as new:
            new.copy_old()
