"""Each large buffer that a call allocates is refused once, on one rank."""

import numpy as np
import pytest

import mpishare as ms

LARGE_BYTES = 64 << 10

ROWS = np.arange(200_000.0).reshape(-1, 4)
SQUARE = np.asfortranarray(ROWS[:4000].reshape(4, -1))
CALLS = {
    "allreduce": lambda comm: ms.allreduce(ROWS),
    "allreduce of another order": lambda comm: ms.allreduce(SQUARE if comm.rank == 0 else SQUARE.copy("C")),
    "allreduce of every second row": lambda comm: ms.allreduce(ROWS[::2]),
    "allgather": lambda comm: ms.allgather(ROWS[::2]),
    "gather": lambda comm: ms.gather(ROWS[::2], root=comm.size - 1),
    "scatter": lambda comm: ms.scatter(ROWS[:, ::2]),
    "put": lambda comm: ms.put(ms.zeros((400, 400)), np.s_[:, ::2], np.ones((400, 200), "f4")),
    "distribute": lambda comm: ms.distribute(ROWS[:, ::2]),
    "take": lambda comm: ms.distribute(ROWS).take(np.arange(len(ROWS))[::-1]),
}

OF_ROOT = "gather", "scatter"
"""Their buffers are checked to be given by the kernel."""


@pytest.mark.parametrize("name", CALLS)
def test_memory_that_one_rank_does_not_get(comm, monkeypatch, name):
    allocate, n_left = np.empty, 0
    own, peer = (ms.CapacityError, ms.PeerCapacityError) if name in OF_ROOT else (MemoryError, ms.PeerError)
    expected = peer if comm.rank else own

    def allocate_or_fail(*args, **options):
        nonlocal n_left
        array = allocate(*args, **options)
        n_left -= array.nbytes >= LARGE_BYTES
        if n_left == 0 and array.nbytes >= LARGE_BYTES:
            raise MemoryError
        return array

    for number in range(1, 20):
        n_left = number
        with monkeypatch.context() as patch:
            if comm.rank == 0:
                patch.setattr(np, "empty", allocate_or_fail)
            try:
                CALLS[name](comm)
                outcome = "result"
            except (MemoryError, ms.MpishareError) as error:
                outcome = "error" if isinstance(error, expected) else repr(error)
        outcomes = set(comm.allgather(outcome))
        assert outcomes in ({"result"}, {"error"})
        CALLS[name](comm)
        if outcomes == {"result"}:
            return
    pytest.fail("every call fails")
