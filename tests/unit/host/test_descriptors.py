"""An open file of another process: through /proc, and over a socket where /proc refuses it."""

import ast
import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest

from mpishare.host.descriptors import Inbox, OpenFile, send

CHILD = """
import ast, os, sys
from mpishare.host.descriptors import Inbox, OpenFile
file, inbox = OpenFile(*ast.literal_eval(sys.argv[1])), Inbox()
try: print("/proc", os.pread(file.open(), 9, 0))
except OSError as error: print(error)
print(inbox.name, flush=True)
input()
try: print("socket", os.pread(inbox.receive(file), 9, 0))
except OSError as error: print(error)
"""
NAMESPACES = {
    "none": ([], "/proc b'content'", "socket b'content'"),
    "user": (["--user", "--map-current-user"], "Permission denied", "socket b'content'"),
    "PID": (["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"], "No such file", "socket b'content'"),
    "network": (["--user", "--map-root-user", "--net"], "Permission denied", "Resource temporarily unavailable"),
}
"""Those that a child leaves, and what then comes of the two ways."""


@pytest.fixture
def descriptor(tmp_path):
    """A descriptor of a file without a name, of a number that no other process has by chance."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    opened = os.open(path, os.O_RDWR)
    path.unlink()
    os.dup2(opened, 77, inheritable=False)
    os.close(opened)
    yield 77
    os.close(77)


@pytest.fixture
def inbox():
    """The inbox of this process."""
    inbox = Inbox()
    yield inbox
    inbox.close()


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_file_is_opened_in_another_process(name, descriptor):
    options, through_proc, through_socket = NAMESPACES[name]
    line = [*(["unshare", *options, "--"] if options else []), sys.executable, "-c", CHILD]
    with subprocess.Popen(
        [*line, str((*OpenFile.of(descriptor),))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert through_proc in process.stdout.readline()
        try:
            send(descriptor, ast.literal_eval(process.stdout.readline()))
        except ConnectionRefusedError:
            assert name == "network"
        assert through_socket in process.communicate("\n", timeout=20)[0]


def test_only_the_file_that_is_awaited_is_received(descriptor, inbox, tmp_path):
    file = OpenFile.of(descriptor)
    before = sorted(Path("/proc/self/fd").iterdir())
    with (tmp_path / "other").open("w") as other:
        send(other.fileno(), inbox.name)
        send(descriptor, inbox.name)
        assert not OpenFile(f"/proc/self/fd/{other.fileno()}", file.device, file.inode).is_at(other.fileno())
        with pytest.raises(OSError, match="different /proc"):
            file._replace(path=f"/proc/self/fd/{other.fileno()}").open()
    received = inbox.receive(file)
    assert file.is_at(received)
    assert not os.get_inheritable(received)
    os.close(received)
    with pytest.raises(BlockingIOError):
        inbox.receive(file)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    inbox.close()
    with pytest.raises(ConnectionRefusedError):
        send(descriptor, inbox.name)


def test_the_sender_s_lock_keeps_the_receiver_out(descriptor, inbox):
    send(descriptor, inbox.name)
    received = inbox.receive(OpenFile.of(descriptor))
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        fcntl.flock(received, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(received)


def test_nothing_is_sent_to_another_user(descriptor, inbox, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(PermissionError, match="the socket is that of user"):
        send(descriptor, inbox.name)
    with pytest.raises(BlockingIOError):
        inbox.receive(OpenFile.of(descriptor))


def test_who_connects_and_sends_nothing_is_passed_over(descriptor, inbox):
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as ended:
        silent.connect(inbox.name)
        ended.connect(inbox.name)
        ended.close()
        send(descriptor, inbox.name)
        os.close(inbox.receive(OpenFile.of(descriptor)))


def test_a_descriptor_that_finds_no_place_is_an_error(descriptor, inbox):
    limits = getrlimit(RLIMIT_NOFILE)
    send(descriptor, inbox.name)
    setrlimit(RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            inbox.receive(OpenFile.of(descriptor))
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
