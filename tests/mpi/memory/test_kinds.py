"""The conformance suite: what every segment kind must do."""

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.lookup import context_of
from tests.mpi.memory.conftest import KINDS, permissions, settings_of


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def only(request, configured):
    """The ranks of the launch with one kind alone, each in turn, and new memory for each array."""
    return configured(**settings_of(request.param), recycle="0"), request.param


def test_it_fits_and_the_report_names_it(only):
    comm, kind = only
    assert all(node.segments[kind.title].startswith("fits") for node in ms.info(comm=comm).nodes)
    array, node_size = ms.share(np.arange(1000), comm=comm), ms.topology(comm).node_size
    segment = next(segment for segment in ms.report().segments if segment.nbytes == array.nbytes)
    copies = 1 if kind.is_shared else node_size
    assert (segment.backend, segment.copies) == (kind.title, copies)
    assert segment.bytes_saved == array.nbytes * (node_size - copies)


@pytest.mark.parametrize("nbytes", [1, 4095, 4097, 5 << 20])
def test_ranks_of_a_node_see_one_copy_or_each_its_own(only, nbytes):
    comm, kind = only
    nodes = ms.topology(comm)
    if not kind.is_shared and max(map(len, nodes.placement.nodes)) > 1:
        with pytest.raises((ms.BackendError, ms.PeerError), match="write to a copy of its own"):
            ms.empty(nbytes, "u1", comm=comm)
        return
    array = ms.empty(nbytes, "u1", comm=comm)
    if nodes.is_leader:
        array[:] = 1 + nodes.node
    ms.fence(comm=comm)
    assert (array == 1 + nodes.node).all()


def test_shared_bytes_are_on_read_only_pages_that_go_with_the_last_view(only):
    comm, _ = only
    for root in range(comm.size):
        source = np.random.default_rng(root).integers(0, 256, 100_000, np.uint8)
        block = ms.share(source if comm.rank == root else None, root=root, comm=comm)
        assert np.array_equal(block, source)
        view, address = block[::7].reshape(-1, 1), block.ctypes.data
        del block
        assert np.array_equal(view[:, 0], source[::7])
        if context_of(comm).config.second_map:
            assert permissions(address).startswith("r--")
            del view
            assert not permissions(address)
