"""fill and checksum: by all ranks of a node, each of which does its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare import kernels


@pytest.mark.parametrize("dtype", ["f8", ">i4", "S3", "M8[s]", [("a", "i1"), ("b", "f8")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_fill(dtype: Any, order: str) -> None:
    array = ms.zeros((5, 7), dtype, order=order)
    value = np.ones((), "i8").astype(dtype)
    kernels.fill(array, value)
    assert (array == value).all()
    ms.fence()
    kernels.fill(array[2:4] if order == "C" else array[:, 2:4], np.zeros((), dtype))
    assert np.count_nonzero(array == value) == (21 if order == "C" else 25)
    ms.fence()


def test_a_checksum_is_the_same_on_any_number_of_ranks(comm: MPI.Intracomm) -> None:
    source = np.random.default_rng(5).integers(0, 256, 100_003, np.uint8)
    shared = ms.share(source if comm.rank == 0 else None)
    ours = ms.zeros(source.shape, np.uint8)
    if ms.topology().is_leader:
        ours[:] = source
    alone = kernels.checksum(ms.share(source, comm=MPI.COMM_SELF), comm=MPI.COMM_SELF)
    assert kernels.checksum(shared) == kernels.checksum(ours) == alone
    if ms.topology().is_leader:
        ours[50_000] ^= 1
    assert kernels.checksum(ours) != alone
    assert kernels.checksum(shared[:8]) != kernels.checksum(shared[8:16])


def test_a_checksum_tells_lengths() -> None:
    empty, single, double = ms.zeros(0, "u1"), ms.zeros(1, "u1"), ms.zeros(2, "u1")
    assert kernels.checksum(empty) == 0
    assert kernels.checksum(single) != kernels.checksum(double)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: kernels.fill(np.zeros(3), 1), "cannot be traced"),
        (lambda: kernels.fill(ms.zeros((4, 4))[:, 1:3], 1), "not contiguous"),
        (lambda: kernels.fill(ms.zeros(3), "x"), "is not an item"),
        (lambda: kernels.checksum(np.zeros(3)), "cannot be traced"),
        (lambda: kernels.checksum(ms.zeros((4, 4))[:, 1:3]), "not contiguous"),
    ],
)
def test_refused_on_all_ranks(
    raised: Callable[[Callable[[], object]], list[tuple[str, str]]], call: Callable[[], object], text: str
) -> None:
    for kind, message in raised(call):
        assert (kind, text in message) == ("SpecError", True)


def test_refused_on_one_rank(comm: MPI.Intracomm, raised: Any) -> None:
    nodes = ms.topology()
    array = ms.zeros(4)
    for call in (lambda given: kernels.fill(given, 1), kernels.checksum):
        errors = raised(lambda call=call: call(np.zeros(4) if nodes.is_leader else array))
        for rank, (kind, _) in enumerate(errors):
            assert kind == ("SpecError" if nodes.ranks_of(nodes.node_of(rank))[0] == rank else "PeerError")
    other = ms.zeros(4)
    differing: list[Callable[[], object]] = [
        lambda: kernels.fill(array, nodes.node_rank),
        lambda: kernels.checksum(other if nodes.is_leader else array),
    ]
    for differs in differing:
        for rank, (kind, _) in enumerate(raised(differs)):
            assert kind == ("MismatchError" if len(nodes.ranks_of(nodes.node_of(rank))) > 1 else "nothing")
