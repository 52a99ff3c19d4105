"""Errors say what came, carry it as attributes, and survive the way to another process."""

from __future__ import annotations

import pickle

import pytest

import mpishare as ms
from mpishare import errors

EXAMPLES = [
    ms.ArgumentError("root 9 is no rank"),
    ms.SpecError("dtype object cannot be shared"),
    ms.BackendError("window is refused"),
    ms.LaunchError("6 processes were started together"),
    ms.CapacityError("n1", "/dev/shm", 2000, 1000, "Share less."),
    ms.MismatchError({0: "share", 1: "empty", 2: "share"}),
    ms.PeerError(3, "n1", "ValueError: no", 2),
    ms.PeerCapacityError(3, ms.CapacityError("n1", "/dev/shm", 2000, 1000, "Share less."), 1),
    ms.StallError("share(root=0) at job.py:7", 2.5, {1: "on host n1 is in zeros() at job.py:9"}),
    ms.TaskError(7, 3, "n1", "ValueError: no", "Traceback (most recent call last):\n"),
    ms.FileError("/data/a.h5", "delay", "is truncated"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickling_keeps_words_and_facts(error: ms.MpishareError) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_each_class_has_an_example() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type)]
    named = {item for item in classes if issubclass(item, ms.MpishareError)} - {ms.MpishareError}
    assert {type(error) for error in EXAMPLES} == named


def test_they_are_also_what_python_programs_expect() -> None:
    assert issubclass(ms.SpecError, TypeError)
    assert issubclass(ms.CapacityError, MemoryError)
    assert issubclass(ms.ArgumentError, ValueError)
    assert issubclass(ms.FileError, OSError)


def test_capacity_names_the_host_and_the_numbers() -> None:
    assert str(EXAMPLES[4]) == (
        "2,000 bytes do not fit in /dev/shm of host n1, which has 1,000 bytes free. Share less."
    )


def test_mismatch_groups_the_ranks() -> None:
    assert "ranks 0, 2: share; rank 1: empty" in str(EXAMPLES[5])
    many = ms.MismatchError({rank: "share" if rank else "empty" for rank in range(512)})
    assert "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 503 more: share" in str(many)


def test_peer_names_rank_host_and_words() -> None:
    assert str(EXAMPLES[6]) == "rank 3 on host n1 failed: ValueError: no (and 2 more ranks failed)"


def test_what_does_not_fit_elsewhere_can_be_caught_in_the_same_way() -> None:
    error = EXAMPLES[7]
    assert isinstance(error, ms.CapacityError)
    assert isinstance(error, ms.PeerError)
    assert (error.rank, error.host, error.where, error.wanted, error.free) == (3, "n1", "/dev/shm", 2000, 1000)
    assert str(error) == f"rank 3 on host n1 failed: CapacityError: {EXAMPLES[4]} (and 1 more ranks failed)"


def test_stall_names_who_is_missing() -> None:
    assert isinstance(EXAMPLES[8], TimeoutError)
    assert str(EXAMPLES[8]) == (
        "share(root=0) at job.py:7 has waited 2.5 s (MPISHARE_TIMEOUT) for ranks that have not come: "
        "rank 1 on host n1 is in zeros() at job.py:9"
    )


def test_file_names_the_path_and_the_dataset() -> None:
    assert str(EXAMPLES[10]) == "dataset 'delay' of /data/a.h5: is truncated"
    assert str(ms.FileError("/data/a.h5", None, "is a folder")) == "/data/a.h5: is a folder"
