"""Paths, trees and chunk sizes, whatever the numbers; and rings, simulated: each byte crosses each link once."""

import random
from collections import Counter, deque

import pytest

from mpishare.comm.topology import Placement
from mpishare.transfer import plan, ring_plan
from mpishare.transfer.plan import LINE_BYTES, Choice, Link, Way
from mpishare.transfer.ring_plan import joined_runs, run_bytes


@pytest.mark.parametrize("labels", ["aaaa", "abcd", "abab", "abbb", "aabc", "a"])
def test_a_chain_begins_at_the_root_and_visits_each_node_once(labels):
    placement = Placement.from_labels(list(labels))
    for root in range(len(labels)):
        path = plan.chain(placement, root)
        assert path[0] == root
        nodes, first = [placement.node_of[rank] for rank in path], placement.node_of[root]
        assert nodes == [*range(first, len(placement.nodes)), *range(first)]
        assert all(rank == placement.leader(placement.node_of[rank]) for rank in path[1:])


def routes(nbytes, count, choice):
    """The steps of all places."""
    return [plan.steps(nbytes, range(count), place, choice) for place in range(count)]


@pytest.mark.parametrize("count", [*range(2, 65), 100, 1024])
@pytest.mark.parametrize("way", Way)
def test_every_byte_reaches_every_place_once(way, count):
    nbytes = 7 if count <= 64 else 3
    all_steps = routes(nbytes, count, Choice(way, 1, 0.0))
    sent = Counter((dest, chunk.start) for steps in all_steps for step in steps for dest, chunk in step.sends)
    assert sent == Counter((place, byte) for place in range(1, count) for byte in range(nbytes))
    for place, steps in enumerate(all_steps):
        assert sorted(step.chunk.start for step in steps) == list(range(nbytes))
        for step in steps:
            assert (step.parent is None) == (place == 0)
            assert step.parent is None or any((place, step.chunk) in other.sends for other in all_steps[step.parent])


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("count", range(2, 34))
def test_a_place_sends_what_has_come_and_no_more_than_all_bytes(way, count):
    """So that all links are busy alike, but for the last chunks, which go to several places."""
    for steps in routes(40, count, Choice(way, 1, 0.0)):
        came = set()
        for step in steps:
            came.add(step.chunk.start)
            assert came.issuperset(chunk.start for _, chunk in step.sends)
        assert sum(len(step.sends) for step in steps) <= 40 + 3 * count.bit_length()


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 512, 1000])
def test_a_circulant_graph_takes_the_fewest_rounds(count):
    """Each third of the chunks in as many as there are levels, and one more for each further chunk."""
    for place in {1, 2, count // 2, count - 1} - {0}:
        rounds = [number for _, number, _ in plan._rounds(20, count, place)]
        assert len(set(rounds)) == 20
        assert max(rounds) < 20 - 1 + (count - 1).bit_length()


def has_ended(all_steps, window):
    """Plays what the places do, where MPI keeps no message: whether all of them come to their end.

    Each place posts `window` receives, waits for the oldest, and then for its own oldest sends.
    """
    count, length = len(all_steps), len(all_steps[0])
    most = [window * max(len(step.sends) for step in steps) for steps in all_steps]
    begun, sent, arrived = (
        [0] * count,
        [deque() for _ in range(count)],
        {(0, step.chunk.start) for step in all_steps[0]},
    )
    moved = True
    while moved:
        moved = False
        posted = {
            (place, step.chunk.start)
            for place, steps in enumerate(all_steps)
            for step in steps[: begun[place] + window]
        }
        for place, steps in enumerate(all_steps):
            arrived |= posted.intersection(sent[place])
            while sent[place] and sent[place][0] in arrived:
                sent[place].popleft()
            if (
                begun[place] < length
                and len(sent[place]) <= most[place]
                and (place, steps[begun[place]].chunk.start) in arrived
            ):
                step = steps[begun[place]]
                sent[place].extend((dest, chunk.start) for dest, chunk in step.sends)
                begun[place] += 1
                moved = True
    return begun == [length] * count


@pytest.mark.parametrize("window", [3, 4])
@pytest.mark.parametrize("count", [*range(2, 18), 31, 64])
def test_no_circle_of_places_waits_in_a_circulant_graph(count, window):
    assert has_ended(routes(20, count, Choice(Way.CIRCULANT_GRAPH, 1, 0.0)), window)


SLOW, QUICK = Link(20e-9, 11e-6, 270e-6), Link(0.1e-9, 5e-6, 10e-6)
MIB = 1 << 20

CHOICES = [
    (0, 8, SLOW, Way.CIRCULANT_GRAPH, 1),
    (1000, 8, SLOW, Way.CIRCULANT_GRAPH, 1000),  # one chunk: a binomial tree
    (64 << 10, 2, SLOW, Way.CHAIN, 32 << 10),  # two eager messages rather than a larger one
    (MIB, 2, SLOW, Way.CHAIN, 58_304),
    (32 * MIB, 2, SLOW, Way.CHAIN, 61_376),
    (32 * MIB, 2, QUICK, Way.CHAIN, 32 * MIB),  # one message, as no cache matters
    (16 * MIB, 2, Link(0.29e-9, 7.4e-6, 19.6e-6), Way.CHAIN, 61_248),  # rendezvous stalls more than the model says
    (32 * MIB, 4, SLOW, Way.CHAIN, 61_376),
    (32 * MIB, 4, QUICK, Way.CHAIN, 199_744),  # twice what a message takes besides: the link is busy while ranks work
    (32 * MIB, 32, QUICK, Way.CIRCULANT_GRAPH, 199_744),
    (MIB, 4, QUICK, Way.CHAIN, 209_728),
    (32 << 10, 8, QUICK, Way.CIRCULANT_GRAPH, 32 << 10),
    (32 * MIB, 16, SLOW, Way.CHAIN, 36_352),  # the graph saves little
    (32 * MIB, 512, QUICK, Way.CIRCULANT_GRAPH, 199_744),  # twice what a message takes besides
    (32 * MIB, 512, Link(0.04e-9, 1e-6, 1e-6), Way.CIRCULANT_GRAPH, 61_504),  # larger than an eager one
    (1024 * MIB, 33, SLOW, Way.CIRCULANT_GRAPH, 60 << 10),  # no chain of so many nodes
    (1024 * MIB, 1024, QUICK, Way.CIRCULANT_GRAPH, 1_242_816),
]


@pytest.mark.parametrize(("nbytes", "count", "link", "way", "chunk_bytes"), CHOICES)
def test_the_models_decide(nbytes, count, link, way, chunk_bytes):
    choice = plan.choose(nbytes, count, link)
    assert (choice.way, choice.chunk_bytes) == (way, chunk_bytes)


MIDDLE = Link(0.4e-9, 7e-6, 20e-6)


@pytest.mark.parametrize(
    ("n_nodes", "link", "most_bytes"),
    [(2, SLOW, 256 << 10), (3, SLOW, 8 << 10), (512, SLOW, 8 << 10), (4, MIDDLE, 374_999), (8, MIDDLE, 249_999)],
)
def test_mpi_brings_what_takes_little_time_down_a_binomial_tree(n_nodes, link, most_bytes):
    assert plan.is_by_mpi(most_bytes, n_nodes, link, None)
    assert not plan.is_by_mpi(most_bytes + 2, n_nodes, link, None)
    assert not plan.is_by_mpi(1, n_nodes, link, 4096)


def test_a_given_size_of_chunks_goes_along_a_chain():
    choice = plan.choose(1000, 3, SLOW, 300)
    assert (choice.way, choice.chunk_bytes) == (Way.CHAIN, 300)
    assert choice.seconds == pytest.approx(4 * (300 * 20e-9 + 11e-6) + 100 * 20e-9 + 11e-6)


@pytest.mark.parametrize("link", [SLOW, QUICK])
@pytest.mark.parametrize("count", [2, 3, 8, 1024])
def test_any_number_of_bytes_has_a_way_near_the_bound(count, link):
    for nbytes in (0, 1, 61_441, MIB, 1 << 30, 1 << 38):
        choice = plan.choose(nbytes, count, link)
        assert 1 <= choice.chunk_bytes < 2**31
        assert choice.seconds >= 0.999 * nbytes * link.byte_s
        if nbytes >= 1 << 30:
            bound = nbytes * (link.byte_s + link.large_s / (256 << 10)) + (count - 1).bit_length() * link.eager_s
            assert choice.seconds < 1.15 * bound


def test_chunks_of_a_ring():
    mib = 1 << 20
    sizes = {1: 61_440, mib - 1: 61_440, mib: mib // 4, 3 * mib: 3 * mib // 4, 4 * mib + 256: mib}
    assert [plan.ring_chunk_bytes(nbytes, None) for nbytes in sizes] == [*sizes.values()]
    assert [plan.ring_chunk_bytes(mib, configured) for configured in (1, 65)] == [64, 128]


def test_few_bytes_are_exchanged_as_a_whole():
    assert [plan.is_small(nbytes) for nbytes in (0, 16_384, 16_385)] == [True, True, False]


def simulate(rings, held):
    """Sends and receives one chunk at a time, in any order that the rules allow, until all is done."""
    chance, count = random.Random(1), len(rings)
    sent, received = [0] * count, [0] * count
    links = [deque() for _ in rings]

    def can_send(place):
        return sent[place] < min(len(rings[place].ready) + received[place], len(rings[place].sent))

    while places := [place for place in range(count) if links[place] or can_send(place)]:
        place = chance.choice(places)
        ring = rings[place]
        if can_send(place) and (not links[place] or chance.random() < 0.5):
            links[(place + 1) % count].append([Counter(byte) for byte in held[place][ring.sent[sent[place]]]])
            sent[place] += 1
            continue
        chunk, message = ring.coming[received[place]], links[place].popleft()
        assert len(message) == chunk.stop - chunk.start > 0
        assert ring.sends_before(received[place]) <= sent[place]
        if received[place] < ring.reduced:
            message = [before + own for before, own in zip(message, held[place][chunk], strict=True)]
        held[place][chunk] = message
        received[place] += 1
    assert [(len(ring.sent), len(ring.coming)) for ring in rings] == list(zip(sent, received, strict=True))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1000])
@pytest.mark.parametrize("sizes", [[3, 3], [5, 0], [0, 9, 4], [2, 30, 1, 0], [4, 4, 4, 4, 4]], ids=str)
def test_gathered_bytes_reach_all_places_once(sizes, chunk_bytes):
    count, total = len(sizes), sum(sizes)
    starts = [sum(sizes[:place]) for place in range(count)]
    runs = [[slice(start, start + size)] for start, size in zip(starts, sizes, strict=True)]
    rings = [ring_plan.gather_ring(runs, place, chunk_bytes) for place in range(count)]
    expected = [Counter([place]) for place in range(count) for _ in range(sizes[place])]
    held = [[byte if byte == Counter([place]) else Counter() for byte in expected] for place in range(count)]
    simulate(rings, held)
    assert held == [expected] * count
    for place, ring in enumerate(rings):
        assert run_bytes(ring.coming) == total - sizes[place]
        assert {ring.sends_before(number) for number in range(len(ring.coming))} <= {0}


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [1, 64, 65, 320])
def test_reduced_bytes_have_each_place_once(size, count, chunk_bytes):
    rings = [ring_plan.reduce_ring(size, count, place, chunk_bytes) for place in range(count)]
    held = [[Counter([place]) for _ in range(size + 3)] for place in range(count)]
    simulate(rings, held)
    for place, ring in enumerate(rings):
        assert held[place] == [Counter(range(count))] * size + [Counter([place])] * 3
        assert [ring.sends_before(number) for number in range(ring.reduced)] == [0] * ring.reduced
        for number, chunk in enumerate(ring.coming[ring.reduced :], ring.reduced):
            assert ring.sent[ring.sends_before(number) - 1] == chunk  # it is sent before it is overwritten
    if size == 320:  # the links carry alike
        bound = 2 * (count - 1) * (-(-size // count) + LINE_BYTES)
        assert all(run_bytes(ring.sent) <= bound for ring in rings)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_chain_reduces_into_its_last_place(count):
    held = [[Counter([place]) for _ in range(10)] for place in range(count)]
    simulate([ring_plan.reduce_chain(10, count, place, 4) for place in range(count)], held)
    assert held == [[Counter(range(place + 1))] * 10 for place in range(count)]


def test_chunks_of_a_swap():
    memory, mib = plan.Link(1.5e-10, 8e-6, 12e-6), 1 << 20
    assert [ring_plan.swap_chunk_bytes(nbytes, memory, None) for nbytes in (1, 100_000, mib)] == [1, 100_000, mib]
    assert {ring_plan.swap_chunk_bytes(nbytes, plan.UNMEASURED, None) for nbytes in (100_000, 2 * mib)} == {61_440}
    assert ring_plan.swap_chunk_bytes(mib, memory, 65) == 128


def test_runs_join_and_skip():
    starts = [0, 10, 10, 30, 31]
    assert joined_runs([0, 1, 2, 3], starts) == [slice(0, 31)]
    assert joined_runs([0, 3], starts) == [slice(0, 10), slice(30, 31)]
    assert joined_runs([1], starts) == []
    assert run_bytes([slice(0, 10), slice(30, 31)]) == 11


@pytest.mark.parametrize(("labels", "expected"), [("aabb", True), ("abab", False), ("abbb", True), ("aba", False)])
def test_ranks_in_order(labels, expected):
    assert ring_plan.is_in_order(Placement.from_labels(labels)) == expected
