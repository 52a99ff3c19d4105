"""counters: zero at first, and changed by one thread at a time."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from mpishare.errors import BackendError
from mpishare.memory.shared_file import memory_file
from mpishare.tasks.counters import Counters


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def add(counters: Counters, times: int) -> None:
    for _ in range(times):
        with counters.lock():
            number = counters.numbers[1]
            os.sched_yield()  # so that other threads run here, if they may
            counters.numbers[1] = number + 1


@pytest.mark.parametrize("is_private", [True, False])
def test_threads_change_them_one_at_a_time(is_private: bool) -> None:
    counters = Counters.private(2) if is_private else Counters.in_file(memory_file(16), 2)
    assert list(counters.numbers) == [0, 0]
    threads = [threading.Thread(target=add, args=(counters.for_thread(), 1000)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(counters.numbers) == [0, 3000]


def test_an_exception_releases_the_lock_and_descriptors_go_with_the_numbers() -> None:
    before = open_files()
    counters = Counters.in_file(memory_file(16), 2)
    with pytest.raises(KeyboardInterrupt), counters.lock():
        raise KeyboardInterrupt
    thread = counters.for_thread()
    add(thread, 1)
    assert open_files() == before + 2
    del counters, thread
    assert open_files() == before


def test_a_file_that_cannot_be_mapped_is_closed(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(BackendError, match="cannot be mapped"):
        Counters.in_file(os.open(tmp_path, os.O_RDONLY), 2)
    assert open_files() == before
