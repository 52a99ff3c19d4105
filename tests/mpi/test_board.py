"""The boards: agreements of the ranks of a node without a collective of MPI, and across nodes with a small one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare import board, bridge
from mpishare.agreement import BROUGHT_BYTES, NOTE_BYTES, agree
from mpishare.segments.segment import segment_of
from tests.mpi.test_agreement import (  # noqa: F401 - once more, on a board
    test_a_failure_goes_before_a_difference,
    test_all_well,
    test_an_error_that_cannot_be_told_keeps_nobody_waiting,
    test_any_rank,
    test_each_rank_in_turn_fails,
)

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(20)]


@pytest.fixture(params=["of a node", "of all"])
def comm(request: pytest.FixtureRequest) -> Iterator[board.Boarded]:
    """The ranks of this node, or all, with a board on each node, whatever the processor and however many."""
    here = ms.topology()
    memory = ms.zeros(board.size_bytes(MPI.COMM_WORLD.size), np.uint8)
    segment = segment_of(memory)
    assert segment is not None
    if request.param == "of a node":
        yield board.Boarded(here.node_comm, None, segment.address)
    else:
        yield bridge.Bridged(MPI.COMM_WORLD, None, segment.address, here.node_comm, here.leaders)
    assert memory.nbytes >= board.size_bytes(here.node_size)


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
        if ms.topology().node_rank == number % ms.topology().node_size:
            cell[0] = number
        with agree(comm):
            pass
        assert cell[0] == number
        with agree(comm):
            pass


class _Interrupt:
    """Raises in the midst of a meeting as the handler of a signal would, before one step of the interpreter."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __call__(self, frame: FrameType, event: str, _: object) -> _Interrupt | None:
        if frame.f_code.co_filename not in (board.__file__, bridge.__file__):
            return None
        frame.f_trace_opcodes = True
        self._left -= event == "opcode"
        if not self._left:
            raise KeyboardInterrupt
        return self


def _is_interrupted(comm: board.Boarded, call: str, step: int) -> bool:
    """Comes to a meeting, from which an exception takes it out before `step`, if it has so many; whether it did."""
    before = _meetings(comm)
    try:
        sys.settrace(_Interrupt(step))
        _meet(comm, call)
    except KeyboardInterrupt:
        if _meetings(comm) == before:  # it was taken out before it had come
            _meet(comm, call)
        return True
    finally:
        sys.settrace(None)
    return False


def _meetings(comm: board.Boarded) -> int:
    """How many meetings this rank has come to."""
    return max(side.came[comm._place] for side in comm._sides)


@pytest.mark.ranks(2)
def test_an_exception_at_any_step_leaves_the_ranks_in_step(comm: board.Boarded) -> None:
    """A rank is taken out of a meeting; the others go through it, and all meet again."""
    for victim in range(comm.size):
        for step in range(1, 400):
            interrupted = False
            if comm.rank == victim:
                interrupted = _is_interrupted(comm, f"call {step}", step)
            else:
                _meet(comm, f"call {step}")
            with agree(comm) as together:
                together.call = f"after {step}"
                told = step % 256 if comm.rank == step % comm.size else 0
                together.note = bytes([interrupted, told]).ljust(NOTE_BYTES, b"\0")
            assert together.note[1] == step % 256
            if not together.note[0]:
                break
        assert step > 50  # or nothing was interrupted


@pytest.mark.ranks(2)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_rank_may_be_taken_out_again_and_again(
    comm: board.Boarded, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last rank of each node comes to a meeting and leaves it while it waits for the first."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    node = ms.topology().node_comm
    leaver = node.size - 1
    for number in range(4):
        if node.rank == leaver != 0:
            with monkeypatch.context() as patch:
                patch.setattr(board, "sched_yield", interrupt)
                for _ in range(times):
                    with pytest.raises(KeyboardInterrupt):
                        _meet(comm, f"call {number}")
            node.send(None, 0)  # so that nobody was there before
        else:
            if node.rank == 0 != leaver:
                node.recv(source=leaver)
            _meet(comm, f"call {number}")
        _meet(comm, f"after {number}")


@pytest.mark.ranks(2)
def test_a_leader_that_is_taken_out_tells_the_outcome_later(
    comm: board.Boarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of what the leaders do is done once, however often an exception comes after it."""
    if not isinstance(comm, bridge.Bridged):
        return
    here = ms.topology()

    def broken(name: str) -> Any:
        real = getattr(board.Side, name)

        def part(side: board.Side) -> bytes:
            result: bytes = real(side)
            raise KeyboardInterrupt
            return result

        return part

    for number in range(4):
        if here.is_leader:
            with monkeypatch.context() as patch:
                patch.setattr(board.Side, "together", broken("together"))
                with pytest.raises(KeyboardInterrupt):
                    _meet(comm, f"call {number}")
        else:
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
def test_a_barrier_finds_ranks_that_are_in_another_call(comm: MPI.Intracomm) -> None:
    comm.Barrier()
    if comm.size > 1:
        with pytest.raises(ms.MismatchError):
            if comm.rank == 1:
                comm.Barrier()
            else:
                _meet(comm, "call")
    comm.Barrier()


def _does_share_on_boards(here: ms.Topology) -> bool:
    ms.zeros(1, comm=here.comm)
    assert ms.share(np.arange(3) if here.rank == 0 else None, comm=here.comm).tolist() == [0, 1, 2]
    does = isinstance(here.node_channel, board.Boarded)
    assert isinstance(here.channel, bridge.Bridged) == (does and here.n_nodes > 1)
    assert (here.channel is here.node_channel) == (does and here.n_nodes == 1)
    return does


@pytest.mark.ranks(2)
def test_shares_meet_on_boards() -> None:
    here = ms.topology(duplicate := MPI.COMM_WORLD.Dup())
    does = _does_share_on_boards(here)
    keeps = here.config.recycle != "0"
    together = ms.report().segments[0].copies == 1 if ms.report().segments else True
    wanted = board.does_for(max(map(len, here.layout.nodes))) and not here.is_watched and keeps and together
    assert does == wanted
    duplicate.Free()


@pytest.mark.ranks(2)
def test_no_node_has_boards_where_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ms.topology(duplicate := MPI.COMM_WORLD.Dup())
    if here.node == here.n_nodes - 1:
        monkeypatch.setattr(bridge, "boards_bytes", lambda _: 0)
    assert not _does_share_on_boards(here)
    duplicate.Free()


@pytest.mark.parametrize(("ranks", "does"), [(1, False), (17, False)])
def test_who_needs_none(ranks: int, does: bool) -> None:
    assert board.does_for(ranks) == does


def test_the_size_is_that_of_what_lies_on_it() -> None:
    for ranks in range(1, 17):
        memory = (ctypes.c_uint8 * board.size_bytes(ranks))()
        one = board.Side(ctypes.addressof(memory), ranks, ranks - 1)
        one.came[ranks - 1] = (1 << 64) - 1
        one.mine[:] = b"\x02" * BROUGHT_BYTES
        one.over[:] = b"\x03" * len(one.over)
        one.outcome[:] = b"\x04" * BROUGHT_BYTES
        found = bytes(memory[: board.size_bytes(ranks) // 2])
        assert [found.count(byte) for byte in (2, 3, 4, 255)] == [BROUGHT_BYTES, 8, BROUGHT_BYTES, 8]
        assert not any(memory[board.size_bytes(ranks) // 2 :])


def test_communicators_that_callers_can_see_may_be_freed() -> None:
    mine = MPI.COMM_WORLD.Dup()
    ms.share(np.arange(3), comm=mine)
    here = ms.topology(mine)
    here.rail.Free()
    assert ms.share(np.arange(3), comm=mine).tolist() == [0, 1, 2]
    mine.Free()
