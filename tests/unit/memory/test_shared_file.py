"""shared_file: files without a name, without MPI."""

import os
import resource
from pathlib import Path

import pytest

from mpishare.errors import BackendError
from mpishare.memory.shared_file import memory_file


def test_a_file_in_memory_has_its_size_and_no_name_and_leaves_no_descriptor_where_it_is_refused():
    before, limits = len(list(Path("/proc/self/fd").iterdir())), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        descriptor = memory_file(1000)
        status = os.fstat(descriptor)
        with pytest.raises(BackendError, match="no file of 10,000 bytes can be created in memory: File too large"):
            memory_file(10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    os.close(descriptor)
    assert (status.st_size, status.st_nlink) == (1000, 0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
