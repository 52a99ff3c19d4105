"""Benchmarks between nodes: names of places, and what is compared with what."""

import argparse

from benchmarks.nodes import compared, places
from benchmarks.places import PRETEND_NODES, title_of
from benchmarks.rivals import BCAST, EXPERT, FORCED, SHARE, SOCKET
from benchmarks.rounds import MEDIAN


def test_ours_is_compared_with_the_socket_the_expert_and_the_best_rival():
    medians = {SHARE: 3.0, BCAST: 6.0, f"{FORCED}chain, 60K": 2.0, EXPERT: 4.0, SOCKET: 1.0}
    rows = compared({name: {MEDIAN: median} for name, median in medians.items()})
    assert rows[SHARE] == {MEDIAN: 3.0, "of the socket": 3.0, "over the best rival": 1.5, "over the expert": 0.75}
    assert rows[BCAST] == {MEDIAN: 6.0, "of the socket": 6.0}


def test_without_rivals_or_a_socket_there_is_nothing_to_compare_with():
    assert compared({SHARE: {MEDIAN: 3.0}}) == {SHARE: {MEDIAN: 3.0}}


def test_every_place_has_a_title_of_its_own():
    options = argparse.Namespace(links="pretend,free,1gbit", delays="0,1ms", hosts="2,4", ranks="1,4")
    titles = [title for title, _ in places(options)]
    assert titles[: len(PRETEND_NODES)] == list(PRETEND_NODES)
    assert len(set(titles)) == len(titles) == len(PRETEND_NODES) + 2 * 2 * 2 * 2


def test_a_link_without_delay_is_named_by_its_rate():
    assert title_of(4, 1, "400mbit") == "4 hosts of 1, 400mbit"
    assert title_of("2", "4", "free", "50us") == "2 hosts of 4, free, 50us"
