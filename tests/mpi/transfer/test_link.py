"""The link between nodes is measured once, alike on all ranks, and every way that follows from it keeps the bits."""

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory_report import LinkReport
from mpishare.transfer import link, plan
from mpishare.transfer.link import MIN_BYTES, measure_link, measured_link
from mpishare.transfer.plan import Choice, Link, Way

LARGE_BYTES = 3 << 20
"""More than MPI's own broadcast brings."""


def share_bytes(comm, nbytes):
    """Shares from the last rank."""
    last = comm.size - 1
    array = ms.share(np.arange(nbytes, dtype="u1") if comm.rank == last else None, root=last, comm=comm)
    assert (array == np.arange(nbytes, dtype="u1")).all()


CALLS = {
    "share": lambda comm, array: ms.share(array, comm=comm),
    "object": lambda comm, array: ms.share({"a": array}, comm=comm),
    "bcast": lambda comm, array: ms.bcast(ms.zeros(array.shape, array.dtype, comm=comm), comm=comm),
    "info": lambda comm, array: ms.info(comm=comm),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_measured_before_the_first_large_array(name, duplicate):
    context = context_of(duplicate)
    share_bytes(duplicate, MIN_BYTES - 1)
    assert measured_link(context) is None
    CALLS[name](duplicate, np.ones(LARGE_BYTES, "u1"))
    first = measured_link(context)
    assert set(duplicate.allgather(first)) == {first}
    assert (first is not None) == (context.topology.n_nodes > 1)
    share_bytes(duplicate, LARGE_BYTES + 1)
    assert measured_link(context) is first


def test_many_smaller_arrays_have_it_measured_where_they_travel_in_chunks(duplicate):
    context = context_of(duplicate)
    for is_measured in [False] * 16 + [context.topology.n_nodes > 2]:
        share_bytes(duplicate, MIN_BYTES - 1)
        assert (measured_link(context) is not None) == is_measured


def test_it_stands_in_info_and_report(duplicate):
    facts = ms.info(comm=duplicate)
    nodes = ms.topology(duplicate)
    assert (facts.link is not None) == (nodes.n_nodes > 1) == ("us, a larger one" in str(facts))
    if facts.link is not None:
        assert facts.as_dict()["link"]["byte_s"] == facts.link.byte_s > 0
        assert 0 <= facts.link.eager_s <= facts.link.large_s
        report = ms.report()
        row = LinkReport(**vars(facts.link), size=nodes.size, n_nodes=nodes.n_nodes)
        assert row in report.links
        assert str(row) in str(report)


def test_nothing_is_measured_where_chunks_are_given(configured):
    comm = configured(chunk="64K")
    share_bytes(comm, MIN_BYTES)
    assert measured_link(context_of(comm)) is None


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_exception_in_the_probe_is_every_ranks_and_leaves_no_message(number, duplicate, raised, monkeypatch):
    context = context_of(duplicate)
    if context.topology.n_nodes == 1:
        return
    victim, own_comm = context.topology.placement.leader(1), context.collective_comm
    begin, left = own_comm.isend, [number]

    def interrupted(*args):
        left[0] -= 1
        if not left[0]:
            raise ms.ArgumentError("interrupted")
        return begin(*args)

    if duplicate.rank == victim:
        monkeypatch.setattr(own_comm, "isend", interrupted)
    errors = [error for error, _ in raised(lambda: measure_link(context, MIN_BYTES))]
    assert errors == ["ArgumentError" if rank == victim else "PeerError" for rank in range(duplicate.size)]
    assert measured_link(context) is None
    monkeypatch.undo()
    share_bytes(duplicate, LARGE_BYTES)
    assert measured_link(context) is not None


@pytest.mark.parametrize("chunk_bytes", [20_000, 1 << 20])
@pytest.mark.parametrize("way", Way)
def test_every_way_keeps_the_bits(way, chunk_bytes, duplicate, monkeypatch):
    monkeypatch.setattr(plan, "choose", lambda *_: Choice(way, chunk_bytes, 0.0))
    for root in {0, duplicate.size - 1}:
        for array in (np.arange(330_000.0), np.arange(30_001)[::3], np.full(3, root)):
            shared = ms.share(array if duplicate.rank == root else None, root=root, comm=duplicate)
            assert (shared == array).all()
            ours = ms.zeros(array.shape, array.dtype, comm=duplicate)
            if duplicate.rank == root:
                ours[:] = array
            assert (ms.bcast(ours, root=root, comm=duplicate) == array).all()


SECONDS = {
    "a link of 400 Mbit/s": (105e-6, 0.87e-3, 1.68e-3),
    "the same, where only the larger message is held to its rate": (60e-6, 65e-6, 1.35e-3),
    "the same, where a rank waited in the small messages": (1.5e-3, 0.87e-3, 1.68e-3),
}


@pytest.mark.parametrize("name", SECONDS)
def test_a_slow_link_is_slow_whatever_disturbs_the_probe(name):
    seconds = SECONDS[name]
    _, *attributes = link._numbers([link._Round(9.0, 9.0, 9.0, 9.0), link._Round(sum(seconds), *seconds)])
    for count in (3, 4, 8):
        assert plan.choose(32 << 20, count, Link(*attributes)).chunk_bytes <= plan.EAGER_BYTES


def test_one_round_in_which_a_rank_waits_does_not_end_the_probe():
    quick, disturbed = link._Round(2e-4, 1e-5, 4e-5, 8e-5), link._Round(9e-3, 4e-3, 4e-3, 1e-3)
    for rounds in ([disturbed, quick], [quick, disturbed], [quick, quick, quick, disturbed]):
        assert link._numbers(rounds)[0] == quick.seconds
    _, *attributes = link._numbers([quick, quick, quick, disturbed])
    assert 1e-9 > attributes[0] > 0


def test_what_a_link_lets_pass_at_once_does_not_count():
    """256 KiB of a link of 400 Mbit/s: all of two rounds and part of the third."""
    free, part, held = (2e-4, 2e-5, 5e-5, 9e-5), (1.8e-3, 2e-5, 4e-4, 1.35e-3), (2.4e-3, 1e-4, 0.84e-3, 1.4e-3)
    _, byte_s, _, _ = link._numbers([link._Round(*seconds) for seconds in (free, free, part, held)])
    assert byte_s > 1e-8
