"""After each test of tasks, the communicator can be used."""

import pytest
from mpi4py import MPI

import mpishare as ms


@pytest.fixture(autouse=True)
def _next_call_works(comm):
    """After each test the communicator is usable, and that of the caller has no message of ours."""
    yield
    assert ms.map(abs, range(-3, 3), gather="all") == [3, 2, 1, 0, 1, 2]
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
