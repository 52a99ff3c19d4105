"""MPISHARE_RAILS and MPISHARE_CHUNK: other ways for the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.segments import registry
from mpishare.segments.protocol import Kind
from tests.mpi.test_segments import HERE, use

pytestmark = pytest.mark.mpi

COUNT = (9 << 19) // 8 + 3


@pytest.fixture(params=[(2, None), (3, 100_000), (1, 7)], ids=str)
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number of rails, with a size of chunks."""
    rails, chunk = request.param
    use(monkeypatch, rails=rails, chunk_bytes=chunk, directory=None)


@pytest.mark.parametrize("kind", HERE, ids=lambda kind: kind.title)
@pytest.mark.usefixtures("_ways")
def test_share_from_every_root(kind: Kind, comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KINDS", (kind,))
    config = ms.topology().config
    count = COUNT if (config.chunk_bytes or COUNT) > 1000 else 500
    for root in range(comm.size):
        source = np.arange(root, count + root)
        shared = ms.share(source[::-1][::-1] if comm.rank == root else None, root=root, backend=kind.name)
        assert (shared == source).all()
        strided = ms.share(source[::2] if comm.rank == root else None, root=root, backend=kind.name)
        assert (strided == source[::2]).all()
        del shared, strided


@pytest.mark.usefixtures("_ways")
def test_bcast_from_every_root(comm: MPI.Intracomm) -> None:
    config = ms.topology().config
    grid = ms.zeros(COUNT if (config.chunk_bytes or COUNT) > 1000 else 500)
    here = ms.topology()
    for root in range(comm.size):
        if here.node == here.node_of(root) and here.is_leader:
            grid[:] = root + 1
        ms.fence()
        ms.bcast(grid, root=root)
        assert (grid == root + 1).all()
        ms.fence(scope="all")
