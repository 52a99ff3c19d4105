"""put: NumPy's assignment, on every node, from one rank."""

import time
from typing import Any

import numpy as np
import pytest

import mpishare as ms
from tests.arrays import DTYPES, bits, filled
from tests.mpi.test_errors import assert_refused, assert_refused_alike

F8 = np.arange(24.0).reshape(4, 6)
ROWS = filled(DTYPES["struct"], (4, 6))
LARGE = np.arange(600_000).reshape(300, 2000)
# For each case the array, the region and the data.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "rows": (F8, np.s_[1:3], -F8[:2]),
    "one item": (F8, (1, 2), np.array(-1.0)),
    "all items": (F8, ..., -F8),
    "a column": (F8, np.s_[:, 2], [1, 2, 3, 4]),
    "reversed, with steps": (F8, np.s_[::-2, 5:0:-2], F8[:2, :3]),
    "one number": (F8, np.s_[1:, 1:], 3),
    "one number of u1": (F8.astype("u1"), np.s_[1:3], 200),
    "more axes than the region": (F8, 2, -F8[None, :1]),
    "cast": (F8.astype("f4"), np.s_[1:3], np.full((2, 6), 0.1)),
    "Fortran order": (np.asfortranarray(F8), np.s_[:, 1:3], np.asfortranarray(-F8[:, :2])),
    "strided": (F8, np.s_[:2, :3], -F8[::2, ::2]),
    "records": (ROWS, np.s_[1:3], ROWS[2:]),
    "rows by a list, one twice": (F8, [1, 3, 1], 7.0),
    "columns by a mask": (F8, np.s_[:, F8[0] % 2 == 0], -F8[:, :3]),
    "records by a list": (ROWS, [2, 0], ROWS[2:]),
    "large rows by a mask": (LARGE, np.arange(300) % 3 > 0, -LARGE[:200]),
    "no dimensions": (np.array(3.0), (), 4.0),
    "large rows": (LARGE, np.s_[7:290], -LARGE[10:293]),
    "a large number": (LARGE, np.s_[7:290], 5),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_numpys_assignment_from_every_root(comm, name):
    array, region, data = CASES[name]
    expected = array.copy(order="K")
    expected[region] = data
    for root in range(comm.size):
        ours = ms.share(array, writable=True)
        ms.put(ours, region, data if comm.rank == root else None, root=root)
        assert bits(ours) == bits(expected)
        comm.Barrier()


def test_data_may_be_a_part_of_the_same_array(comm):
    for source, region in ((np.s_[:200], np.s_[100:]), (np.s_[100:], np.s_[:200]), (np.s_[::-1], ...)):
        ours, expected = ms.share(LARGE, writable=True), LARGE.copy()
        expected[region] = expected[source].copy()
        ms.put(ours, region, ours[source] if comm.rank == comm.size - 1 else None, root=comm.size - 1)
        assert bits(ours) == bits(expected)


@pytest.mark.ranks(2)
def test_a_region_that_differs_from_that_of_the_last_call(comm, raised):
    ours, expected, last = ms.zeros((4, 6)), np.zeros((4, 6)), comm.size - 1
    regions: list[Any] = [np.s_[:2], np.s_[1:3], np.s_[1:3, ...], np.s_[1:3, :2], 1, np.int32(1), [1], (None, 1), ...]
    for number, region in enumerate(regions * 2):
        expected[region] = number
        ms.put(ours, region, number)
        assert bits(ours) == bits(expected)
        comm.Barrier()
    errors = raised(lambda: ms.put(ours, np.s_[1:] if comm.rank == last else ..., 1.0))
    assert_refused_alike(errors, "MismatchError", f"rank {last}: ")
    errors = raised(lambda: ms.put(ours, np.s_[:1.0] if comm.rank == last else np.s_[:1], 1.0))
    assert_refused(errors, last, "ArgumentError", "region")


def test_other_columns_keep_their_bytes(comm):
    ours = ms.share(ROWS, writable=True)
    part, data = ours[["id", "name"]], np.zeros(6, [("id", "i8"), ("name", "S3")])
    data["id"] = np.arange(6)
    ms.put(part, 2, data if comm.rank == 0 else None)
    assert ours["id"][2].tolist() == list(range(6))
    ms.put(part, (2, 0), data[0] if comm.rank == 0 else None)
    assert bits(ours["mass"]) == bits(ROWS["mass"])
    ms.put(ours[["id", "name"]], [1, 3], data if comm.rank == 0 else None)
    assert ours["id"][[1, 3]].tolist() == [data["id"].tolist()] * 2
    assert bits(ours["mass"]) == bits(ROWS["mass"])
    ms.put(ours[["id", "name"]], [1, 3], ROWS[["id", "name"]][[1, 3]] if comm.rank == 0 else None)
    ms.put(ours["mass"], np.s_[0], 1.5)
    assert ours["mass"][0].tolist() == [1.5] * 6
    assert bits(ours[1]) == bits(ROWS[1])


def test_it_waits_for_all_ranks_before_it_writes(comm):
    ours = ms.zeros((3, 1000))
    for late in range(comm.size):
        root = (late + 1) % comm.size
        if comm.rank == late:
            time.sleep(0.02)  # the others are in the call by now
            assert (ours == late).all()
        ms.put(ours, ..., late + 1 if comm.rank == root else None, root=root)
        assert (ours == late + 1).all()
