"""memory: the facts about the host that runs the tests."""

import os
import platform
from pathlib import Path

import pytest

from mpishare.errors import CapacityError
from mpishare.host.memory import Machine, check_memory, memory_bytes, memory_room


def test_the_facts_are_those_of_this_host():
    machine = Machine.probe()
    assert (machine.kernel, machine.page_bytes) == (platform.release(), os.sysconf("SC_PAGE_SIZE"))
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert (machine.shm is not None) == Path("/dev/shm").is_dir()
    policies = {"always", "advise", "within_size", "madvise", "never", "deny", "force", "unknown"}
    assert {machine.huge_pages, machine.shm_huge_pages} <= policies
    assert 0 < memory_room().free <= memory_bytes() <= machine.memory_bytes


def test_memory_that_is_not_there_is_an_error():
    check_memory("node7", 1 << 20)
    with pytest.raises(CapacityError, match="bytes do not fit in memory of host node7"):
        check_memory("node7", 1 << 60)
