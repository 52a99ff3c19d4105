"""Rivals: which forced algorithms there are for so many bytes, and contents that differ from call to call."""

from types import SimpleNamespace

import numpy as np
import pytest

import mpishare as ms
from benchmarks.forced import ALGORITHMS, choices
from benchmarks.rivals import BCAST, SHARE, Sources, ways_of


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_every_algorithm_is_tried_and_no_choice_twice(collective):
    for nbytes in (1 << 10, 1 << 20, 1 << 25):
        chosen = choices(collective, nbytes)
        assert {algorithm for algorithm, _ in chosen.values()} == set(ALGORITHMS[collective].values())
        assert len(set(chosen.values())) == len(chosen)


def test_segments_are_smaller_than_the_bytes_but_for_the_smallest():
    assert {segment for _, segment in choices("bcast", 1 << 10).values()} == {0, 60 << 10}
    assert {segment for _, segment in choices("bcast", 1 << 20).values()} == {0, 60 << 10, 256 << 10}
    assert 1 << 20 in {segment for _, segment in choices("bcast", 1 << 25).values()}


@pytest.mark.parametrize("nbytes", [1, 1000, 1 << 16])
def test_contents_differ_from_call_to_call_and_a_wrong_byte_is_seen(nbytes):
    sources = Sources(0, nbytes)
    arrays = [np.array(sources.get(number)) for number in range(5)]
    assert not np.array_equal(arrays[0], arrays[1])
    for number, array in enumerate(arrays):
        sources.check("a way", array, number)
        with pytest.raises(SystemExit, match="a way"):
            sources.check("a way", array, number + 1)


def test_other_ranks_have_no_source_but_know_the_contents():
    sources = Sources(1, 10)
    assert sources.get(0) is None
    sources.check("a way", Sources(0, 10).get(3), 3)
    sources.check("a way", None, 3)


def test_one_barrier_over_all_ranks_ends_ours_and_a_rival(monkeypatch):
    done = []
    comm = SimpleNamespace(size=2, allgather=lambda value: [value] * 2, Barrier=lambda: done.append("barrier"))
    nodes = SimpleNamespace(n_nodes=2, is_leader=True, leaders=SimpleNamespace(Bcast=lambda array: done.append("call")))
    monkeypatch.setattr(ms, "topology", lambda: nodes)
    monkeypatch.setattr(ms, "share", lambda source: done.append("call"))
    ways = ways_of(comm)
    for name in (SHARE, BCAST):
        ways[name](None, np.empty(1, np.uint8))
        assert done == ["call", "barrier"]
        done.clear()
