"""Placement and pretend nodes: plain functions of plain data."""

from __future__ import annotations

import pytest

from mpishare.comm.placement import Placement, pretend_node
from mpishare.errors import ArgumentError


def test_nodes_are_numbered_by_their_lowest_rank() -> None:
    placement = Placement.from_labels(["b", "a", "b", "c", "a"])
    assert placement.nodes == ((0, 2), (1, 4), (3,))
    assert [placement.node_of[rank] for rank in range(5)] == [0, 1, 0, 2, 1]
    assert [placement.leader(node) for node in range(3)] == [0, 1, 3]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("block:2", [0, 0, 1, 1, 2]),
        ("block:9", [0, 0, 0, 0, 0]),
        ("cyclic:2", [0, 1, 0, 1, 0]),
        ("cyclic:9", [0, 1, 2, 3, 4]),
        ("sizes:1,3,1", [0, 1, 1, 1, 2]),
        ("sizes:5", [0, 0, 0, 0, 0]),
    ],
)
def test_rules(rule: str, expected: list[int]) -> None:
    assert [pretend_node(rule, rank, 5) for rank in range(5)] == expected


@pytest.mark.parametrize("rule", ["", "block", "block:", "block:0", "block:x", "block:2,2", "sizes:2,-1,4", "rack:2"])
def test_rules_that_are_not_understood(rule: str) -> None:
    with pytest.raises(ArgumentError, match="MPISHARE_NODES"):
        pretend_node(rule, 0, 5)


def test_sizes_must_add_up() -> None:
    with pytest.raises(ArgumentError, match="places 4 ranks, but MPI_COMM_WORLD has 5"):
        pretend_node("sizes:2,2", 0, 5)
