"""Requests of isend and irecv: asked, given up, dropped, and advanced while this rank waits for something else."""

import gc
import weakref

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.lookup import context_of
from mpishare.messages.wire import encode
from tests.mpi.messages.exchange import LEFT, RIGHT, pattern, wait_all


@pytest.mark.parametrize("nbytes", [8, 3_000_000])
def test_a_request_can_be_asked(comm, nbytes):
    request = ms.irecv(LEFT)
    assert request.test() == (False, None)
    comm.Barrier()
    sending = ms.isend(pattern(nbytes, 3), RIGHT)
    have_ended = [False, False]
    while not all(have_ended):
        have_ended = [sending.test()[0], request.test()[0]]
    assert (request.wait() == pattern(nbytes, 3)).all()
    assert request.test()[1] is request.wait()
    assert sending.test() == (True, None)
    assert sending.wait() is None
    assert not request.cancel()


def test_a_receive_can_be_given_up(comm):
    request = ms.irecv(LEFT)
    assert request.cancel()
    assert request.wait() is None
    assert request.test() == (True, None)
    comm.Barrier()
    sending = ms.isend(np.arange(5), RIGHT)
    assert not sending.cancel()
    assert ms.recv(LEFT).size == 5
    sending.wait()


def test_a_dropped_send_arrives(comm):
    """MPI reads its bytes until it has been received."""
    for number in range(8):
        ms.isend(pattern(700_000, number), RIGHT)
    gc.collect()
    for number in range(8):
        assert (ms.recv(LEFT) == pattern(700_000, number)).all()
    comm.Barrier()


def test_a_dropped_receive_keeps_nobody_waiting(comm):
    ms.irecv(LEFT, tag=1)
    lost = ms.isend(np.arange(500_000), RIGHT, tag=1)
    second = ms.isend(np.arange(3), RIGHT, tag=2)
    assert ms.recv(LEFT, tag=2).size == 3
    wait_all([lost, second])
    ms.fence(scope="all")  # in which the receives of ranks whose own send has ended go on


def test_memory_is_released_with_the_next_message(comm):
    array = np.arange(1000)
    watch = weakref.ref(array)
    ms.send([array], comm.rank)
    ms.recv(comm.rank)
    ms.isend(np.ones(1), comm.rank)
    ms.recv(comm.rank)
    del array
    assert watch() is None


def test_receives_go_on_while_others_are_waited_for(comm):
    """Large messages both ways, the wait for one before that for the other, as MPI allows."""
    sent = np.arange(1_000_000) + comm.rank
    request = ms.irecv(LEFT)
    ms.send(sent, RIGHT)
    other, first = ms.irecv(RIGHT, tag=2), ms.irecv(LEFT, tag=1)
    sending = [ms.isend(sent, RIGHT, tag=1), ms.isend(sent[::2], LEFT, tag=2)]
    assert (other.wait() == sent[::2] - comm.rank + RIGHT).all()
    wait_all(sending)
    for received in (request, first):
        assert (received.wait() == sent - comm.rank + LEFT).all()


COLLECTIVES = {
    "share": lambda comm: ms.share(np.arange(100_000) if comm.rank == 0 else None, comm=comm).sum(),
    "fence": lambda comm: ms.fence(comm=comm, scope="all"),
    "info": lambda comm: ms.info(comm=comm).size,
}


@pytest.mark.ranks(2)
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_receives_go_on_in_a_call(comm, duplicate, name, is_first):
    """Each rank but the last is in a collective before the last one has sent it a large message."""
    last, sent = comm.size - 1, np.arange(1_000_000)
    expected = None if is_first else COLLECTIVES[name](duplicate)
    requests = [ms.irecv(last)] if comm.rank != last else []
    for rank in range(last) if comm.rank == last else ():
        ms.send({"all": sent, "half": sent[::2]}, rank)
    result = COLLECTIVES[name](duplicate)
    assert is_first or result == expected
    for request in requests:
        message = request.wait()
        assert (message["all"] == sent).all()
        assert (message["half"] == sent[::2]).all()


def test_an_open_request_of_a_freed_communicator_is_an_error(comm, duplicate):
    context = context_of(duplicate)
    request = ms.irecv(LEFT, comm=duplicate)
    head = encode(context, np.arange(100_000)).head  # of a message the parts of which will not come
    sending = context.head_comm.Isend([head, MPI.BYTE], RIGHT)
    comm.Barrier()
    duplicate.Free()
    with pytest.raises(MPI.Exception):
        while not request.test()[0]:
            pass
    sending.Wait()
