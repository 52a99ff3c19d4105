"""Placement and pretend nodes: plain functions of plain data."""

import pytest

from mpishare.comm.topology import Placement, pretend_node
from mpishare.errors import ArgumentError


def test_nodes_are_numbered_by_their_lowest_rank():
    placement = Placement.from_labels(["b", "a", "b", "c", "a"])
    assert placement.nodes == ((0, 2), (1, 4), (3,))
    assert [placement.node_of[rank] for rank in range(5)] == [0, 1, 0, 2, 1]
    assert [placement.leader(node) for node in range(3)] == [0, 1, 3]


RULES = {"block:2": "00112", "block:9": "00000", "cyclic:2": "01010", "cyclic:9": "01234"}
RULES |= {"sizes:1,3,1": "01112", "sizes:5": "00000"}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule):
    assert "".join(str(pretend_node(rule, rank, 5)) for rank in range(5)) == RULES[rule]


@pytest.mark.parametrize("rule", ["", "block", "block:0", "block:x", "block:2,2", "sizes:2,-1,4", "rack:2", "sizes:4"])
def test_wrong_rules(rule):
    reason = "places 4 ranks, but MPI_COMM_WORLD has 5" if rule == "sizes:4" else "is not understood"
    with pytest.raises(ArgumentError, match=f"^MPISHARE_NODES='{rule}' {reason}"):
        pretend_node(rule, 0, 5)
