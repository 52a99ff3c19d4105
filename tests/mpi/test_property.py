"""All ranks see the same bits of any array that hypothesis draws, for any root, placement and backend."""

import os
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from mpi4py import MPI

import mpishare as ms
from tests.arrays import bits, filled

EXAMPLES = 40  # a launch, of which there are 12 or so, each with a seed of its own
SIZE = MPI.COMM_WORLD.size
SEED = crc32(f"{SIZE} {os.environ.get('MPISHARE_NODES')} {os.environ.get('MPISHARE_BACKEND')}".encode())
RULES = ["", "block:1", "block:2", "cyclic:2", f"sizes:{SIZE}", *([f"sizes:1,{SIZE - 1}"] if SIZE > 1 else [])]
KINDS = ["memmap", "private", *(["window"] if dict(os.environ).get("OMPI_MCA_osc") != "^ucx,sm" else [])]

scalars = st.one_of(hnp.scalar_dtypes(), hnp.byte_string_dtypes(), hnp.unicode_string_dtypes())
dtypes = st.one_of(scalars, hnp.array_dtypes(scalars), hnp.nested_dtypes(scalars))
steps = st.sampled_from([1, 2, 3, -1, -2])


@st.composite
def arrays(draw):
    """An array of any dtype, shape, strides and order."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7))
    array = filled(draw(dtypes), shape)
    cuts: tuple[Any, ...] = tuple(slice(None, None, draw(steps)) for _ in shape)
    array = array[(*cuts, ...)]
    if draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array


@pytest.fixture
def comms(configured):
    """A communicator for each rule of pretend nodes. The test names the kind."""
    return {rule: configured(nodes=rule, backend="", dir="") for rule in RULES}


@seed(SEED)
@settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    array=arrays(),
    root=st.integers(0, SIZE - 1),
    rule=st.sampled_from(RULES),
    kind=st.sampled_from(KINDS),
    order=st.sampled_from("CF"),
)
def test_same_bits_everywhere(comms, array, root, rule, kind, order):
    """Every rank draws the same examples, so nothing may depend on time or on facts of one rank."""
    comm = comms[rule]
    drawn = comm.allgather(f"{array.dtype} {array.shape} {array.strides} {root} {kind} {order}")
    assert len(set(drawn)) == 1, "the ranks drew different examples"
    shared = ms.share(array if comm.rank == root else None, root=root, comm=comm, backend=kind)
    is_same = (shared.dtype, shared.shape) == (array.dtype, array.shape) and bits(shared) == bits(array)
    assert comm.allgather(is_same) == [True] * SIZE
    grid, nodes = ms.zeros(array.shape, array.dtype, order=order, comm=comm), ms.topology(comm)
    if nodes.node == nodes.node_of(root) and nodes.is_leader:
        grid[...] = array
    ms.fence(comm=comm)
    ms.bcast(grid, root=root, comm=comm)
    expected = np.zeros(array.shape, array.dtype)
    expected[...] = array
    assert comm.allgather(bits(grid) == bits(expected)) == [True] * SIZE
    ms.fence(comm=comm, scope="all")
