"""Growth: the simulation beside what was measured on each kind of link."""

import pytest

from benchmarks import growth
from benchmarks.growth import OF_MEASURED, SMALL_SHARE
from benchmarks.rivals import SHARE
from benchmarks.rounds import MEDIAN

LINK = {"byte_s": 1e-8, "latency_s": 0.0, "eager_s": 0.0, "large_s": 0.0}
MESSAGE = {"message_s": 0.0, "late_s": 0.0}
BETWEEN = {"costs": {**LINK, **MESSAGE, "eager_bytes": 1}, "hosts": [{"hosts": 2, SMALL_SHARE: 0.001}]}


def kept(milliseconds):
    return {"1,000,000 bytes": {SHARE: {MEDIAN: milliseconds}}}


def test_each_kind_of_link_that_was_measured_is_simulated_with_its_own_costs(monkeypatch):
    measured = {
        "2 hosts of 1, 1gbit": kept(11.0),
        "2 hosts of 1, 1gbit, 1ms": kept(22.0),
        "4 hosts of 1, 1gbit": kept(9.0),
    }
    links = []

    def on_cluster(hosts, ranks, rate, program, delay):
        links.append((hosts, rate, delay))
        return {"costs": LINK}

    monkeypatch.setattr(growth, "kept_figures", lambda name: measured)
    monkeypatch.setattr(growth, "on_cluster", on_cluster)
    result = growth.other_links(BETWEEN, rounds=1)
    assert links == [(2, "1gbit", "0"), (2, "1gbit", "1ms")]
    assert {kind: [row["hosts"] for row in rows] for kind, rows in result.items()} == {"1gbit": [2], "1gbit, 1ms": [2]}
    assert result["1gbit"][0][OF_MEASURED] == pytest.approx(1.0, abs=0.01)
    assert result["1gbit, 1ms"][0][OF_MEASURED] == pytest.approx(0.5, abs=0.01)
