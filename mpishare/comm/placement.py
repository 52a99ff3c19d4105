"""Ranks grouped into nodes by labels that others found, as plain data; and the pretend nodes of MPISHARE_NODES."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mpishare.errors import ArgumentError


@dataclass(frozen=True)
class Placement:
    """The ranks of each node. Nodes are numbered by their lowest rank, which is their leader.

    Attributes:
        nodes: For each node its ranks, in rising order.
    """

    nodes: tuple[tuple[int, ...], ...]

    @classmethod
    def from_labels(cls, labels: Sequence[Hashable]) -> Placement:
        """Puts ranks with equal labels on one node; `labels[rank]` may be any value that names a node."""
        nodes: dict[Hashable, list[int]] = {}
        for rank, name in enumerate(labels):
            nodes.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, nodes.values())))

    @cached_property
    def node_of(self) -> dict[int, int]:
        """The node of each rank."""
        return {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}

    def leader(self, node: int) -> int:
        """The lowest rank of `node`."""
        return self.nodes[node][0]


def pretend_node(rule: str, rank: int, size: int) -> int:
    """The pretend node of a rank of MPI_COMM_WORLD, for tests and debugging on one machine.

    Args:
        rule: "block:K", K ranks per node in order; "cyclic:K", ranks dealt round K nodes;
            "sizes:A,B,…", nodes of A, B, … ranks.
        rank: A rank of MPI_COMM_WORLD.
        size: Its number of ranks.

    Raises:
        ArgumentError: `rule` is none of these, or its sizes do not add up to `size`.
    """
    name, _, text = rule.partition(":")
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if name not in ("block", "cyclic", "sizes") or not numbers or min(numbers) < 1:
        raise ArgumentError(f"MPISHARE_NODES={rule!r} is not understood. Use block:K, cyclic:K or sizes:A,B,…")
    if name == "sizes":
        if sum(numbers) != size:
            raise ArgumentError(f"MPISHARE_NODES={rule!r} places {sum(numbers)} ranks, but MPI_COMM_WORLD has {size}.")
        return next(node for node in range(len(numbers)) if rank < sum(numbers[: node + 1]))
    if len(numbers) > 1:
        raise ArgumentError(f"MPISHARE_NODES={rule!r} is not understood. {name} takes one number.")
    return rank // numbers[0] if name == "block" else rank % numbers[0]
