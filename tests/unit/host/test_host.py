"""The facts about a host: of this one, and of files that the tests write."""

import fcntl
import os
import platform
import re
import resource
from pathlib import Path

import pytest

from mpishare.host.filesystems import is_node_local, memfd_create, type_of
from mpishare.host.memory import Machine, memory_bytes, memory_limit, memory_room
from tests.processes import limited


def test_the_facts_are_those_of_this_host():
    machine = Machine()
    assert (machine.kernel, machine.page_bytes) == (platform.release(), os.sysconf("SC_PAGE_SIZE"))
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert (machine.shm is not None) == Path("/dev/shm").is_dir()
    policies = {"always", "advise", "within_size", "madvise", "never", "deny", "force", "unknown"}
    assert {machine.huge_pages, machine.shm_huge_pages} <= policies
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    assert machine.merges_pages == (platform.system() == "Linux" and version >= (6, 1))
    assert 0 < memory_room().free <= memory_bytes() <= machine.memory_bytes


V1, V2 = "5:cpu,cpuacct:/x\n4:memory:/a/b\n", "0::/a/b/c\n"
STAT_V1 = "cache 3000\ninactive_file 1\ntotal_inactive_file 2000"
FILES_V1 = {"limit_in_bytes": 7000, "usage_in_bytes": 4000, "stat": STAT_V1}
CASES: dict[str, tuple[str, dict[str, object], int | None, int | None]] = {
    "the smallest of all levels": (V2, {"a/b/c/max": "max", "a/b/max": 5000, "a/max": 9000}, 5000, 5000),
    "the least left": (V2, {"a/b/max": 9000, "a/b/current": 1000, "a/max": 10000, "a/current": 7000}, 9000, 3000),
    "pages of files": (V2, {"a/max": 10000, "a/current": 7000, "a/stat": "anon 4000\ninactive_file 2500"}, 10000, 5500),
    "more used than allowed": (V2, {"a/max": 10000, "a/current": 20000}, 10000, 0),
    "no limit in version 1": (V1, {"memory/a/b/limit_in_bytes": 9223372036854771712}, None, None),
    "version 1": (V1, {f"memory/a/{name}": content for name, content in FILES_V1.items()}, 7000, 5000),
    "no control groups": ("", {}, None, None),
}
"""The groups of a process, the files of these and their texts, the limit and what is left of it."""


@pytest.mark.parametrize("name", CASES)
def test_limit_and_bytes_left(tmp_path, name):
    groups, files, limit, left = CASES[name]
    (tmp_path / "proc").write_text(groups)
    for path, text in files.items():
        file = (tmp_path / path).with_name(f"memory.{Path(path).name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert memory_limit(tmp_path / "proc", tmp_path) == limit
    free = memory_room(tmp_path / "proc", tmp_path).free
    assert free == left or (left is None and free > 1 << 20)


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=24684084k
40 27 0:40 / /home rw shared:7 master:2 - nfs4 server:/home rw
41 40 0:41 / /home/me/fast\\040disk rw - xfs /dev/sdb rw
42 27 0:42 / /scratch rw - lustre mgs@tcp:/scratch rw
43 27 0:43 / /twice rw - ext4 /dev/sdc rw
44 43 0:44 / /twice rw - beegfs beegfs_nodev rw
45 27 0:45 / /odd rw - fuse.sshfs me@host: rw
"""


LOCAL = {"/": "ext4", "/none": "ext4", "/dev/shm": "tmpfs", "/dev/shmem": "ext4", "/home/me/fast disk/x": "xfs"}
REMOTE = {"/home/me": "nfs4", "/scratch/job": "lustre", "/twice": "beegfs", "/odd": "fuse.sshfs"}


def test_the_type_of_the_file_system_decides(tmp_path):
    mounts, link = tmp_path / "mountinfo", tmp_path / "link"
    mounts.write_text(MOUNTS)
    link.symlink_to("/scratch/job")
    for directory, system in {**LOCAL, **REMOTE, str(link): "lustre"}.items():
        assert type_of(directory, mounts) == system
        assert is_node_local(directory, mounts) == (directory in LOCAL)
    assert type_of("/", tmp_path / "none") == "unknown"
    assert not is_node_local("/", tmp_path / "none")


KERNEL = tuple(int(number) for number in os.uname().release.split(".")[:2])


def test_a_file_without_a_name():
    descriptor = memfd_create()
    try:
        status = os.fstat(descriptor)
        assert status.st_nlink == 0
        assert bool(status.st_mode & 0o111) == (KERNEL < (6, 3))  # whether it may become executable
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    finally:
        os.close(descriptor)
    with limited(resource.RLIMIT_NOFILE, 0), pytest.raises(OSError, match="Too many open files"):
        memfd_create()
