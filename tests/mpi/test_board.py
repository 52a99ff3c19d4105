"""The board: agreements of the ranks of one node without a collective of MPI."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare import board
from mpishare.agreement import NOTE_BYTES, agree
from mpishare.segments.segment import segment_of
from tests.mpi.test_agreement import (  # noqa: F401 - once more, on a board
    test_a_failure_goes_before_a_difference,
    test_all_well,
    test_an_error_that_cannot_be_told_keeps_nobody_waiting,
    test_each_rank_in_turn_fails,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(20)]


@pytest.fixture
def comm() -> Iterator[MPI.Intracomm]:
    """The ranks of this node, with a board, whatever the processor and however many."""
    node = ms.topology().node_comm
    memory = ms.zeros(board.size_bytes(MPI.COMM_WORLD.size), np.uint8)
    segment = segment_of(memory)
    assert segment is not None
    yield board.Boarded(node, None, segment.address)
    assert memory.nbytes >= board.size_bytes(node.size)


@pytest.mark.ranks(2)
def test_different_calls(comm: MPI.Intracomm) -> None:
    if comm.size > 1:
        with pytest.raises(ms.MismatchError) as caught:
            _meet(comm, "odd" if comm.rank == 1 else "even")
        assert caught.value.calls == {rank: "odd" if rank == 1 else "even" for rank in range(comm.size)}


def test_a_note_comes_from_each_rank(comm: MPI.Intracomm) -> None:
    for number in range(3 * comm.size):
        with agree(comm) as together:
            together.call = f"call {number}"
            if comm.rank == number % comm.size:
                together.note = bytes([number]) * NOTE_BYTES
        assert together.note == bytes([number]) * NOTE_BYTES


def test_what_was_written_before_is_seen_after(comm: MPI.Intracomm) -> None:
    cell = ms.zeros(1)
    for number in range(200):
        if comm.rank == number % comm.size:
            cell[0] = number
        with agree(comm):
            pass
        assert cell[0] == number
        with agree(comm):
            pass


@pytest.mark.ranks(2)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_exception_in_the_wait_leaves_the_ranks_in_step(
    comm: MPI.Intracomm, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank comes to a meeting and leaves it while it waits; the others go through it, and all meet again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    leaver = comm.size - 1
    for number in range(4):
        if comm.rank == leaver != 0:
            with monkeypatch.context() as patch:
                patch.setattr(board, "sched_yield", interrupt)
                for _ in range(times):
                    with pytest.raises(KeyboardInterrupt):
                        _meet(comm, f"call {number}")
            comm.send(None, 0)  # so that nobody was there before
        else:
            if comm.rank == 0 != leaver:
                comm.recv(source=leaver)
            _meet(comm, f"call {number}")
        _meet(comm, f"after {number}")


def _meet(comm: MPI.Intracomm, call: str) -> None:
    with agree(comm) as together:
        together.call = call


@pytest.mark.ranks(2)
def test_waiting_ranks_let_messages_go_on(comm: MPI.Intracomm) -> None:
    """Rank 0 comes to a meeting with a large message on its way, which the others want before they come."""
    if comm.size == 1:
        return
    large = np.arange(1 << 20)
    if comm.rank == 0:
        requests = [comm.Isend(large, rank) for rank in range(1, comm.size)]
    else:
        comm.Recv(found := np.empty_like(large), 0)
        assert (found == large).all()
    with agree(comm):
        pass
    if comm.rank == 0:
        MPI.Request.Waitall(requests)


@pytest.mark.ranks(2)
def test_shares_of_one_node_meet_on_a_board() -> None:
    here = ms.topology(duplicate := MPI.COMM_WORLD.Dup())
    ms.zeros(1, comm=duplicate)
    keeps = here.config.recycle != "0"
    together = ms.report().segments[0].copies == 1 if ms.report().segments else True
    wanted = here.n_nodes == 1 and board.does_for(here.size) and not here.is_watched and keeps and together
    assert isinstance(here.channel, board.Boarded) == wanted
    duplicate.Free()


@pytest.mark.parametrize(("ranks", "does"), [(1, False), (17, False)])
def test_who_needs_none(ranks: int, does: bool) -> None:
    assert board.does_for(ranks) == does


def test_the_size_is_that_of_what_lies_on_it() -> None:
    for ranks in range(1, 17):
        memory = (ctypes.c_uint8 * board.size_bytes(ranks))()
        one = board._Side(ctypes.addressof(memory), ranks, ranks - 1)
        one.came[ranks - 1] = (1 << 64) - 1
        one.mine[:] = b"\x02" * len(one.mine)
        one.note[:] = b"\x03" * NOTE_BYTES
        assert bytes(memory[: board.size_bytes(ranks) // 2]).count(b"\x02") == len(one.mine)
        assert bytes(one.words).endswith(bytes(one.mine))
        assert not any(memory[board.size_bytes(ranks) // 2 :])
