"""counters: zero at first, and changed by one rank at a time."""

import gc
import os
import threading
from pathlib import Path

import pytest

from mpishare.errors import BackendError
from mpishare.memory.shared_file import memory_file
from mpishare.tasks.counters import Counters


def open_files():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def add(counters, times):
    for _ in range(times):
        with counters.lock:
            number = counters.numbers[1]
            os.sched_yield()  # so that other threads run here, if they may
            counters.numbers[1] = number + 1


def test_those_who_open_the_file_change_them_one_at_a_time():
    descriptor, before = memory_file(16), open_files()
    opened = [Counters(2, os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)) for _ in range(3)]
    assert list(opened[0].numbers) == list(Counters(2).numbers) == [0, 0]
    threads = [threading.Thread(target=add, args=(counters, 1000)) for counters in opened]
    with pytest.raises(KeyboardInterrupt), opened[0].lock:
        raise KeyboardInterrupt
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(opened[0].numbers) == [0, 3000]
    assert open_files() == before + 3
    del opened, threads
    assert open_files() == before
    os.close(descriptor)


def test_a_file_that_cannot_be_mapped_is_closed(tmp_path):
    before = open_files()
    with pytest.raises(BackendError, match="cannot be mapped"):
        Counters(2, os.open(tmp_path, os.O_RDONLY))
    assert open_files() == before
