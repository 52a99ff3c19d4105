"""Bytes are copied whole by any number of threads."""

import threading

import numpy as np
import pytest

from mpishare.arrays.raw import copy_by_threads

SIZES = [0, 1, 4 << 20, (12 << 20) + 5]


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("nbytes", SIZES)
def test_threads_copy_every_byte(nbytes, count):
    source = np.arange(nbytes).astype(np.uint8)
    target = np.full(nbytes, 255, np.uint8)
    copy_by_threads(target, source, count)
    assert (target == source).all()


def test_a_process_that_may_have_no_more_threads(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    target = np.zeros(SIZES[-1], np.uint8)
    copy_by_threads(target, np.ones(SIZES[-1], np.uint8), 4)
    assert target.all()
