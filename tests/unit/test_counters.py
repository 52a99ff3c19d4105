"""Numbers of a node: zero at first, and changed by one at a time."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest

from mpishare.tasks.counters import Counters, _made, _opened, _place


def in_file() -> Counters:
    """Two numbers in a file."""
    descriptor = _made(16)
    assert descriptor is not None
    counters = Counters._in_file(descriptor, 2)
    assert counters is not None
    return counters


def add(counters: Counters, times: int) -> None:
    for _ in range(times):
        with counters.lock:
            number = counters.numbers[1]
            os.sched_yield()  # so that others meet this thread here, if they may
            counters.numbers[1] = number + 1


@pytest.mark.parametrize("is_private", [True, False])
def test_threads_change_them_one_at_a_time(is_private: bool) -> None:
    counters = Counters.private(2) if is_private else in_file()
    assert list(counters.numbers) == [0, 0]
    threads = [threading.Thread(target=add, args=(counters.for_thread(), 1000)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(counters.numbers) == [0, 3000]


def test_an_exception_lets_the_lock_go() -> None:
    counters = in_file()
    with pytest.raises(KeyboardInterrupt), counters.lock:
        raise KeyboardInterrupt
    add(counters.for_thread(), 1)


def test_descriptors_go_with_them() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    counters = in_file()
    thread = counters.for_thread()
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 2
    del counters, thread
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_another_file_is_not_taken_for_the_leaders(tmp_path: Path) -> None:
    descriptor = _made(16)
    assert descriptor is not None
    path, inode = _place(descriptor)
    other = _opened(path, inode)
    assert other is not None
    assert _opened(path, inode + 1) is None
    assert _opened(str(tmp_path / "missing"), inode) is None
    os.close(other)
    os.close(descriptor)
