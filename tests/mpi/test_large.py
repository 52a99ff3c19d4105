"""One array past 2**31 bytes and items. It takes gigabytes, so it runs in few launches."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms

pytestmark = [pytest.mark.mpi, pytest.mark.large, pytest.mark.timeout(300)]

COUNT = 2**31 + 123
PERIOD = 251 * 4099  # two primes: no chunk and no page begins with the same bytes as another


def test_more_than_two_to_the_31(comm: MPI.Intracomm) -> None:
    root = comm.size - 1
    pattern = np.random.default_rng(5).integers(0, 256, PERIOD, np.uint8)
    source = None
    if comm.rank == root:
        source = np.empty(COUNT, np.uint8)
        for start in range(0, COUNT, PERIOD):
            source[start : start + PERIOD] = pattern[: COUNT - start]
    shared = ms.share(source, root=root)
    del source
    assert shared.shape == (COUNT,)
    for start in range(0, COUNT, PERIOD):
        assert np.array_equal(shared[start : start + PERIOD], pattern[: COUNT - start])


@pytest.mark.ranks(2)
def test_a_message_of_more_than_two_to_the_31(comm: MPI.Intracomm) -> None:
    """From the last rank to the first, which then compares."""
    pattern = np.random.default_rng(5).integers(0, 256, PERIOD, np.uint8)
    ms.topology()
    if comm.rank == comm.size - 1:
        source = np.empty(COUNT, np.uint8)
        for start in range(0, COUNT, PERIOD):
            source[start : start + PERIOD] = pattern[: COUNT - start]
        ms.send(source, 0)
    elif comm.rank == 0:
        found = ms.recv()
        assert found.shape == (COUNT,)
        for start in range(0, COUNT, PERIOD):
            assert np.array_equal(found[start : start + PERIOD], pattern[: COUNT - start])
