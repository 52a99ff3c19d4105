"""What the kernel tells about a process, and waiting for one, for tests."""

import gc
import os
import resource
import time
from contextlib import contextmanager, suppress
from mmap import PAGESIZE
from pathlib import Path

import numpy as np


def in_child(call):
    """The number that `call` returns in a forked child, with which the child exits; 255 if it raises."""
    child = os.fork()
    if not child:
        number = 255
        try:
            number = int(call())
        finally:
            os._exit(number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def error_as(user, call):
    """The number of the OSError that `call` raises in a process of an unprivileged user; 0 for none."""

    def number():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        try:
            call()
        except OSError as error:
            return error.errno or 255
        return 0

    return in_child(number)


@contextmanager
def limited(number, limit):
    """Within the block a soft limit of this process, such as resource.RLIMIT_NOFILE, is `limit`."""
    before = resource.getrlimit(number)
    resource.setrlimit(number, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(number, before)


def open_files():
    """How many descriptors this process has."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def anonymous_bytes():
    """Pages of this process alone, those changed in a copy-on-write map among them."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def proportional_bytes(comm):
    """Proportional set sizes of all ranks, less those of files: other jobs that end leave more of these to us."""
    comm.Barrier()
    lines = map(str.split, Path("/proc/self/smaps_rollup").read_text().splitlines())
    total = comm.allreduce(sum(int(fields[1]) << 10 for fields in lines if fields[0] in ("Pss_Anon:", "Pss_Shmem:")))
    comm.Barrier()
    return total


def permissions(address):
    """The permissions of the map of this process that holds `address`, such as "rw-s"; "" where nothing is mapped."""
    return next((line.split()[1] for line in _maps_at(address)), "")


def file_of_map(address):
    """The file of the map that holds `address`, for root alone."""
    return next(Path("/proc/self/map_files", line.split()[0]) for line in _maps_at(address))


def file_id(address):
    """The device and the inode of the file of the map that holds `address`."""
    return next(tuple(line.split()[3:5]) for line in _maps_at(address))


def present_pages(address, nbytes):
    """Whether this process has used each page of its memory at `address`: bit 63 of proc_pid_pagemap(5)."""
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(address // PAGESIZE * 8)
        return np.frombuffer(file.read(-(-nbytes // PAGESIZE) * 8), np.uint64) >> 63 == 1


def _maps_at(address):
    """The line of /proc/self/maps that holds `address`, if there is one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < stop:
            yield line


def read_bytes():
    """What this process has read by system calls."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("rchar:") + 1])


def children_of(pid: int) -> list[int]:
    """The processes that a process has started itself and that live."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def of_processes(fact):
    """What `fact` is of each process, given its folder in /proc, where that is true."""
    facts = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            facts.append(fact(folder))
    return list(filter(None, facts))


def living_in_session(session):
    """The processes of a session that have not ended. A zombie has, unless one of its threads still runs."""

    def living(folder):
        fields = (folder / "stat").read_text().rpartition(") ")[2].split()  # from the third on in proc_pid_stat(5)
        state, threads = fields[0], int(fields[17])
        return int(fields[3]) == session and (state not in "ZX" or threads > 1) and int(folder.name)

    return of_processes(living)


def wait_until(is_reached, limit_s, report=str):
    """Waits until `is_reached` returns something true; past `limit_s` the test fails with a report."""
    deadline = time.monotonic() + limit_s
    while not is_reached():
        assert time.monotonic() < deadline, f"not within {limit_s} s\n{report()}"
        time.sleep(0.02)
