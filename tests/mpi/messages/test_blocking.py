"""Messages that are sent and received at once: what does not fit, from several threads, in the fewest steps."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from tests.mpi.messages.exchange import LEFT, RIGHT, wait_all

LARGE = 200_000_000
"""More bytes than the buffer pool keeps."""


def received(source, *, is_later, out=None):
    """The next message, by `recv` or by `irecv`."""
    return ms.irecv(source, out=out).wait() if is_later else ms.recv(source, out=out)


@pytest.mark.parametrize("count", [10, 400_000])
@pytest.mark.parametrize("is_later", [False, True])
def test_what_does_not_fit_is_lost_and_the_next_is_not(comm, count, is_later):
    sent = np.arange(count) + comm.rank
    for out in (np.empty(count // 2, sent.dtype), np.empty(count, "f8"), np.empty((count, 1), sent.dtype)):
        sending = [ms.isend(sent, RIGHT), ms.isend({"in": sent}, RIGHT), ms.isend(sent[::-1], RIGHT)]
        for error in (ms.SpecError, ms.ArgumentError):
            with pytest.raises(error, match="out "):
                received(LEFT, is_later=is_later, out=out)
        assert (ms.recv(LEFT) == np.arange(count)[::-1] + LEFT).all()
        wait_all(sending)


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("is_object", [False, True])
def test_no_memory_loses_one_message(comm, is_object, is_later):
    """Rank 0 has no memory left, and the sender is not kept waiting."""
    source, sending = comm.size - 1, []
    if comm.rank == source:
        array = np.zeros(LARGE, np.uint8)
        obj = {"text": "x" * 100_000, "small": np.ones(4000), "large": array, "last": np.arange(9000)}
        sending = [ms.isend(sent, 0) for sent in (np.ones(3), obj if is_object else array, np.arange(7000))]
    if comm.rank == 0:
        assert ms.recv(source).size == 3
        before = resource.getrlimit(resource.RLIMIT_AS)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + LARGE // 2, before[1]))
        try:
            with pytest.raises(ms.CapacityError, match="memory of this process") as caught:
                received(source, is_later=is_later)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        assert caught.value.wanted == LARGE
        assert (ms.recv(source) == np.arange(7000)).all()
    wait_all(sending)


def test_many_shapes_and_none_shares_memory_with_the_next(comm):
    """More headers than are remembered, each twice."""
    counts = [1 + number // 2 for number in range(530)]
    sending = [ms.isend(np.full(count, number), RIGHT) for number, count in enumerate(counts)]
    arrays = [ms.recv(LEFT) for _ in counts]
    assert [array.tolist() for array in arrays] == [[number] * count for number, count in enumerate(counts)]
    wait_all(sending)


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread")
def test_threads_send_and_receive_at_once(comm):
    """With one tag: whichever thread receives a message, it is whole."""

    def send(seed):
        for number in range(25):
            ms.send(np.full([40, 9000, 300_000][number % 3], seed), RIGHT, tag=9)

    def is_whole(_):
        arrays = [ms.recv(None, tag=9) for _ in range(25)]
        return all((array == array[0]).all() for array in arrays)

    with ThreadPoolExecutor(6) as threads:
        sending = [threads.submit(send, seed) for seed in range(3)]
        assert all(threads.map(is_whole, range(3)))
        for sent in sending:
            sent.result()
    assert comm.sendrecv(0, RIGHT, source=LEFT) == 0


@pytest.mark.parametrize("head", [b"", b"MSH1", b"MSP1" + b"\xff" * 200, bytes(4000)])
def test_a_hostile_head_is_an_error(comm, head):
    for is_later in (False, True):
        sending = context_of().head_comm.Isend([head, MPI.BYTE], RIGHT, 0)
        with pytest.raises(ms.SpecError, match="cannot be read"):
            received(LEFT, is_later=is_later)
        sending.Wait()
    assert ms.sendrecv(np.arange(2), RIGHT, source=LEFT).tolist() == [0, 1]


def test_what_never_comes_is_given_up(comm, configured):
    """The communicator is not: what comes later is for the next receive."""
    duplicate = configured(timeout="4")
    comm.Barrier()
    with pytest.raises(ms.StallError, match="recv from rank"):
        ms.recv(LEFT, comm=duplicate)
    comm.Barrier()
    assert ms.sendrecv(np.arange(70_000), RIGHT, source=LEFT, comm=duplicate).size == 70_000
    assert ms.share(np.arange(3), comm=duplicate).size == 3
