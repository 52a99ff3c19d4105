"""An exception from outside in a message: its communicator is refused for messages, and its memory lives on."""

import gc
import signal
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

import mpishare as ms
from tests.mpi.messages.exchange import LEFT


@contextmanager
def interrupted():
    """Within a moment a signal comes, the handler of which raises."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def duplicate(configured):
    """A communicator on which handlers run while this rank waits."""
    return configured(timeout="50")


def assert_refused(comm):
    """Every call of messages is refused on `comm`, and on no other."""
    for begin in (ms.send, ms.isend):
        for obj in (np.ones(3), [1]):
            with pytest.raises(ms.MpishareError, match="use a new communicator"):
                begin(obj, comm.rank, comm=comm)
    for receive in (ms.recv, ms.irecv):
        with pytest.raises(ms.MpishareError, match="use a new communicator"):
            receive(comm.rank, comm=comm)
    ms.send(np.arange(3), comm.rank)
    assert ms.recv(comm.rank).tolist() == [0, 1, 2]


def test_a_request_that_is_interrupted_has_ended(duplicate):
    request = ms.irecv(LEFT, comm=duplicate)
    with interrupted():
        request.wait()
    for call in (request.wait, request.test):
        with pytest.raises(ms.MpishareError, match="an exception from outside"):
            call()
    assert not request.cancel()
    assert_refused(duplicate)
    assert ms.share(np.arange(3), comm=duplicate).size == 3  # collectives go on


@pytest.mark.ranks(2)
@pytest.mark.parametrize("send", [ms.send, lambda *args, **options: ms.isend(*args, **options).wait()])
def test_a_send_that_is_interrupted_keeps_its_bytes(duplicate, send):
    """Until the receiver has them."""
    if duplicate.rank == 0:
        array = np.arange(300_000)
        watch = weakref.ref(array)
        with interrupted():
            send(array, 1, comm=duplicate)
        del array
        gc.collect()
        assert watch() is not None
        assert_refused(duplicate)
    duplicate.Barrier()
    if duplicate.rank == 1:
        assert (ms.recv(0, comm=duplicate) == np.arange(300_000)).all()
    duplicate.Barrier()
