"""AtomicFile: the new file in the end, or the old one, whatever fails and whatever else is in the folder."""

import errno
import fcntl
import os
import stat
import struct
import subprocess
import time
from pathlib import Path

import pytest

from mpishare.errors import FileError
from mpishare.files import atomic_file
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
    others = [path, *(folder / other for other in (f"{stem}x01234567", f"{stem}012345678"))]
    for file in [*others, folder / f"{stem}01234567"]:
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
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_what_a_process_left_goes_when_it_has_ended(tmp_path):
    """Here at once, and from another host or PID namespace after a day."""
    with AtomicFile(tmp_path / "a.npy") as unused:
        _, host, pid, rest = unused.temporary.name.rsplit(".", 3)
    pids = {"left": ended_process(), "running": pid, "foreign": ended_process(), "old": pid}
    files = {name: tmp_path / f"{name}.tmp.{host}.{number}.{rest}" for name, number in pids.items()}
    files["foreign"] = files["foreign"].with_name(f"foreign.tmp.{host}.{pids['foreign']}.{'0' * 16}")
    for file in files.values():
        file.touch()
    os.utime(files["old"], (time.time(), time.time() - 25 * 3600))
    atomic_file._remove_leftovers.cache_clear()
    commit(tmp_path / "a.npy")
    assert set(tmp_path.iterdir()) == {tmp_path / "a.npy", files["running"], files["foreign"]}


def acl(*entries):
    """Tags, permissions and users as in the extended attribute of an ACL (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


ACL = "system.posix_acl_access"
FOR_USER_77 = acl((1, 6, -1), (2, 4, 77), (4, 0, -1), (16, 4, -1), (32, 0, -1))


def access(path):
    """Permissions and extended attributes of a file."""
    return stat.S_IMODE(path.stat().st_mode), {name: os.getxattr(path, name) for name in os.listxattr(path)}


@pytest.mark.parametrize("attributes", [{}, {ACL: FOR_USER_77}, {"user.unit": b"m", "user.empty": b""}])
def test_permissions_and_attributes(old, attributes):
    """Those of the old file, but for its time, setuid and setgid; nobody else may open the new one before."""
    old.chmod(0o6754)
    for name, value in attributes.items():
        os.setxattr(old, name, value)
    os.utime(old, (0, 0))
    mode, others = access(old)
    with AtomicFile(old) as new:
        assert stat.S_IMODE(os.fstat(new.fd).st_mode) == 0o600
        new.sync()
        new.commit()
    assert access(old) == (mode & 0o777, others)
    assert old.stat().st_mtime > time.time() - 60


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path):
    commit(tmp_path / "a.npy")
    (tmp_path / "b").touch()
    assert access(tmp_path / "a.npy") == access(tmp_path / "b")


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


def test_a_link_that_has_the_name_of_the_new_file_is_not_followed(tmp_path, monkeypatch):
    """A stranger may put one into a folder such as /tmp, to have another file written."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 8)
    with AtomicFile(tmp_path / "a.npy") as new:
        name = new.temporary
    name.symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        AtomicFile(tmp_path / "a.npy")
    assert not (tmp_path / "target").exists()
