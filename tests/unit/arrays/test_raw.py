"""One value becomes an item; bytes are copied where no thread can be started."""

import threading
from typing import Any

import numpy as np
import pytest

from mpishare.arrays.raw import copy_by_threads, scalar, zero
from mpishare.errors import SpecError

NBYTES = (12 << 20) + 5


def test_one_item():
    assert zero("M8[s]") == np.datetime64(0, "s")
    assert [item.dtype.str for item in (zero("U"), scalar(3, "<f4"), scalar("ab", None))] == ["<U1", "<f4", "<U2"]


def test_what_is_not_one_item_is_refused():
    refused: dict[str, tuple[Any, Any]] = {
        "fill value 'a' is not an item of dtype f8: ": ("a", "f8"),
        "fill value of shape (1,) is not one item": ([1], "f8"),
        "dtype 'S3x' is not understood by NumPy: ": (1, "S3x"),
        "fill value inf is not an item of dtype i4: ": (1e400, "i4"),
    }
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":  # before, NumPy warned and cut the number
        refused["fill value 300 is not an item of dtype [('a', 'u1')]: "] = 300, np.dtype([("a", "u1")])
    for message, (value, dtype) in refused.items():
        with pytest.raises(SpecError) as caught:
            scalar(value, dtype)
        assert str(caught.value).startswith(message)


def test_a_process_that_may_have_no_more_threads(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    target = np.zeros(NBYTES, np.uint8)
    copy_by_threads(target, np.ones(NBYTES, np.uint8), 4, {1 << 20})
    assert target.all()
