"""Every node gets every byte, from any root, in any chunks."""

import numpy as np
import pytest

import mpishare as ms

THREADED_BYTES = 4 << 20


@pytest.mark.parametrize("backend", ["", "private"])
@pytest.mark.parametrize("chunk", ["", "100_000", "1G"])
def test_arrays_reach_every_node(configured, monkeypatch, chunk, backend):
    monkeypatch.setattr("mpishare.transfer.node_fill.THREADED_BYTES", THREADED_BYTES)
    duplicate = configured(chunk=chunk.replace("_", ""), backend=backend)
    for count in (1, 5000, 200_000, THREADED_BYTES // 8 + 3):
        table = ~np.arange(2 * count).reshape(2, count)  # of whose bytes few are 0
        for root in range(duplicate.size):
            for array in (table[1], table[:, ::2], np.asfortranarray(table)):
                shared = ms.share(array if duplicate.rank == root else None, root=root, comm=duplicate)
                assert (shared == array).all()
