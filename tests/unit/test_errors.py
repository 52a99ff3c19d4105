"""Errors say what was given, carry it as attributes, and survive pickling."""

import pickle

import pytest

import mpishare as ms
from mpishare import errors

CAPACITY = ms.CapacityError("n1", "/dev/shm", 2000, 1000, "Share less.")
MANY = {rank: "share" if rank else "empty" for rank in range(512)}

EXAMPLES = {
    ms.ArgumentError("root 9"): "root 9",
    ms.SpecError("dtype object"): "dtype object",
    ms.BackendError("window is refused"): "window is refused",
    ms.LaunchError("6 processes"): "6 processes",
    CAPACITY: "2,000 bytes do not fit in /dev/shm of host n1, which has 1,000 bytes free. Share less.",
    ms.MismatchError({0: "share", 1: "empty", 2: "share"}): "ranks 0, 2: share; rank 1: empty",
    ms.MismatchError(MANY): "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 503 more: share",
    ms.PeerError(3, "n1", "ValueError: no", 2): "rank 3 on host n1 failed: ValueError: no (and 2 more ranks failed)",
    ms.PeerCapacityError(3, CAPACITY, 1): f"rank 3 on host n1 failed: CapacityError: {CAPACITY} (and 1 more ranks",
    ms.PeerFileError(3, "n1", 2, "/a.npy", None, "it is gone", 1): "n1 failed: FileError: /a.npy: it is gone",
    ms.StallError("share() at job.py:7", 2.5, {1: "on host n1 is in zeros() at job.py:9"}): "share() at job.py:7 has "
    "waited 2.5 s (MPISHARE_TIMEOUT) for ranks that have not come: rank 1 on host n1 is in zeros() at job.py:9",
    ms.TaskError(7, 3, "n1", "ValueError: no", "Traceback (most recent call last):\n"): "ValueError: no",
    ms.FileError("/data/a.h5", "delay", "is truncated"): "dataset 'delay' of /data/a.h5: is truncated",
    ms.FileError("/data/a.h5", None, "is a folder"): "/data/a.h5: is a folder",
}


@pytest.mark.parametrize(("error", "text"), EXAMPLES.items(), ids=lambda value: type(value).__name__)
def test_text_and_facts_survive_pickling(error, text):
    assert text in str(error)
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert (str(twin), vars(twin)) == (str(error), vars(error))


def test_each_class_has_an_example():
    classes = {item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, ms.MpishareError)}
    assert {type(error) for error in EXAMPLES} == classes - {ms.MpishareError}


BUILTIN = {"Spec": TypeError, "Capacity": MemoryError, "Argument": ValueError, "File": OSError, "Stall": TimeoutError}


def test_they_are_also_what_python_programs_expect():
    assert all(issubclass(getattr(ms, f"{name}Error"), expected) for name, expected in BUILTIN.items())
