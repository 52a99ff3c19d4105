"""Whatever is shared, and however it lies in memory, all ranks see the same bits: hypothesis draws the arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.memory import selection
from mpishare.memory.kinds import Kind
from tests.arrays import bits, filled

pytestmark = pytest.mark.mpi

EXAMPLES = 40  # a launch, of which there are 12 or so, each with a seed of its own
SIZE = MPI.COMM_WORLD.size
SEED = crc32(f"{SIZE} {os.environ.get('MPISHARE_NODES')} {os.environ.get('MPISHARE_BACKEND')}".encode())
RULES = ["", "block:1", "block:2", "cyclic:2", f"sizes:{SIZE}", *([f"sizes:1,{SIZE - 1}"] if SIZE > 1 else [])]

scalars = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?"),
    hnp.unicode_string_dtypes(endianness="?"),
)
dtypes = st.one_of(scalars, hnp.array_dtypes(scalars), hnp.nested_dtypes(scalars))
steps = st.sampled_from([1, 2, 3, -1, -2])


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """An array of any dtype, shape, strides and order."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7))
    array = filled(draw(dtypes), shape)
    cuts: tuple[Any, ...] = tuple(slice(None, None, draw(steps)) for _ in shape)
    array = array[(*cuts, ...)]
    if draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array


@pytest.fixture(scope="module")
def comms() -> Iterator[dict[str, MPI.Intracomm]]:
    """A communicator for each rule of pretend nodes."""
    before, found = os.environ.get("MPISHARE_NODES"), {}
    for rule in RULES:
        os.environ["MPISHARE_NODES"] = rule
        found[rule] = MPI.COMM_WORLD.Dup()
        here, context = ms.topology(found[rule]), context_of(found[rule])
        context.config = replace(context.config, backend=None, directory=None)  # the tests name the kind
    if before is None:
        del os.environ["MPISHARE_NODES"]
    else:
        os.environ["MPISHARE_NODES"] = before
    yield found
    for comm in found.values():
        comm.Free()


def kinds() -> list[Kind]:
    """The segment kinds that work in this launch."""
    makes_windows = dict(os.environ).get("OMPI_MCA_osc") != "^ucx,sm"
    return [kind for kind in selection.KINDS if kind.name != "window" or makes_windows]


# Every rank draws the same, so nothing may depend on time or on what one rank alone finds.
same_on_all_ranks = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@seed(SEED)
@same_on_all_ranks
@given(array=arrays(), root=st.integers(0, SIZE - 1), rule=st.sampled_from(RULES), kind=st.sampled_from(kinds()))
def test_same_bits_everywhere(
    comms: dict[str, MPI.Intracomm], array: NDArray[Any], root: int, rule: str, kind: Kind
) -> None:
    comm = comms[rule]
    drawn = comm.allgather(f"{array.dtype} {array.shape} {array.strides} {root} {kind.title}")
    assert len(set(drawn)) == 1, "the ranks drew different examples"
    found, selection.KINDS = selection.KINDS, (kind,)
    try:
        shared = ms.share(array if comm.rank == root else None, root=root, comm=comm, backend=kind.name)
    finally:
        selection.KINDS = found
    same = (shared.dtype, shared.shape) == (array.dtype, array.shape) and bits(shared) == bits(array)
    assert comm.allgather(same) == [True] * SIZE


@seed(SEED)
@same_on_all_ranks
@given(array=arrays(), root=st.integers(0, SIZE - 1), rule=st.sampled_from(RULES), order=st.sampled_from("CF"))
def test_refreshed_bits_everywhere(
    comms: dict[str, MPI.Intracomm], array: NDArray[Any], root: int, rule: str, order: str
) -> None:
    comm = comms[rule]
    grid = ms.zeros(array.shape, array.dtype, order=order, comm=comm)
    here, context = ms.topology(comm), context_of(comm)
    if here.node == here.node_of(root) and here.is_leader:
        grid[...] = array
    ms.fence(comm=comm)
    ms.bcast(grid, root=root, comm=comm)
    expected = np.zeros(array.shape, array.dtype)
    expected[...] = array
    assert comm.allgather(bits(grid) == bits(expected)) == [True] * SIZE
    ms.fence(comm=comm, scope="all")
