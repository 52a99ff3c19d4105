"""Messages received at once or later: asked, given up, dropped, lost, interrupted, and advanced within other waits."""

import gc
import resource
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.comm.context import context_of
from mpishare.messages.wire import encode
from tests.mpi.messages.exchange import LEFT, RIGHT, pattern, wait_all
from tests.processes import limited, wait_until
from tests.signals import interrupted


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
    "info": lambda comm: ms.info(probe=True, comm=comm).size,
}


@pytest.mark.ranks(2)
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread")
@pytest.mark.parametrize(("is_first", "recycle"), [(False, "5%"), (True, "0")])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_receives_go_on_in_a_call(comm, duplicate, monkeypatch, name, is_first, recycle):
    """Each rank but the last is in a collective before the last one has sent it a large message."""
    monkeypatch.setenv("MPISHARE_RECYCLE", recycle)
    last, sent = comm.size - 1, np.arange(200_000)
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
    head = encode(context, np.arange(100_000))[0]  # of a message whose chunks will not come
    sending = context.head_comm.Isend([head, MPI.BYTE], RIGHT)
    comm.Barrier()
    duplicate.Free()
    with pytest.raises(ms.MpishareError, match="was freed"):
        while not request.test()[0]:
            pass
    sending.Wait()


LARGE = 200_000_000
"""More bytes than the buffer pool keeps."""


def received(source, *, is_later):
    """The next message, by `recv` or by `irecv`."""
    return ms.irecv(source).wait() if is_later else ms.recv(source)


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
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        refused = pytest.raises(ms.CapacityError, match="memory of this process")
        with limited(resource.RLIMIT_AS, mapped + LARGE // 2), refused as caught:
            received(source, is_later=is_later)
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


@pytest.mark.parametrize("head", [b"", b"MSH2", b"MSP2" + b"\xff" * 200, bytes(4000)])
def test_a_hostile_head_is_an_error(comm, head):
    for is_later in (False, True):
        sending = context_of().head_comm.Isend([head, MPI.BYTE], RIGHT, 0)
        with pytest.raises(ms.SpecError, match="cannot be read"):
            received(LEFT, is_later=is_later)
        sending.Wait()
    assert ms.sendrecv(np.arange(2), RIGHT, source=LEFT).tolist() == [0, 1]


@pytest.mark.once
def test_what_never_comes_is_given_up(comm, configured):
    """The communicator is not: what comes later is for the next receive."""
    duplicate = configured(timeout="4")
    comm.Barrier()
    with pytest.raises(ms.StallError, match="recv from rank"):
        ms.recv(LEFT, comm=duplicate)
    comm.Barrier()
    assert ms.sendrecv(np.arange(70_000), RIGHT, source=LEFT, comm=duplicate).size == 70_000
    assert ms.share(np.arange(3), comm=duplicate).size == 3


@pytest.fixture
def patient(configured):
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


def test_a_request_that_is_interrupted_has_ended(patient):
    request = ms.irecv(LEFT, comm=patient)
    with interrupted():
        request.wait()
    for call in (request.wait, request.test):
        with pytest.raises(ms.MpishareError, match="an exception from outside"):
            call()
    assert not request.cancel()
    assert_refused(patient)
    assert ms.share(np.arange(3), comm=patient).size == 3  # collectives go on
    assert ms.map(abs, range(-9, 0), chunk=1, comm=patient, gather="all") == [*range(9, 0, -1)]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("send", [ms.send, lambda *args, **options: ms.isend(*args, **options).wait()])
def test_a_send_that_is_interrupted_keeps_its_bytes(patient, send, shared_folder):
    """Until the receiver has them. It waits outside MPI, as within a barrier Intel MPI takes in whatever comes."""
    is_interrupted = shared_folder / "interrupted"
    if patient.rank == 0:
        array = np.arange(300_000)
        watch = weakref.ref(array)
        with interrupted():
            send(array, 1, comm=patient)
        del array
        gc.collect()
        assert watch() is not None
        assert_refused(patient)
        is_interrupted.touch()
    wait_until(is_interrupted.exists, 60)
    if patient.rank == 1:
        assert (ms.recv(0, comm=patient) == np.arange(300_000)).all()
    patient.Barrier()
