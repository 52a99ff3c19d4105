"""AtomicFile: the new file in the end, or the old one, whatever fails and whatever else is in the folder."""

import errno
import fcntl
import os
import signal
import stat
import struct
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest

from mpishare.errors import FileError
from mpishare.files.atomic_file import AtomicFile
from mpishare.files.errors import file_errors
from tests.unit.files.reading import failing

HOSTILE = ["a.npy", "with space.h5", "(a|b)*.npy", "größe-名.h5", "x" * 250 + ".h5", "-n.npy"]
OLD = bytes(range(251)) * 20_000  # more than is copied at a time


@pytest.fixture
def old(tmp_path):
    """A file to replace."""
    path = tmp_path / "a.h5"
    path.write_bytes(OLD)
    return path


def commit(path, content=b"new"):
    with AtomicFile(path) as new:
        os.write(new.fd, content)
        new.sync()
        new.commit()


@pytest.mark.parametrize("name", HOSTILE)
def test_it_takes_the_name_when_it_is_whole_and_leftovers_go(tmp_path, name):
    with AtomicFile(tmp_path / name) as unused:
        stem = unused.temporary.name[:-8].replace(f".{os.getpid()}.", f".{ended_process()}.")
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / name
    others = [path, *(folder / other for other in (f"{stem}x01234567", f"{stem}012345678", "a.tmp"))]
    for file in [*others, folder / f"{stem}01234567", folder / f"another{stem[-40:]}01234567"]:
        file.write_bytes(b"old")
    with path.open("rb") as opened, AtomicFile(path) as new, AtomicFile(path) as unfinished:
        os.write(new.fd, b"new")
        assert path.read_bytes() == b"old"
        assert set(folder.iterdir()) == {new.temporary, unfinished.temporary, *others}
        new.sync()
        new.commit()
        assert (path.read_bytes(), opened.read()) == (b"new", b"old")
    assert set(folder.iterdir()) == set(others)


def ended_process():
    """The id of a process that has ended."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_a_folder_is_listed_once(tmp_path):
    """It may have a million files."""
    commit(tmp_path / "a.npy")
    with mock.patch.object(Path, "iterdir", side_effect=AssertionError):
        commit(tmp_path / "a.npy")
        commit(tmp_path / "b.npy")


def commit_in_another_process(path):
    child = os.fork()
    if not child:
        commit(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def another_process(path, pipe):
    """Writes a temporary file's name to a pipe, and waits to be killed."""
    with suppress(OSError):
        new = AtomicFile(path)
        os.write(pipe, os.fsencode(new.temporary))
        signal.pause()
    os._exit(1)


PLACES = {
    "this one": (os, "getpid", os.getpid),
    "another host": (os, "uname", lambda: mock.Mock(nodename="größe 2.site")),
    "another PID namespace": (Path, "readlink", lambda _: Path("pid:[1]")),
}


@pytest.mark.parametrize("waits", [0, os.WNOWAIT], ids=["ended", "zombie"])
@pytest.mark.parametrize("place", PLACES)
def test_what_another_process_left_goes_when_it_has_ended(old, monkeypatch, place, waits):
    """Here at once, and from elsewhere after a day."""
    reading, writing = os.pipe()
    with monkeypatch.context() as patched:
        patched.setattr(*PLACES[place])
        child = os.fork()
        if not child:
            another_process(old, writing)
    os.close(writing)
    try:
        left = Path(os.fsdecode(os.read(reading, 1000)))
        commit_in_another_process(old)
        assert left.exists()
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | waits)
    commit_in_another_process(old)
    if waits:
        os.waitpid(child, 0)
    assert left.exists() == (place != "this one")
    for hours in (23, 25) if left.exists() else ():
        os.utime(left, (time.time(), time.time() - hours * 3600))
        commit_in_another_process(old)
        assert left.exists() == (hours < 24)


def acl(*entries):
    """Tags, permissions and users as in the extended attribute of an ACL (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


ACL = "system.posix_acl_access"
FOR_USER_77 = acl((1, 6, -1), (2, 4, 77), (4, 0, -1), (16, 4, -1), (32, 0, -1))


def access(path):
    """Permissions and extended attributes of a file."""
    return stat.S_IMODE(path.stat().st_mode), {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_permissions(tmp_path):
    """Those of the old file, but for setuid and setgid; nobody else may open the new one before."""
    path = tmp_path / "a.npy"
    commit(path)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    path.chmod(0o6754)
    with AtomicFile(path) as new:
        assert stat.S_IMODE(os.fstat(new.fd).st_mode) == 0o600
        new.sync()
        new.commit()
    assert stat.S_IMODE(path.stat().st_mode) == 0o754


@pytest.mark.parametrize("attributes", [{}, {ACL: FOR_USER_77}, {"user.unit": b"m", "user.empty": b""}])
def test_attributes(old, attributes):
    """Those of the old file, but for its time."""
    for name, value in attributes.items():
        os.setxattr(old, name, value)
    os.utime(old, (0, 0))
    before = access(old)
    commit(old)
    assert access(old) == before
    assert old.stat().st_mtime > time.time() - 60


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("call", "mode"), [("", 0o664), ("fchown", 0o644), ("setxattr", 0o664)])
def test_owner_and_group(old, call, mode, monkeypatch):
    """Where they cannot be set, the group of the new file may do no more than all others."""
    os.chown(old, 1234, 4321)
    old.chmod(0o664)
    os.setxattr(old, "user.unit", b"m")
    if call:
        monkeypatch.setattr(os, call, failing(errno.EPERM))
    commit(old)
    assert (old.stat().st_uid, old.stat().st_gid) == ((0, 0) if call == "fchown" else (1234, 4321))
    assert access(old) == (mode, {} if call == "setxattr" else {"user.unit": b"m"})


@pytest.mark.parametrize("is_removed", [True, False])
def test_it_goes_where_something_fails(old, monkeypatch, is_removed):
    """On a file system that has become read-only it stays. The first error is raised."""
    if not is_removed:
        monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    with pytest.raises(KeyboardInterrupt), AtomicFile(old) as new:
        os.write(new.fd, b"ne")
        raise KeyboardInterrupt
    monkeypatch.undo()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(new.fd)
    assert (old.read_bytes(), new.temporary.exists()) == (OLD, not is_removed)


def test_a_folder_that_cannot_be_synced_has_the_new_file(old, monkeypatch):
    """The error must not say that nothing was saved."""
    with (
        pytest.raises(FileError, match="it was saved, but") as raised,
        file_errors(old, None, "it was not saved"),
        AtomicFile(old) as new,
    ):
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        new.commit()
    assert (raised.value.errno, old.read_bytes()) == (errno.EIO, b"")


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    refused = {"circle": errno.ELOOP, "": errno.EISDIR, "pipe": errno.EINVAL, "nowhere/a.npy": errno.ENOENT}
    for name, number in {**refused, "pipe/a.npy": errno.ENOTDIR, "x" * 300: errno.ENAMETOOLONG}.items():
        with pytest.raises(OSError, match=r".") as raised:
            AtomicFile(tmp_path / name)
        assert raised.value.errno == number
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", "circle"}


def test_room(tmp_path):
    with AtomicFile(tmp_path / "a.npy") as new:
        new.check_room(0)
        with pytest.raises(OSError, match=r"No space left on device: [\d,]+ of") as raised:
            new.check_room(1 << 60)
    assert raised.value.errno == errno.ENOSPC


def test_it_begins_with_the_old_bytes(old):
    with AtomicFile(old) as new:
        new.copy_old()
        assert new.temporary.read_bytes() == OLD
        new.sync()
        new.commit()
    assert old.read_bytes() == OLD


@pytest.mark.parametrize("change", [lambda old: old.write_bytes(b"other"), lambda old: commit(old, OLD), Path.unlink])
def test_what_another_process_writes_is_not_lost(old, change):
    with pytest.raises(OSError, match=r"another process has changed the file|No such file"), AtomicFile(old) as new:
        new.copy_old()
        change(old)
        after = old.read_bytes() if old.exists() else None
        new.sync()
        new.commit()
    assert (old.read_bytes() if old.exists() else None) == after


def test_a_file_that_is_open_for_writing_is_not_copied(old):
    with old.open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as HDF5 does
        with pytest.raises(OSError, match="open for writing") as raised, AtomicFile(old) as new:
            new.copy_old()
    assert raised.value.errno == errno.EBUSY


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_that_has_the_name_of_the_new_file_is_not_followed(tmp_path, monkeypatch, exists):
    """A stranger may put one into a folder such as /tmp, to have another file written."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 8)
    with AtomicFile(tmp_path / "a.npy") as new:
        name = new.temporary
    target = tmp_path / "target"
    if exists:
        target.write_bytes(b"other")
    name.symlink_to(target)
    with pytest.raises(FileExistsError):
        AtomicFile(tmp_path / "a.npy")
    assert target.exists() == exists
    assert not exists or target.read_bytes() == b"other"
