"""machine: what the real kernel says."""

from __future__ import annotations

import pytest

from mpishare.errors import CapacityError
from mpishare.host.memory import Machine, check_memory, memory_room


def test_this_machine() -> None:
    here = Machine.here()
    assert here.cores >= 1
    assert here.page_bytes in (4096, 16384, 65536)
    assert here.shm is not None
    assert 0 < memory_room().free <= here.memory_bytes


def test_memory_that_is_not_there() -> None:
    check_memory("here", 1 << 20)
    with pytest.raises(CapacityError, match="bytes do not fit in memory of host here"):
        check_memory("here", 1 << 60)
