"""send, recv and their kin: what arrives, from whom, into what, and what happens when it does not fit."""

from __future__ import annotations

import array as array_module
import gc
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from mpishare.comm import progress
from mpishare.comm.context import context_of
from mpishare.memory.buffer_pool import acquire
from mpishare.messages import compression, frames, requests, wire
from mpishare.objects import pickled, pickling
from mpishare.transfer import plan
from tests.arrays import DTYPES, bits, layouts

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(60)]

EDGES = [0, 1, 5, 3967, 3968, 3969, 4096, 65_536, 1_000_003]
"""Bytes around the limits of one message and of MPI's own ways."""


def neighbours(comm: MPI.Intracomm) -> tuple[int, int]:
    """The ranks before and after this one, round."""
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def pattern(nbytes: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that tell one message from another."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_and_layout_keeps_its_bits(comm: MPI.Intracomm, name: str) -> None:
    left, right = neighbours(comm)
    for array in layouts(DTYPES[name]).values():
        sent = comm.sendrecv(bits(array), right, source=left)
        found = ms.sendrecv(array, right, source=left)
        assert (found.dtype, found.shape, bits(found)) == (array.dtype, array.shape, sent)
        assert type(found) is np.ndarray
        assert found.flags.writeable
        assert found.flags.forc


@pytest.mark.parametrize("nbytes", EDGES)
def test_sizes_around_the_limits(comm: MPI.Intracomm, nbytes: int) -> None:
    left, right = neighbours(comm)
    mine, theirs = pattern(nbytes, comm.rank), pattern(nbytes, left)
    assert (ms.sendrecv(mine, right, source=left) == theirs).all()
    out = np.empty(nbytes, np.uint8)
    assert ms.sendrecv(mine, right, source=left, out=out) is out
    assert (out == theirs).all()


def test_many_messages_of_one_array(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGEST_MESSAGE_BYTES", 100_000)
    left, right = neighbours(comm)
    assert (ms.sendrecv(pattern(1_234_567, comm.rank), right, source=left) == pattern(1_234_567, left)).all()
    requests = [ms.isend(pattern(250_000, comm.rank), right), ms.irecv(left)]
    assert (requests[1].wait() == pattern(250_000, left)).all()
    requests[0].wait()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("out_order", ["C", "F", "strided"])
@pytest.mark.parametrize("side", [7, 300])
def test_out_of_any_layout(comm: MPI.Intracomm, order: Any, out_order: str, side: int) -> None:
    left, right = neighbours(comm)
    mine = np.arange(side * 3 * side).reshape(side, 3, side) + comm.rank
    if out_order == "strided":
        out = np.zeros((2 * side, 3, side), mine.dtype)[::2]
    else:
        out = np.zeros(mine.shape, mine.dtype, order="C" if out_order == "C" else "F")
    assert ms.sendrecv(np.asarray(mine, order=order), right, source=left, out=out) is out
    assert (out == mine - comm.rank + left).all()


@pytest.mark.parametrize("count", [10, 400_000])
@pytest.mark.parametrize("is_later", [False, True])
def test_what_does_not_fit_is_lost_and_the_next_is_not(comm: MPI.Intracomm, count: int, is_later: bool) -> None:
    left, right = neighbours(comm)
    mine = np.arange(count) + comm.rank
    for out in (np.empty(count // 2, mine.dtype), np.empty(count, "f8"), np.empty((count, 1), mine.dtype)):
        sending = [ms.isend(mine, right), ms.isend({"in": mine}, right), ms.isend(mine[::-1], right)]
        for error in (ms.SpecError, ms.ArgumentError):
            request = ms.irecv(left, out=out) if is_later else None
            with pytest.raises(error, match="out "):
                ms.recv(left, out=out) if request is None else request.wait()
        assert (ms.recv(left) == np.arange(count)[::-1] + left).all()
        for one in sending:
            one.wait()


class _InterruptedError(Exception):
    """As of a signal's handler, at whatever point the sender is."""


@pytest.mark.ranks(2)
@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("nbytes", [1000, 100_000])
def test_signals_in_the_midst_of_sends_lose_no_other(comm: MPI.Intracomm, nbytes: int, is_later: bool) -> None:
    """What was sent comes whole and in order, and nothing is waited for that never comes."""
    last = 9
    if comm.rank == 1:
        came, status = [], MPI.Status()
        while status.tag != last:
            array = ms.recv(0, status=status)
            assert len(array) == nbytes
            assert (array == array[0]).all()
            came.append(int(array[0]))
        assert came == sorted(set(came))
        assert set(comm.recv(None, 0, last)) <= set(came)
    elif comm.rank == 0:
        armed: list[bool] = []

        def interrupt(*_: object) -> None:
            if armed:
                armed.clear()
                raise _InterruptedError

        usual = signal.signal(signal.SIGALRM, interrupt)
        returned = []
        try:
            for number in range(250):
                try:
                    armed.append(True)
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + number % 50))
                    array = np.full(nbytes, number, np.uint8)
                    ms.isend(array, 1) if is_later else ms.send(array, 1)
                    armed.clear()
                    returned.append(number)
                except _InterruptedError:
                    pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, usual)
        ms.send(np.full(nbytes, 255, np.uint8), 1, tag=last)
        comm.send(returned, 1, last)


def test_no_memory_loses_one_message(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = neighbours(comm)
    sending = [ms.isend(pattern(nbytes, 1), right) for nbytes in (9_000_000, 5000)]

    def refuse(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(ms.CapacityError) as caught:
        patch.setattr(wire, "borrow", refuse)
        ms.recv(left)
    assert caught.value.wanted == 9_000_000
    assert (ms.recv(left) == pattern(5000, 1)).all()
    for one in sending:
        one.wait()


@pytest.mark.parametrize("is_later", [False, True])
@pytest.mark.parametrize("refused", [1, 100_000, 3_000_000])
def test_no_memory_for_a_part_of_an_object_loses_one_message(
    comm: MPI.Intracomm, refused: int, is_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its skeleton, of 100,000 bytes, or for an array before or after others: the sender is not kept waiting."""
    left, right = neighbours(comm)
    sent = {"text": "x" * 100_000, "small": np.ones(4000), "large": np.zeros(3_000_000, "u1"), "last": np.arange(9000)}
    sending = [ms.isend(one, right) for one in (sent, np.arange(7000))]

    def refuse(nbytes: int, limit: int) -> Any:
        if nbytes >= refused:
            raise MemoryError
        return acquire(nbytes, limit)

    with monkeypatch.context() as patch, pytest.raises(ms.CapacityError) as caught:
        patch.setattr(wire, "borrow", refuse)
        request = ms.irecv(left) if is_later else None
        ms.recv(left) if request is None else request.wait()
    assert caught.value.wanted >= refused
    assert (ms.recv(left) == np.arange(7000)).all()
    for one in sending:
        one.wait()


@pytest.mark.parametrize("nbytes", [64, 200_000])
def test_from_any_rank_with_any_tag(comm: MPI.Intracomm, nbytes: int) -> None:
    """Each rank sends to all, and takes what comes: the rest of each message comes from the rank that began it."""
    sending = [
        ms.isend(pattern(nbytes, 100 * comm.rank + tag), to, tag=tag) for to in range(comm.size) for tag in (3, 5)
    ]
    seen = set()
    for _ in range(2 * comm.size):
        status = MPI.Status()
        found = ms.recv(status=status)
        seen.add((status.source, status.tag))
        assert status.Get_count(MPI.BYTE) == nbytes
        assert (found == pattern(nbytes, 100 * status.source + status.tag)).all()
    assert seen == {(rank, tag) for rank in range(comm.size) for tag in (3, 5)}
    for one in sending:
        one.wait()


def test_a_tag_chooses(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sending = [ms.isend(np.full(20_000, tag), right, tag=tag) for tag in (1, 2, 3)]
    requests = [ms.irecv(left, tag=3), ms.irecv(left, tag=1)]
    assert ms.recv(left, tag=2)[0] == 2
    assert [request.wait()[-1] for request in requests] == [3, 1]
    for one in sending:
        one.wait()


def test_messages_of_one_pair_keep_their_order(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sizes = [10, 100_000, 3, 5000, 1, 2_000_000, 7]
    sending = [ms.isend(np.full(size, number), right) for number, size in enumerate(sizes)]
    for number, size in enumerate(sizes):
        found = ms.recv(left)
        assert (found.size, found[0]) == (size, number)
    for one in sending:
        one.wait()


def test_many_shapes_and_none_shares_memory_with_the_next(comm: MPI.Intracomm) -> None:
    """More headers than are remembered, each twice."""
    left, right = neighbours(comm)
    counts = [1 + number // 2 for number in range(2 * requests._MOST_KNOWN + 20)]
    sending = [ms.isend(np.full(count, number), right) for number, count in enumerate(counts)]
    found = [ms.recv(left) for _ in counts]
    assert [array.tolist() for array in found] == [[number] * count for number, count in enumerate(counts)]
    assert all(array.flags.owndata and array.flags.writeable for array in found)
    for one in sending:
        one.wait()


def test_other_code_may_use_the_same_communicator_and_tag(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    theirs = comm.isend("theirs", right, tag=4)
    ours = ms.isend(np.arange(50_000), right, tag=4)
    assert ms.recv(tag=4).size == 50_000
    assert comm.recv(source=left, tag=4) == "theirs"
    ours.wait()
    theirs.wait()
    assert comm.iprobe() is False


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread")
def test_threads_send_and_receive_at_once(comm: MPI.Intracomm) -> None:
    """Of one tag: whatever thread receives what, each message is whole."""
    left, right = neighbours(comm)
    ms.topology()
    rounds, wrong = 25, []

    def send(seed: int) -> None:
        for number in range(rounds):
            ms.send(_signed([40, 9000, 300_000][number % 3], seed), right, tag=9)

    def receive() -> None:
        for _ in range(rounds):
            found = ms.recv(None, tag=9)
            if (found[1:] != _signed(found.size, int(found[0]))[1:]).any():
                wrong.append(found)

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(3)]
    threads += [threading.Thread(target=receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert comm.sendrecv(0, right, source=left) == 0


def _signed(count: int, seed: int) -> NDArray[np.int64]:
    array = np.arange(count) * (seed + 1)
    array[0] = seed
    return array


def test_to_itself(comm: MPI.Intracomm) -> None:
    for nbytes in EDGES:
        sent = pattern(nbytes, nbytes)
        expected = sent.copy()
        ms.send(sent, comm.rank)
        sent[:] = 0  # it may be changed as soon as send has returned
        assert (ms.recv(comm.rank) == expected).all()


def test_to_no_rank(comm: MPI.Intracomm) -> None:
    out = np.zeros(3)
    ms.send(np.ones(3), MPI.PROC_NULL)
    assert ms.isend(np.ones(3), MPI.PROC_NULL).test() == (True, None)
    assert ms.recv(MPI.PROC_NULL) is None
    assert ms.recv(MPI.PROC_NULL, out=out) is out
    assert ms.irecv(MPI.PROC_NULL, out=out).wait() is out
    assert ms.sendrecv(np.ones(3), MPI.PROC_NULL, source=MPI.PROC_NULL, out=out) is out
    assert not out.any()


@pytest.mark.parametrize("nbytes", [8, 3_000_000])
def test_a_request_can_be_asked(comm: MPI.Intracomm, nbytes: int) -> None:
    left, right = neighbours(comm)
    request = ms.irecv(left)
    assert request.test() == (False, None)
    comm.Barrier()
    sending = ms.isend(pattern(nbytes, 3), right)
    ended = [False, False]
    while not all(ended):
        ended = [sending.test()[0], request.test()[0]]
    assert (request.wait() == pattern(nbytes, 3)).all()
    assert request.test()[1] is request.wait()
    assert sending.test() == (True, None)
    assert not request.cancel()


def test_a_request_keeps_its_bytes(comm: MPI.Intracomm) -> None:
    given_up = set(map(id, requests._dropped))  # by signals, in another test: what follows a head that did not leave
    left, right = neighbours(comm)
    requests = [ms.isend(pattern(700_000, number), right) for number in range(8)]
    for number in range(4):
        requests[number] = ms.isend(np.zeros(1), right, tag=1)  # the message of the dropped one arrives all the same
    gc.collect()
    for number in range(8):
        assert (ms.recv(left, tag=0) == pattern(700_000, number)).all()
    for _ in range(4):
        ms.recv(left, tag=1)
    for request in requests:
        request.wait()
    while set(map(id, requests._dropped)) - given_up or progress.pending:
        requests._sweep()


def test_a_receive_can_be_given_up(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    request = ms.irecv(left)
    assert request.cancel()
    assert request.wait() is None
    comm.Barrier()
    assert (ms.sendrecv(np.arange(9), right, source=left) == np.arange(9)).all()
    sending = ms.isend(np.arange(5), right)
    assert not sending.cancel()
    ms.recv(left)
    sending.wait()


@dataclass
class Model:
    """What users send."""

    weights: NDArray[Any]
    layers: tuple[NDArray[Any], ...]
    name: str


def test_objects_arrive_as_they_are(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    large = np.arange(300_000) + comm.rank
    sent = {
        "model": Model(large, (large[::3], np.ones((2, 3), order="F")), "ours"),
        "rows": [large, 3, "text", np.array(2.5), None],
        "names": np.array(["a", None, "ccc"], dtype=object),
        "masked": np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False], fill_value=-1),
        "bare": np.ma.array([1, 2]),
        "record": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "empty": np.empty((0, 4)),
    }
    found = ms.sendrecv(sent, right, source=left)
    expected = large - comm.rank + left
    assert (found["model"].weights == expected).all()
    assert found["rows"][0] is found["model"].weights
    assert found["model"].weights.flags.writeable
    assert (found["model"].layers[0] == expected[::3]).all()
    assert found["model"].layers[1].flags.f_contiguous
    assert found["rows"][1:3] == [3, "text"]
    assert found["names"].tolist() == ["a", None, "ccc"]
    assert found["masked"].tolist() == [1.0, None, 3.0]
    assert found["masked"].fill_value == -1
    assert found["bare"].mask is np.ma.nomask
    assert found["record"].b[0] == 2.0
    assert isinstance(found["record"], np.recarray)
    assert found["empty"].shape == (0, 4)


def test_a_data_frame(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    frame = pd.DataFrame({"x": np.arange(50_000.0), "n": np.arange(50_000), "s": ["a", "bc"] * 25_000})
    pd.testing.assert_frame_equal(ms.sendrecv(frame, right, source=left), frame)
    requests = [ms.irecv(left), ms.isend(frame[::2], right)]
    pd.testing.assert_frame_equal(requests[0].wait(), frame[::2])
    requests[1].wait()


def test_no_byte_of_an_array_is_pickled(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = neighbours(comm)
    pickled: list[int] = []

    def counting(obj: object) -> pickled.PickledObject:
        parcel = pickling.pickle_object(obj)
        pickled.append(len(parcel.skeleton))
        return parcel

    monkeypatch.setattr("mpishare.point_to_point.take_apart", counting)
    for count in (10, 1_000_000):
        array = np.arange(float(count))
        ms.sendrecv(array, right, source=left)
        ms.sendrecv([array, {"a": array[::2], "m": np.ma.array(array, mask=array > 5)}], right, source=left)
    assert len(pickled) == 2  # an array alone is no object
    assert pickled[0] == pickled[1]


BAD: dict[str, tuple[type[Exception], Callable[[MPI.Intracomm], object]]] = {
    "a rank too large": (ms.ArgumentError, lambda comm: ms.send(np.ones(3), comm.size)),
    "a negative rank": (ms.ArgumentError, lambda comm: ms.send(np.ones(3), -7)),
    "a rank of text": (ms.ArgumentError, lambda comm: ms.isend(np.ones(3), "0")),  # type: ignore[arg-type]
    "a source too large": (ms.ArgumentError, lambda comm: ms.recv(comm.size)),
    "a source of text": (ms.ArgumentError, lambda comm: ms.irecv("0")),  # type: ignore[arg-type]
    "a negative tag": (ms.ArgumentError, lambda comm: ms.send(np.ones(3), 0, tag=-5)),
    "a tag too large": (ms.ArgumentError, lambda comm: ms.recv(0, tag=1 << 40)),
    "a tag of text": (ms.ArgumentError, lambda comm: ms.isend(np.ones(3), 0, tag="a")),  # type: ignore[arg-type]
    "an object array": (ms.SpecError, lambda comm: ms.send(np.array([None]), 0)),
    "an object array, later": (ms.SpecError, lambda comm: ms.isend(np.array([None]), 0)),
    "a lock": (ms.SpecError, lambda comm: ms.send({"lock": threading.Lock()}, 0)),
    "a read-only out": (ms.SpecError, lambda comm: ms.recv(0, out=np.broadcast_to(0.0, 3))),
    "an out of another class": (ms.SpecError, lambda comm: ms.recv(0, out=np.zeros(1).view(np.recarray))),
    "an out that is no array": (ms.SpecError, lambda comm: ms.irecv(0, out=[1])),  # type: ignore[arg-type]
    "an unknown compression": (ms.ArgumentError, lambda comm: ms.send(np.ones(3), 0, compress="zip")),
    "an array of another class": (
        ms.SpecError,
        lambda comm: ms.send(np.ones(3).view(type("Own", (np.ndarray,), {"__reduce__": lambda self: "own"})), 0),
    ),
    "a bad source of sendrecv": (ms.ArgumentError, lambda comm: ms.sendrecv(np.ones(3), 0, source=comm.size)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_at_once(comm: MPI.Intracomm, name: str) -> None:
    left, right = neighbours(comm)
    ms.topology()
    error, call = BAD[name]
    start = time.monotonic()
    with pytest.raises(error):
        call(comm)
    assert time.monotonic() - start < 1
    assert ms.sendrecv(np.arange(2), right, source=left).tolist() == [0, 1]


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"MSH1",
        b"junk" * 20,
        b"MSH1" + bytes(60),
        b"MSP1",
        b"MSP1" + bytes(13),
        b"MSP1" + b"\xff" * 200,
        bytes(4000),
    ],
)
def test_a_hostile_head_is_an_error(comm: MPI.Intracomm, head: bytes) -> None:
    left, right = neighbours(comm)
    here, context = ms.topology(), context_of()
    sending = context.head_comm.Isend([head, MPI.BYTE], right, 0)
    with pytest.raises(ms.SpecError, match="cannot be read"):
        ms.recv(left)
    sending.Wait()
    assert ms.sendrecv(np.arange(2), right, source=left).tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["zeros", "noise", "both"])
@pytest.mark.parametrize("nbytes", [9_999, 10_000, 1_000_000, 5_000_001])
def test_compressed_bytes_arrive_as_they_were(
    comm: MPI.Intracomm, kind: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a link that is told to be slow, so that all is compressed that shrinks."""
    left, right = neighbours(comm)
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "speeds", dict.fromkeys(range(here.n_nodes), 1e3))
    array = np.zeros(nbytes, np.uint8) if kind == "zeros" else pattern(nbytes, 1)
    if kind == "both":
        array[: nbytes // 2] = 0
    out = np.empty_like(array)
    _exchange(array, left, right, out=out)
    assert (out == array).all()
    assert (_exchange(array, left, right) == array).all()
    found = _exchange({"a": array, "b": [array[::2], np.ones(3)]}, left, right)
    assert (found["a"] == array).all()
    assert (found["b"][0] == array[::2]).all()
    with pytest.raises(ms.SpecError):
        _exchange(array, left, right, out=np.empty(3))
    assert _exchange(np.arange(3), left, right).tolist() == [0, 1, 2]


def _exchange(array: Any, left: int, right: int, **words: Any) -> Any:
    """What comes from the left, while `array` goes to the right in another thread, by `send`."""
    sender = threading.Thread(target=ms.send, args=(array, right), kwargs={"compress": "auto"})
    sender.start()
    try:
        return ms.recv(left, **words)
    finally:
        sender.join()


def test_the_speed_of_a_link_is_found_out(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = neighbours(comm)
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "speeds", {})
    array = np.zeros(6_000_000, np.uint8)
    assert (_exchange([np.arange(3), array], left, right)[1] == array).all()
    assert set(context.link_speeds) == {here.node_of(right)} - {here.node}
    assert (_exchange(array, left, right) == array).all()


class Interrupted(Exception):
    """Raised by a signal's handler."""


@pytest.fixture
def slow(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Links that are told to be so slow, even inside a node, that all is sent in frames; the bytes of each packed."""
    here, context = ms.topology(), context_of()
    monkeypatch.setattr(here, "speeds", dict.fromkeys(range(here.n_nodes), 1e3))
    monkeypatch.setattr("mpishare.point_to_point.choose", lambda *_, **__: wire.IS_FRAMED)
    lengths: list[int] = []

    def counting(frame: NDArray[np.uint8]) -> Any:
        lengths.append(frame.nbytes)
        return compression.packed(frame)

    monkeypatch.setattr(frames, "packed", counting)
    yield lengths
    while progress.advance_all():
        pass


def half_noise(nbytes: int) -> NDArray[np.uint8]:
    """Bytes that shrink to half, which is more than MPI sends before it is received."""
    array = np.zeros((nbytes >> 9, 512), np.uint8)
    array[:, :256] = np.random.default_rng(1).integers(0, 256, (len(array), 256), np.uint8)
    return array.reshape(-1)


def test_few_compressed_frames_are_held(comm: MPI.Intracomm, slow: list[int]) -> None:
    left, right = neighbours(comm)
    here, array = ms.topology(), half_noise(30 << 20)
    stream = frames.Stream(here, wire.write(here, array, lambda _: wire.IS_FRAMED), right, 0)
    for _ in range(1000):
        stream.advance()
    assert 0 < len(slow) <= 5  # nobody receives
    comm.Barrier()
    progress.add(stream)
    assert (ms.recv(left) == array).all()
    while progress.advance_all():
        pass
    assert sum(slow) == array.nbytes


@pytest.mark.ranks(2)
@pytest.mark.parametrize("way", ["frame 1", "frame 7", "wait 1"])
def test_an_exception_in_a_large_send_keeps_the_receiver_not_waiting(
    comm: MPI.Intracomm, slow: list[int], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun goes on within the next calls."""
    left, right = neighbours(comm)
    array = half_noise(12 << 20)
    sent = {"first": array, "small": np.arange(9), "second": array[::2]}
    name, number = way.split()
    place: tuple[Any, str] = (streams, "packed") if name == "frame" else (ms.topology(), "wait_for_message")
    usual, calls = getattr(*place), itertools.count(1)

    def interrupt(*words: Any) -> Any:
        if next(calls) == int(number):
            raise Interrupted
        return usual(*words)

    request = ms.irecv(left)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(*place, interrupt)
        ms.send(sent, right, compress="auto")
    found = request.wait()
    assert (found["first"] == array).all()
    assert (found["second"] == array[::2]).all()
    while progress.advance_all():
        pass
    assert _exchange(np.arange(5), left, right).tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def duplicate(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Iterator[MPI.Intracomm]:
    """A communicator on which waiting ends soon."""
    monkeypatch.setenv("MPISHARE_TIMEOUT", "0.3")
    found = comm.Dup()
    ms.topology(found)
    comm.Barrier()
    yield found
    found.Free()


def test_what_never_comes_is_given_up(
    comm: MPI.Intracomm, duplicate: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = neighbours(duplicate)
    with pytest.raises(ms.StallError, match="recv from rank"):
        ms.recv(left, comm=duplicate)
    comm.Barrier()
    monkeypatch.setattr(context_of(duplicate)._watchdog, "_timeout_s", 30.0)
    assert ms.sendrecv(np.arange(70_000), right, source=left, comm=duplicate).size == 70_000
    assert ms.share(np.arange(3), comm=duplicate).size == 3


@pytest.mark.parametrize("way", ["irecv, send", "isend, irecv", "two irecv"])
def test_receives_go_on_while_others_are_waited_for(comm: MPI.Intracomm, way: str) -> None:
    """Large messages both ways, the wait for one before that for the other, as MPI allows."""
    left, right = neighbours(comm)
    sent = np.arange(1_000_000) + comm.rank
    if way == "irecv, send":
        request = ms.irecv(left)
        ms.send(sent, right)
    elif way == "isend, irecv":
        sending, request = ms.isend(sent, right), ms.irecv(left)
        sending.wait()
    else:
        other, request = ms.irecv(right, tag=2), ms.irecv(left, tag=1)
        both = [ms.isend(sent, right, tag=1), ms.isend(sent[::2], left, tag=2)]
        assert (other.wait() == sent[::2] - comm.rank + right).all()
        for one in both:
            one.wait()
    assert (request.wait() == sent - comm.rank + left).all()


TOGETHER: dict[str, Callable[[MPI.Intracomm], object]] = {
    "share": lambda comm: ms.share(np.arange(100_000) if comm.rank == 0 else None, comm=comm).sum(),
    "full": lambda comm: ms.full(1000, 2, comm=comm).sum(),
    "fence": lambda comm: ms.fence(comm=comm, scope="all"),
    "bcast": lambda comm: ms.bcast(ms.zeros(3, comm=comm), comm=comm).sum(),
    "info": lambda comm: ms.info(comm=comm).size,
}


@pytest.mark.ranks(2)
@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI library allows one thread")
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", TOGETHER)
def test_receives_go_on_while_others_come_to_a_call(comm: MPI.Intracomm, name: str, is_first: bool) -> None:
    """Each rank but the last is in a call of all before the last one has sent it a large message."""
    last, sent = comm.size - 1, np.arange(1_000_000)
    duplicate = comm.Dup()
    if not is_first:
        expected = TOGETHER[name](duplicate)
    requests = [ms.irecv(last)] if comm.rank != last else []
    for rank in range(last) if comm.rank == last else ():
        ms.send({"all": sent, "half": sent[::2]}, rank)
    found = TOGETHER[name](duplicate)
    assert is_first or found == expected
    for request in requests:
        message = request.wait()
        assert (message["all"] == sent).all()
        assert (message["half"] == sent[::2]).all()
    duplicate.Free()


def test_a_dropped_receive_keeps_nobody_waiting(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    ms.irecv(left, tag=1)
    lost = ms.isend(np.arange(500_000), right, tag=1)
    second = ms.isend(np.arange(3), right, tag=2)
    assert ms.recv(left, tag=2).size == 3
    while progress.pending:
        requests._sweep()
    lost.wait()
    second.wait()


def test_an_object_of_one_long_text(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LARGEST_MESSAGE_BYTES", 100_000)
    left, right = neighbours(comm)
    sent = {"text": "x" * 1_000_000, "array": np.arange(100_000)}
    found = ms.sendrecv(sent, right, source=left)
    assert found["text"] == sent["text"]
    assert (found["array"] == sent["array"]).all()


def test_a_sendrecv_that_fails_has_sent(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sent = np.ones(1_000_000)
    answer = ms.irecv(left, tag=1)
    with pytest.raises(ms.SpecError):
        ms.sendrecv(sent, right, source=left, recvtag=0, out=np.empty(3))
    again = ms.isend(sent, right, tag=1)
    again.wait()
    sent[:] = 0
    assert (answer.wait() == 1).all()


def test_an_open_request_of_a_freed_communicator_is_an_error(comm: MPI.Intracomm) -> None:
    duplicate = comm.Dup()
    left, right = neighbours(comm)
    ms.zeros(1, comm=duplicate)
    request = ms.irecv(left, comm=duplicate)
    sending = duplicate_head(duplicate, right)
    comm.Barrier()
    duplicate.Free()
    with pytest.raises(MPI.Exception):
        while not request.test()[0]:
            pass
    sending.Wait()


def duplicate_head(comm: MPI.Intracomm, to: int) -> MPI.Request:
    """The head of a large message, the rest of which will not come."""
    here, context = ms.topology(comm), context_of(comm)
    return context.head_comm.Isend([wire.write(here, np.arange(100_000)).head, MPI.BYTE], to)


def test_a_signal_while_a_message_comes_keeps_its_sender_not_waiting(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a handler raises comes as soon as MPI has returned with the head."""
    left, right = neighbours(comm)

    def interrupt(*_: object) -> None:
        raise Interrupted

    sending = ms.isend(np.arange(300_011), right)  # of a shape that no head has told of before
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(requests, "simple_spec", interrupt)
        ms.recv(left)
    while progress.pending:
        requests._sweep()
    sending.wait()
    assert ms.sendrecv(np.arange(2), right, source=left).tolist() == [0, 1]


def test_what_comes_after_the_time_is_for_the_next(
    comm: MPI.Intracomm, duplicate: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = neighbours(duplicate)
    try:
        found = ms.recv(left, comm=duplicate) if comm.rank else None
    except ms.StallError:
        found = None
    monkeypatch.setattr(context_of(duplicate)._watchdog, "_timeout_s", 30.0)
    comm.Barrier()
    sending = ms.isend(np.arange(3), right, comm=duplicate)
    found = ms.recv(left, comm=duplicate) if found is None else found
    assert found.tolist() == [0, 1, 2]
    sending.wait()


def test_an_object_lets_go_of_its_arrays(comm: MPI.Intracomm) -> None:
    gc.disable()
    try:
        array = np.arange(1000)
        watch = weakref.ref(array)
        ms.send([array], comm.rank)
        requests._sweep()
        ms.recv(comm.rank)
        requests._sweep()
        del array
        assert watch() is None
    finally:
        gc.enable()


def test_parts_that_look_like_no_arrays() -> None:
    wide = np.zeros(2, [("x", "f8", (10_000,))])
    numbers = array_module.array("d", [1.0] * 10_000)
    record = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    obj = {"row": wide[1], "numbers": numbers, "masked": np.ma.masked, "record": record}
    parcel = pickling.pickle_object(obj)
    assert len(parcel.skeleton) < 1000
    found = pickling.unpickle_object(parcel)
    assert found["row"].tobytes() == wide[1].tobytes()
    assert found["numbers"] == obj["numbers"]
    assert found["masked"] is np.ma.masked
    assert type(found["record"]) is np.recarray


def test_status_and_numbers_of_numpy(comm: MPI.Intracomm) -> None:
    status = MPI.Status()
    ms.recv(MPI.PROC_NULL, status=status)
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    rank, tag, any_source, any_tag = np.array([comm.rank, 4, MPI.ANY_SOURCE, MPI.ANY_TAG])
    ms.send(np.arange(3), rank, tag=tag)
    request = ms.irecv(any_source, tag=any_tag, status=status)
    assert request.wait().tolist() == [0, 1, 2]
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (comm.rank, 4, 24)
