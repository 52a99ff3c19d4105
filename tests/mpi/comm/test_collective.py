"""The entry of every collective: what it refuses, and that each public collective passes it."""

from contextlib import suppress

import numpy as np
import pytest

import mpishare as ms
from mpishare import kernels
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective

OVER_ALL = {
    "share": lambda comm, array, folder: ms.share(1, comm=comm),
    "zeros": lambda comm, array, folder: ms.zeros(3, comm=comm),
    "bcast": lambda comm, array, folder: ms.bcast(array, comm=comm),
    "allreduce": lambda comm, array, folder: ms.allreduce(np.ones(2), comm=comm),
    "allgather": lambda comm, array, folder: ms.allgather(np.ones(2), comm=comm),
    "gather": lambda comm, array, folder: ms.gather(np.ones(2), comm=comm),
    "scatter": lambda comm, array, folder: ms.scatter(np.ones(2), comm=comm),
    "load": lambda comm, array, folder: ms.load(folder / "a.npy", comm=comm),
    "save": lambda comm, array, folder: ms.save(folder / "a.npy", np.ones(2), comm=comm),
    "Checkpoint": lambda comm, array, folder: ms.Checkpoint(folder, comm=comm),
    "map": lambda comm, array, folder: ms.map(abs, [1], comm=comm),
    "Pool": lambda comm, array, folder: ms.Pool(comm),
    "fence everywhere": lambda comm, array, folder: ms.fence(comm=comm, scope="all"),
    "info": lambda comm, array, folder: ms.info(comm=comm),
}
OVER_A_NODE = {
    "fence": lambda comm, array, folder: ms.fence(comm=comm),
    "fill": lambda comm, array, folder: kernels.fill(array, 0.0, comm=comm),
    "checksum": lambda comm, array, folder: kernels.checksum(array, comm=comm),
}


@pytest.mark.parametrize("name", [*OVER_ALL, *OVER_A_NODE])
def test_a_call_that_an_exception_ended_on_one_rank_is_the_last_on_its_communicator(
    name, duplicate, shared_folder, raised
):
    array, last = ms.zeros(3, comm=duplicate), duplicate.size - 1
    ms.save(shared_folder / "a.npy", np.ones(2), comm=duplicate)
    with suppress(KeyboardInterrupt), collective("call", duplicate) as call:
        with call.begin():
            pass
        if duplicate.rank == last:
            raise KeyboardInterrupt
    errors = raised(lambda: (OVER_ALL | OVER_A_NODE)[name](duplicate, array, shared_folder))
    nodes = ms.topology(duplicate)
    others = [rank for rank in range(last) if name in OVER_ALL or rank in nodes.ranks_of(nodes.node_of(last))]
    classes = {**dict.fromkeys(others, "PeerError"), last: "MpishareError"}
    assert [error for error, _ in errors] == [classes.get(rank, "nothing") for rank in range(last + 1)]
    assert all("out of step" in errors[rank][1] for rank in classes)


@pytest.mark.ranks(2)
def test_an_error_that_one_node_knows_leaves_the_ranks_out_of_step(duplicate):
    nodes = ms.topology(duplicate)
    with pytest.raises((ValueError, ms.PeerError)), collective("call", duplicate) as call:
        with call.begin():
            pass
        with agree(call.context.node_collective_comm):
            if nodes.is_leader:
                raise ValueError
    assert call.context.is_out_of_step == (nodes.n_nodes > 1)


def test_a_call_within_a_call_is_refused_and_leaves_the_outer_one_whole(duplicate):
    with collective("outer", duplicate) as call:
        with call.begin():
            pass
        with pytest.raises(ms.MpishareError, match=r"zeros was called while this rank is in outer"):
            ms.zeros(1, comm=duplicate)
        call.release()
        assert ms.zeros(1, comm=duplicate)[0] == 0
    assert ms.zeros(1, comm=duplicate)[0] == 0


@pytest.mark.ranks(2)
def test_a_communicator_whose_first_call_stalled_stays_refused(duplicate, comm, monkeypatch):
    monkeypatch.setenv("MPISHARE_TIMEOUT", "0.5")
    late = comm.size - 1
    for is_first in (True, False):
        if comm.rank != late or not is_first:
            with pytest.raises(ms.StallError, match="the first call on a communicator has waited"):
                ms.topology(duplicate)
        comm.Barrier()


@pytest.mark.ranks(2)
def test_a_communicator_whose_first_call_failed_answers_no_ranks_that_wait(configured):
    with pytest.raises(ms.ArgumentError, match="MPISHARE_NODES") as failed:  # whose frames live as long
        configured(nodes="rows:2")
    watched = configured(nodes="block:1", timeout="0.2")
    with pytest.raises(ms.StallError):
        ms.recv((watched.rank + 1) % watched.size, comm=watched)
    assert "rows:2" in str(failed.value)
