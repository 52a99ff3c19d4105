"""Rounds of ways: which go on, in which order, and what is told of them."""

import pytest

from benchmarks.rounds import MAX_FINALISTS, MEDIAN, finalists, hopeless, in_blocks, measure, order, repeats_of, row


def test_the_fastest_contestants_go_on_and_all_others_do():
    medians = {"ours": 9.0, "slow": 5.0, "a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert finalists(medians, ["slow", "a", "b", "c", "d"]) == ["ours", "a", "b", "c"]
    assert finalists(medians, []) == list(medians)
    assert len(finalists(medians, list(medians))) == MAX_FINALISTS


def test_hopeless_is_over_twice_the_fastest_contestant():
    assert hopeless({"ours": 0.1, "a": 1.0, "b": 2.0, "c": 2.1}, ["a", "b", "c"]) == {"c"}
    assert hopeless({"ours": 0.1}, []) == set()


def test_each_round_has_all_ways_in_another_order():
    names = list("abcdef")
    orders = [order(names, number) for number in range(5)]
    assert all(sorted(each) == names for each in orders)
    assert len(set(map(tuple, orders))) > 1
    assert order(names, 3) == orders[3]


def test_a_row_has_median_and_quartiles_in_ms():
    figures = row([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (figures["first quartile, ms"], figures[MEDIAN], figures["third quartile, ms"]) == (2000, 3000, 4000)
    assert row([0.5])[MEDIAN] == 500


@pytest.mark.parametrize(("nbytes", "repeats"), [(1, 50), (1 << 16, 4), (1 << 18, 1), (1 << 30, 1)])
def test_small_arrays_are_timed_in_several_calls(nbytes, repeats):
    assert repeats_of(nbytes) == repeats


class OneRank:
    """What `measure` needs of a communicator."""

    def Barrier(self):  # noqa: N802
        pass

    def allgather(self, value):
        return [value]


def test_each_call_has_a_number_of_its_own_and_the_first_round_is_left_out():
    numbers = []
    times = measure(OneRank(), {"ours": numbers.append}, repeats=2, rounds=3)
    assert numbers == list(range(8))
    assert len(times["ours"]) == 4


@pytest.mark.parametrize(("rounds", "blocks"), [(9, [3, 3, 3]), (1, [1]), (2, [1, 1]), (10, [3, 3, 4])])
def test_rounds_are_divided_among_programs(rounds, blocks):
    assert in_blocks(rounds) == blocks


def test_all_ways_that_go_on_are_warmed_alike():
    numbers = {name: [] for name in ("ours", "a", "b", "c", "d")}
    calls = {name: taken.append for name, taken in numbers.items()}
    times = measure(OneRank(), calls, repeats=1, rounds=1, contestants=list("abcd"), warm_up=3)
    assert sorted(map(len, numbers.values())) == [1, 5, 5, 5, 5]
    assert {len(times[name]) for name, taken in numbers.items() if len(taken) == 5} == {2}


def test_only_finalists_have_all_rounds():
    calls = {name: lambda number: None for name in ("ours", "a", "b", "c", "d", "e")}
    times = measure(OneRank(), calls, repeats=1, rounds=2, contestants=list("abcde"))
    assert sorted(map(len, times.values())) == [1, 1, 3, 3, 3, 3]
