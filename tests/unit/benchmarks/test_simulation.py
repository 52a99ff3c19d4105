"""Chunks that pass from node to node on paper take the times of the textbook, where it has a formula."""

import pytest

from benchmarks.simulation import Fabric, simulate
from mpishare.transfer import plan
from mpishare.transfer.plan import Step

CHUNK = 1000
LINK = Fabric(latency_s=0.0, byte_s=1e-3, eager_s=0.0, large_s=0.0, message_s=0.0)


def chunks(count):
    return [slice(number * CHUNK, (number + 1) * CHUNK) for number in range(count)]


def to(chunk, *places):
    return tuple((place, chunk) for place in places)


def chain(places, count):
    return [
        [
            Step(chunk, place - 1 if place else None, to(chunk, place + 1) if place + 1 < places else ())
            for chunk in chunks(count)
        ]
        for place in range(places)
    ]


def star(places, count):
    return [
        [Step(chunk, 0 if place else None, () if place else to(chunk, *range(1, places))) for chunk in chunks(count)]
        for place in range(places)
    ]


@pytest.mark.parametrize("places", [2, 3, 9])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_a_chain_takes_its_chunks_and_one_more_for_each_further_place(places, count):
    assert simulate(chain(places, count), LINK) == pytest.approx(places - 2 + count)


@pytest.mark.parametrize("places", [8, 13, 100])
def test_a_circulant_graph_hides_latency_and_the_work_of_the_ranks(places):
    link = Fabric(latency_s=0.5, byte_s=1e-3, eager_s=0.0, large_s=0.0, message_s=0.3, eager_bytes=0)
    choice = plan.Choice(plan.Way.CIRCULANT_GRAPH, CHUNK, 0.0)
    schedule = [plan.steps(200 * CHUNK, range(places), place, choice) for place in range(places)]
    assert simulate(schedule, link) < 1.15 * (200 + 3 * places.bit_length())


@pytest.mark.parametrize("places", [2, 3, 9])
def test_a_root_that_sends_to_all_takes_as_many_times_the_bytes(places):
    assert simulate(star(places, 5), LINK) == pytest.approx(5 * (places - 1))


def test_latency_is_added_for_each_hop_and_not_for_each_chunk():
    late = Fabric(latency_s=7.0, byte_s=1e-3, eager_s=0.0, large_s=0.0, message_s=0.0)
    assert simulate(chain(4, 10), late) == pytest.approx(2 + 10 + 3 * 7)


def test_a_message_costs_the_link_more_if_it_is_large():
    for eager_bytes, besides in ((CHUNK, 0.5), (CHUNK - 1, 2.0)):
        link = Fabric(0.0, 1e-3, 0.5, 2.0, 0.0, eager_bytes=eager_bytes)
        assert simulate(chain(3, 10), link) == pytest.approx((1 + 10) * (1 + besides))


def test_ranks_are_busy_while_links_carry_other_messages():
    busy = Fabric(latency_s=0.0, byte_s=1e-3, eager_s=0.0, large_s=0.0, message_s=0.25)
    # the first send, at each place between a receive and a send, and the last receive
    assert simulate(chain(3, 10), busy) == pytest.approx(1 + 10 + 4 * 0.25)
    slow = Fabric(latency_s=0.0, byte_s=1e-3, eager_s=0.0, large_s=0.0, message_s=2.0)
    assert simulate(chain(3, 10), slow) >= 10 * (2 + 2)  # the place in between


@pytest.mark.parametrize("way", plan.Way)
@pytest.mark.parametrize("places", [2, 3, 8, 33])
def test_each_way_of_the_plan_ends_whatever_a_place_expects_at_a_time(way, places):
    choice = plan.Choice(way, CHUNK, 0.0)
    schedule = [plan.steps(40 * CHUNK, range(places), place, choice) for place in range(places)]
    large = Fabric(latency_s=0.5, byte_s=1e-3, eager_s=0.0, large_s=0.1, message_s=0.2, late_s=0.3, eager_bytes=0)
    assert simulate(schedule, large) >= 40 * 1.1


def test_a_large_message_waits_for_a_receiver_that_is_behind():
    """The second chunk comes by a slow path, so the rest waits for it, but for those that are expected."""
    rest = tuple(chunks(8))
    fast = [Step(chunk, None, to(chunk, 1 if number else 2)) for number, chunk in enumerate(rest)]
    last = [Step(chunk, 0 if number else 2, ()) for number, chunk in enumerate(rest)]
    middle = [Step(rest[0], 0, to(rest[0], 1))]
    large = Fabric(0.0, 1e-3, 0.0, 0.0, 0.0, eager_bytes=0)
    for in_flight in (1, 4):
        assert simulate([fast, last, middle], large, in_flight=in_flight) >= 8


def test_places_that_wait_for_each_other_are_an_error():
    first, second = chunks(2)
    circle = [
        [Step(first, None, to(first, 1)), Step(second, None, to(second, 2))],
        [Step(second, 2, ()), Step(first, 0, to(first, 2))],
        [Step(first, 1, ()), Step(second, 0, to(second, 1))],
    ]
    with pytest.raises(ValueError, match="wait for each other"):
        simulate(circle, LINK)


def test_the_seed_decides_how_late_ranks_are():
    late = Fabric(0.0, 1e-3, 0.0, 0.0, 0.0, late_s=0.1)
    times = [simulate(chain(5, 20), late, seed=seed) for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]
    assert min(times) > simulate(chain(5, 20), LINK)
