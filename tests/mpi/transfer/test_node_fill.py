"""node_fill and pipeline: every node gets every byte, from any root, in chunks of any size."""

from __future__ import annotations

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.transfer.pipeline import broadcast_chunks
from mpishare.transfer.plan import MIN_CMA_BYTES
from tests.mpi.conftest import Configured


@pytest.mark.parametrize("backend", ["", "private"])
@pytest.mark.parametrize("chunk", ["", "100_000", "1G"])
def test_arrays_reach_every_node(configured: Configured, chunk: str, backend: str) -> None:
    duplicate = configured(chunk=chunk.replace("_", ""), backend=backend)
    for count in (1, 5000, 200_000, MIN_CMA_BYTES // 8 + 3):
        table = np.arange(2 * count).reshape(2, count)
        for root in range(duplicate.size):
            for array in (table[1], table[:, ::2], np.asfortranarray(table)):
                shared = ms.share(array if duplicate.rank == root else None, root=root, comm=duplicate)
                assert (shared == array).all()


@pytest.mark.ranks(2)
def test_chunks_that_never_are_ready_stay_on_the_root(configured: Configured) -> None:
    context = context_of(configured(chunk="1000"))
    block, stops = np.full(4500, context.topology.rank == 0, np.uint8), []

    def until_ready(stop: int) -> bool:
        stops.append(stop)
        return stop <= 2000

    broadcast_chunks(context, 0, block, until_ready=until_ready)
    is_reached = context.topology.node > 0 and context.topology.is_leader
    assert block.tolist() == [context.topology.rank == 0 or (is_reached and number < 2000) for number in range(4500)]
    is_asked = context.topology.rank == 0 and context.topology.n_nodes > 1
    assert stops == ([1000, 2000, 3000, 4000, 4500] if is_asked else [])
