"""empty, zeros and full: one writable array per node, which all of its ranks see."""

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import DTYPES, REPRESENTATIVES


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), 5, (0,), (2, 0, 3), (3, 4), (7, 1, 5)])
def test_shape_and_order(shape, order):
    for array in (ms.empty(shape, order=order), ms.zeros(shape, order=order), ms.full(shape, 2.5, order=order)):
        twin = np.empty(shape, order=order)
        assert (array.shape, array.dtype, array.flags.fnc) == (twin.shape, twin.dtype, twin.flags.fnc)
        assert array.flags.writeable
        assert type(array) is np.ndarray


def test_zeros_are_zero_in_every_byte():
    for source in REPRESENTATIVES.values():
        array = ms.zeros(source.shape, source.dtype)
        assert (array.shape, array.dtype) == (source.shape, source.dtype)
        assert array.tobytes() == bytes(source.nbytes)


UNTYPED = [7, 2.5, True, 3 + 4j, "naïve", np.datetime64("2013-01-01", "s")]
TYPED = [(b"bytes", "S3"), (-1, ">i4"), (0.1, "g"), (float("nan"), "f4"), ((1, 2.0, b"ab"), DTYPES["struct"])]


@pytest.mark.parametrize(("value", "dtype"), [*((value, None) for value in UNTYPED), *TYPED])
def test_full_is_numpys_full(value, dtype):
    array = ms.full((4, 3), value, dtype)
    twin = np.empty((4, 3), array.dtype)
    twin[...] = value
    assert array.dtype == (np.array(value).dtype if dtype is None else dtype)
    assert array.tolist() == twin.tolist() or array.tobytes() == twin.tobytes()


def test_arrays_of_one_rank():
    array = ms.full(10, MPI.COMM_WORLD.rank, comm=MPI.COMM_SELF)
    assert array.tolist() == [MPI.COMM_WORLD.rank] * 10
