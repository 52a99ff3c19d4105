"""Files without a name, by Python's function and by the number of the system call."""

import errno
import fcntl
import os
import resource
from types import SimpleNamespace

import pytest

from mpishare.host.memfd import memfd_create

KERNEL = tuple(int(number) for number in os.uname().release.split(".")[:2])


@pytest.fixture(params=[True, False], ids=["os.memfd_create", "by number"])
def _way(request, monkeypatch):
    if not request.param:
        monkeypatch.delattr(os, "memfd_create")


@pytest.mark.usefixtures("_way")
def test_a_file_without_a_name():
    descriptor = memfd_create()
    try:
        os.write(descriptor, b"bytes")
        assert os.pread(descriptor, 9, 0) == b"bytes"
        status = os.fstat(descriptor)
        assert status.st_nlink == 0
        assert bool(status.st_mode & 0o111) == (KERNEL < (6, 3))  # whether it may become executable
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    finally:
        os.close(descriptor)


@pytest.mark.usefixtures("_way")
def test_an_error_of_the_kernel():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            memfd_create()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_machine_with_an_unknown_number(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    with pytest.raises(OSError, match="none is known for riscv64"):
        memfd_create()


@pytest.mark.parametrize(("number", "tries"), [(errno.EINVAL, 2), (errno.EMFILE, 1)])
def test_a_kernel_that_knows_fewer_flags(number, tries, monkeypatch):
    asked = []

    def create(_, flags):
        asked.append(flags)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", create)
    with pytest.raises(OSError, match=os.strerror(number)):
        memfd_create()
    assert asked == [9, 1][:tries]
