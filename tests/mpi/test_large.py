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
    assert_pattern(array)


def assert_pattern(array):
    for start in range(0, array.size, PERIOD):
        assert np.array_equal(array[start : start + PERIOD], PATTERN[: array.size - start])


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


@pytest.mark.ranks(2)
def test_rows_of_another_node(comm):
    """The first rank takes all rows of the last one's node, four times over and one more."""
    rows = np.resize(PATTERN, (128, 4 << 20)) if comm.rank == comm.size - 1 else None
    distributed = ms.distribute(rows, root=comm.size - 1, counts=[0] * (ms.topology().n_nodes - 1) + [128])
    taken = distributed.take([*range(128)] * 4 + [127] if comm.rank == 0 else [])
    if comm.rank == 0:
        assert taken.nbytes > COUNT
        assert np.array_equal(taken[511], taken[512])
        for start in range(0, 512, 128):
            assert_pattern(taken[start : start + 128].reshape(-1))
