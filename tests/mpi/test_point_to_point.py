"""send, recv, isend, irecv, sendrecv: what arrives, from whom, and into what."""

from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from tests.arrays import REPRESENTATIVES, bits
from tests.mpi.messages.exchange import LEFT, RIGHT, pattern, wait_all
from tests.mpi.test_errors import assert_refused_alike

LARGE = pytest.param((64 << 20) + 1, marks=pytest.mark.once)
SIZES = [0, 1, 5, 3967, 3968, 3969, 4096, 65_536, 1_000_003, LARGE]
"""Bytes around the limits of mpishare's messages and of MPI's own protocols."""


@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.parametrize("count", [1, 2000])
def test_arrays_keep_their_bits(comm, name, count):
    """Of any layout, into arrays of any layout."""
    array = np.broadcast_to(REPRESENTATIVES[name], (count, *REPRESENTATIVES[name].shape))
    for sent in (array, array.copy(), np.asfortranarray(array)):
        expected = comm.sendrecv(bits(sent), RIGHT, source=LEFT)  # of padding, which each rank has its own
        c_order, f_order = np.empty(sent.shape, sent.dtype), np.empty(sent.shape, sent.dtype, order="F")
        for out in (None, c_order, f_order, np.empty((2 * count, *sent.shape[1:]), sent.dtype)[::2]):
            result = ms.sendrecv(sent, RIGHT, source=LEFT, out=out)
            assert type(result) is np.ndarray
            assert (result.dtype, result.shape, bits(result)) == (sent.dtype, sent.shape, expected)
            assert result.flags.writeable
            assert result.flags.fnc == sent.flags.fnc if out is None else result is out


@pytest.mark.parametrize("nbytes", SIZES)
def test_sizes_around_the_limits(comm, nbytes):
    sent, expected = pattern(nbytes, comm.rank), pattern(nbytes, LEFT)
    assert (ms.sendrecv(sent, RIGHT, source=LEFT) == expected).all()
    out = np.empty(nbytes, np.uint8)
    assert ms.sendrecv(sent, RIGHT, source=LEFT, out=out) is out
    assert (out == expected).all()
    ms.send(out, comm.rank)
    out[:] = 0  # it may be changed as soon as send has returned
    assert (ms.recv(comm.rank) == expected).all()


@pytest.mark.parametrize("nbytes", [64, 200_000])
def test_from_any_rank_with_any_tag(comm, nbytes):
    """Each rank sends to all, and takes what comes: the parts of each message come from the rank that began it."""
    keys = {(rank, tag) for rank in range(comm.size) for tag in (3, 5)}
    sending = [ms.isend(pattern(nbytes, 100 * comm.rank + tag), dest, tag=tag) for dest, tag in keys]
    received = set()
    for _ in keys:
        status = MPI.Status()
        array = ms.recv(status=status)
        received.add((status.source, status.tag))
        assert status.Get_count(MPI.BYTE) == nbytes
        assert (array == pattern(nbytes, 100 * status.source + status.tag)).all()
    assert received == keys
    wait_all(sending)


def test_arguments_in_the_order_of_mpi4py(comm):
    """In which a tag follows a rank."""
    status = MPI.Status()
    for sent, take in ((ms.send, ms.recv), (ms.isend, lambda *args, **status: ms.irecv(*args, **status).wait())):
        sending = sent(np.arange(3), comm.rank, 7)
        assert take(comm.rank, 7, status=status).tolist() == [0, 1, 2]
        assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (comm.rank, 7, 24)
        assert sending is None or sending.wait() is None
    assert ms.sendrecv([comm.rank], RIGHT, 5, source=LEFT, recvtag=5) == [LEFT]


def test_a_tag_chooses_and_messages_with_it_keep_their_order(comm):
    sizes = [10, 100_000, 3, 5000, 1, 2_000_000, 7]
    sending = [ms.isend(np.full(size, number), RIGHT, tag=number % 2) for number, size in enumerate(sizes)]
    requests = [ms.irecv(LEFT, tag=1) for _ in sizes[1::2]]
    for number, size in enumerate(sizes):
        array = requests[number // 2].wait() if number % 2 else ms.recv(LEFT, tag=0)
        assert (array.size, array[0]) == (size, number)
    wait_all(sending)


def test_to_no_rank():
    out, status = np.zeros(3), MPI.Status()
    ms.send(np.ones(3), MPI.PROC_NULL)
    assert ms.isend(np.ones(3), MPI.PROC_NULL).test() == (True, None)
    assert ms.recv(MPI.PROC_NULL) is None
    assert ms.recv(MPI.PROC_NULL, out=out, status=status) is out
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert ms.irecv(MPI.PROC_NULL, out=out).wait() is out
    assert ms.sendrecv(np.ones(3), MPI.PROC_NULL, source=MPI.PROC_NULL, out=out) is out
    assert not out.any()


@pytest.mark.parametrize("n", [3, 300_000])
def test_what_is_received_where_it_is_sent_from(comm, n, raised):
    """A message would be sent in part as it has come in. A border of a grid may go beside the next one."""
    grid = np.full((4, n), comm.rank)
    for array, out in ((grid, grid), (grid[1:3], grid[2:]), ({"a": grid[::-1]}, grid[1:2]), (grid[:, 1], grid[:, 1])):
        errors = raised(lambda array=array, out=out: ms.sendrecv(array, RIGHT, source=LEFT, out=out))
        assert_refused_alike(errors, "SpecError", "array and out overlap")
    ms.sendrecv(grid[:, -2], RIGHT, source=LEFT, out=grid[:, 0])
    ms.sendrecv(grid[1], RIGHT, source=LEFT, out=grid[3])
    assert (grid[:3, 0] == LEFT).all()
    assert (grid[:3, 1:] == comm.rank).all()
    assert grid[3].tolist() == [grid[1, 0] if comm.size == 1 else (comm.rank - 2) % comm.size, *[LEFT] * (n - 1)]


def test_a_sendrecv_that_fails_has_sent(comm):
    sent = np.ones(1_000_000)
    request = ms.irecv(LEFT, tag=1)
    with pytest.raises(ms.SpecError):
        ms.sendrecv(sent, RIGHT, source=LEFT, recvtag=0, out=np.empty(3))
    ms.isend(sent, RIGHT, tag=1).wait()
    sent[:] = 0
    assert (request.wait() == 1).all()


ARRAY = np.ones(3)
BAD = {
    "ArgumentError: dest is 99": lambda comm: ms.send(ARRAY, 99),
    "ArgumentError: source is 99": lambda comm: ms.recv(99),
    "ArgumentError: source is '0'": lambda comm: ms.irecv(cast("int", "0")),
    "ArgumentError: tag is -5": lambda comm: ms.send(ARRAY, 0, tag=-5),
    "ArgumentError: tag is 1099511627776": lambda comm: ms.recv(0, tag=1 << 40),
    "SpecError: dtype object cannot be shared": lambda comm: ms.send(np.array([None]), 0),
    "SpecError: dict cannot be pickled": lambda comm: ms.send({"rows": np.nditer(ARRAY)}, 0),
    "SpecError: out is a read-only array": lambda comm: ms.recv(0, out=np.broadcast_to(0.0, 3)),
    "SpecError: out is an object of type list": lambda comm: ms.irecv(0, out=cast("Any", [1])),
    "ArgumentError: compress 'zip' is unknown": lambda comm: ms.send(ARRAY, 0, compress="zip"),
}


@pytest.mark.once
def test_bad_arguments(comm):
    """They are refused on this rank alone, before anything is sent."""
    for message, call in BAD.items():
        with pytest.raises(ms.MpishareError) as caught:
            call(comm)
        assert f"{type(caught.value).__name__}: {caught.value}".startswith(message)
    assert ms.sendrecv(np.arange(2), RIGHT, source=LEFT).tolist() == [0, 1]
