"""fill and checksum: work on a whole array, of which each rank of the node does its part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import bytes_of, scalar
from mpishare.collectives import node_comm_of, shared_name
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.kernels.compiling import compiled

_WORD_BYTES = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 over the golden ratio, made odd: the step between positions of D. E. Knuth and of SplittableRandom."""

_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The multipliers of D. Stafford's "Mix13", as in SplitMix64."""

_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_ONE = np.uint64(1)


def fill(array: NDArray[Any], value: ArrayLike, *, comm: mpi.Comm | None = None) -> None:
    """Sets every item of a node-shared array to `value`. The ranks of the node fill disjoint parts at once.

    When it returns, all of them see the items; no `fence` is needed.

    Args:
        array: On each rank of the node its view of one array from `empty`, `zeros` or `full`, or the same contiguous
            part of it.
        value: One item; a tuple if the dtype has columns.
        comm: The ranks that share; MPI_COMM_WORLD when None.

    Raises:
        SpecError: `array` is read-only, not contiguous, or not in node-shared memory; or `value` does not fit its
            dtype.
        MismatchError: The ranks of the node gave different arrays, different parts or different values.
        PeerError: Another rank of the node raised one of these.

    Collective:
        Over the ranks of `comm` on this node; over `comm` the first time.

    Example:
        >>> import mpishare as ms
        >>> from mpishare import kernels
        >>> ours = ms.zeros(4)
        >>> kernels.fill(ours, 0.5)
        >>> ours.tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    with collective("fill", comm) as call:
        context = call.context
        with call.agree_on_arguments(node_comm_of(context)) as agreement:
            name = shared_name(array, writes=True)
            item = scalar(value, array.dtype)
            agreement.call = f"fill({name}, {item.tolist()!r})"
        part = slices.balanced_slice(array.size, context.topology.node_size, context.topology.node_rank)
        array.ravel(order="K")[part] = item
        context.node_collective_comm.barrier()


def checksum(array: NDArray[Any], *, comm: mpi.Comm | None = None) -> int:
    """A checksum of 64 bits of the bytes of a node-shared array. Each rank of the node reads its part.

    The bytes are read in the order of memory, as words of 8 bytes; zeros fill up the last word. A constant times its
    position is added to each word, which is then mixed as in SplitMix64. The result is the sum of these words and of
    the number of bytes, modulo 2**64. So it depends neither on the number of ranks nor on the part that each reads. A
    change within one word always changes it, any other with a probability of 1 - 2**-64. It finds errors, not forgery.

    It includes what the ranks of the node wrote before they called.

    Args:
        array: On each rank of the node its view of one node-shared array, or the same contiguous part of it.
        comm: The ranks that share; MPI_COMM_WORLD when None.

    Returns:
        An integer from 0 to 2**64 - 1, the same on all ranks of the node, and on all nodes with the same bytes.

    Raises:
        SpecError: `array` is not contiguous, or not in node-shared memory.
        MismatchError: The ranks of the node gave different arrays or different parts.
        PeerError: Another rank of the node raised one of these.

    Collective:
        Over the ranks of `comm` on this node; over `comm` the first time.

    Source:
        M. Bellare, D. Micciancio, "A new paradigm for collision-free hashing: incrementality at reduced cost",
        EUROCRYPT 1997, AdHash; G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
        OOPSLA 2014.

    Example:
        >>> import mpishare as ms
        >>> from mpishare import kernels
        >>> ours, theirs = ms.full(1000, 0.5), ms.full(1000, 0.5)
        >>> kernels.checksum(ours) == kernels.checksum(theirs)
        True
        >>> theirs[7] = -0.5
        >>> kernels.checksum(ours) == kernels.checksum(theirs)
        False
    """
    with collective("checksum", comm) as call:
        context = call.context
        node_comm = node_comm_of(context)
        with call.agree_on_arguments(node_comm) as agreement:
            agreement.call = f"checksum({shared_name(array, writes=False)})"
        with agree(node_comm):  # the first call compiles, which may fail
            part = part_sum(bytes_of(array), context.topology.node_size, context.topology.node_rank)
        total = np.array(part % 2**64, np.uint64)
        context.node_collective_comm.allreduce(total, mpi.SUM)
        return (int(total) + array.nbytes) % 2**64


def part_sum(block: NDArray[np.uint8], parts: int, part: int) -> int:
    """The sum of one part of the integers of `block`; the last part includes bytes that fill no integer."""
    n_integers, n_rest = divmod(block.size, _WORD_BYTES)
    integers = block[: block.size - n_rest].view(np.uint64)
    integers.flags.writeable = False  # else the kernel is compiled for writable arrays too
    own = slices.balanced_slice(n_integers, parts, part)
    total = int(_mixed_sum(integers[own], own.start))
    if n_rest and part == parts - 1:
        rest = block[block.size - n_rest :].tobytes().ljust(_WORD_BYTES, b"\0")
        total += int(_mixed_sum(np.frombuffer(rest, np.uint64), n_integers))
    return total


@compiled
def _mixed_sum(integers: Any, first: int) -> Any:
    """The sum of `integers`, each mixed with its position. That of the first word is `first`."""
    total = np.uint64(0)
    position = np.uint64(first) + _ONE
    for integer in integers:
        mixed = integer + position * _GOLDEN
        mixed = (mixed ^ (mixed >> _SHIFT_1)) * _MIX_1
        mixed = (mixed ^ (mixed >> _SHIFT_2)) * _MIX_2
        total += mixed ^ (mixed >> _SHIFT_3)
        position += _ONE
    return total
