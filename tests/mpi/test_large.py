"""One array past 2**31 bytes and items. It takes gigabytes, so it runs in few launches."""

import numpy as np
import pytest

import mpishare as ms

pytestmark = pytest.mark.large

COUNT = 2**31 + 123
PERIOD = 251 * 4099  # two primes: no chunk and no page begins with the same bytes as another
PATTERN = np.random.default_rng(5).integers(0, 256, PERIOD, np.uint8)


def source(comm):
    """The array, on the last rank."""
    return np.resize(PATTERN, COUNT) if comm.rank == comm.size - 1 else None


def assert_whole(array):
    assert array.shape == (COUNT,)
    for start in range(0, COUNT, PERIOD):
        assert np.array_equal(array[start : start + PERIOD], PATTERN[: COUNT - start])


def test_an_array(comm):
    assert_whole(ms.share(source(comm), root=comm.size - 1))


@pytest.mark.ranks(2)
def test_a_message(comm):
    """From the last rank to the first."""
    ms.topology()
    if comm.rank == comm.size - 1:
        ms.send(source(comm), 0)
    elif comm.rank == 0:
        assert_whole(ms.recv())
