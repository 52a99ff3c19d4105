"""send, recv, isend, irecv, sendrecv: what arrives, from whom, and into what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms
from tests.arrays import REPRESENTATIVES, bits
from tests.mpi.messages.exchange import neighbours, pattern

pytestmark = pytest.mark.mpi

SIZES = [0, 1, 5, 3967, 3968, 3969, 4096, 65_536, 1_000_003, (64 << 20) + 1]
"""Bytes around the limits of mpishare's messages and of MPI's own protocols."""


@pytest.mark.parametrize("name", REPRESENTATIVES)
@pytest.mark.parametrize("count", [1, 2000])
def test_arrays_keep_their_bits(comm: MPI.Intracomm, name: str, count: int) -> None:
    left, right = neighbours(comm)
    array = np.broadcast_to(REPRESENTATIVES[name], (count, *REPRESENTATIVES[name].shape))
    for sent in (array, array.copy(), np.asfortranarray(array)):
        expected = comm.sendrecv(bits(sent), right, source=left)  # of padding, which each rank has its own
        result = ms.sendrecv(sent, right, source=left)
        assert type(result) is np.ndarray
        assert (result.dtype, result.shape, bits(result)) == (sent.dtype, sent.shape, expected)
        assert result.flags.writeable
        assert result.flags.fnc == sent.flags.fnc


@pytest.mark.parametrize("nbytes", SIZES)
def test_sizes_around_the_limits(comm: MPI.Intracomm, nbytes: int) -> None:
    left, right = neighbours(comm)
    sent, expected = pattern(nbytes, comm.rank), pattern(nbytes, left)
    assert (ms.sendrecv(sent, right, source=left) == expected).all()
    out = np.empty(nbytes, np.uint8)
    assert ms.sendrecv(sent, right, source=left, out=out) is out
    assert (out == expected).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("out_order", ["C", "F", "strided"])
@pytest.mark.parametrize("side", [7, 300])
def test_out_of_any_layout(comm: MPI.Intracomm, order: Any, out_order: str, side: int) -> None:
    left, right = neighbours(comm)
    sent = np.arange(side * 3 * side).reshape(side, 3, side) + comm.rank
    out = np.zeros((2 * side, 3, side), sent.dtype)[::2]
    if out_order != "strided":
        out = np.zeros(sent.shape, sent.dtype, order=cast("Any", out_order))
    assert ms.sendrecv(np.asarray(sent, order=order), right, source=left, out=out) is out
    assert (out == sent - comm.rank + left).all()


@pytest.mark.parametrize("nbytes", [64, 200_000])
def test_from_any_rank_with_any_tag(comm: MPI.Intracomm, nbytes: int) -> None:
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
    for request in sending:
        request.wait()


def test_a_tag_chooses(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sending = [ms.isend(np.full(20_000, tag), right, tag=tag) for tag in (1, 2, 3)]
    requests = [ms.irecv(left, tag=3), ms.irecv(left, tag=1)]
    assert ms.recv(left, tag=2)[0] == 2
    assert [request.wait()[-1] for request in requests] == [3, 1]
    for request in sending:
        request.wait()


def test_messages_of_one_pair_keep_their_order(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sizes = [10, 100_000, 3, 5000, 1, 2_000_000, 7]
    sending = [ms.isend(np.full(size, number), right) for number, size in enumerate(sizes)]
    for number, size in enumerate(sizes):
        array = ms.recv(left)
        assert (array.size, array[0]) == (size, number)
    for request in sending:
        request.wait()


def test_other_code_may_use_the_same_communicator_and_tag(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    other = comm.isend("other", right, tag=4)
    request = ms.isend(np.arange(50_000), right, tag=4)
    assert ms.recv(tag=4).size == 50_000
    assert comm.recv(source=left, tag=4) == "other"
    request.wait()
    other.wait()
    assert not comm.iprobe()


@pytest.mark.parametrize("nbytes", SIZES[:-1])
def test_to_itself(comm: MPI.Intracomm, nbytes: int) -> None:
    sent = pattern(nbytes, nbytes)
    expected = sent.copy()
    ms.send(sent, comm.rank)
    sent[:] = 0  # it may be changed as soon as send has returned
    assert (ms.recv(comm.rank) == expected).all()


def test_to_no_rank() -> None:
    out, status = np.zeros(3), MPI.Status()
    ms.send(np.ones(3), MPI.PROC_NULL)
    assert ms.isend(np.ones(3), MPI.PROC_NULL).test() == (True, None)
    assert ms.recv(MPI.PROC_NULL) is None
    assert ms.recv(MPI.PROC_NULL, out=out, status=status) is out
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (MPI.PROC_NULL, MPI.ANY_TAG, 0)
    assert ms.irecv(MPI.PROC_NULL, out=out).wait() is out
    assert ms.sendrecv(np.ones(3), MPI.PROC_NULL, source=MPI.PROC_NULL, out=out) is out
    assert not out.any()


def test_status_and_numbers_of_numpy(comm: MPI.Intracomm) -> None:
    status = MPI.Status()
    rank, tag, any_source, any_tag = np.array([comm.rank, 4, MPI.ANY_SOURCE, MPI.ANY_TAG])
    ms.send(np.arange(3), rank, tag=tag)
    request = ms.irecv(any_source, tag=any_tag, status=status)
    assert request.wait().tolist() == [0, 1, 2]
    assert (status.source, status.tag, status.Get_count(MPI.BYTE)) == (comm.rank, 4, 24)


@dataclass
class Model:
    """What users send."""

    weights: NDArray[Any]
    layers: tuple[NDArray[Any], ...]
    name: str


def test_objects_arrive_as_they_are(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    large = np.arange(300_000) + comm.rank
    frame = pd.DataFrame({"x": np.arange(50_000.0), "n": np.arange(50_000), "s": ["a", "bc"] * 25_000})
    sent = {
        "model": Model(large, (large[::3], np.ones((2, 3), order="F")), "line"),
        "same": large,
        "names": np.array(["a", None, "ccc"], dtype=object),
        "masked": np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False], fill_value=-1),
        "frame": frame,
        "text": "x" * 1_000_000,
    }
    result = ms.sendrecv(sent, right, source=left)
    expected, model = large - comm.rank + left, result["model"]
    assert (model.weights == expected).all()
    assert result["same"] is model.weights
    assert model.weights.flags.writeable
    assert (model.layers[0] == expected[::3]).all()
    assert model.layers[1].flags.f_contiguous
    assert result["names"].tolist() == ["a", None, "ccc"]
    assert (result["masked"].tolist(), result["masked"].fill_value) == ([1.0, None, 3.0], -1)
    assert (model.name, result["text"]) == ("line", sent["text"])
    pd.testing.assert_frame_equal(result["frame"], frame)


def test_no_byte_of_an_array_is_pickled(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = neighbours(comm)
    lengths: list[int] = []
    loads = cast("Any", __import__("pickle").loads)

    def counting(skeleton: memoryview, **options: Any) -> Any:
        lengths.append(len(skeleton))
        return loads(skeleton, **options)

    monkeypatch.setattr("pickle.loads", counting)
    for count in (10, 1_000_000):
        array = np.arange(float(count))
        ms.sendrecv(array, right, source=left)
        ms.sendrecv([array, {"a": array[::2], "m": np.ma.array(array, mask=array > 5)}], right, source=left)
    assert len(lengths) == 2  # an array alone is not an object
    assert lengths[0] == lengths[1]


def test_a_sendrecv_that_fails_has_sent(comm: MPI.Intracomm) -> None:
    left, right = neighbours(comm)
    sent = np.ones(1_000_000)
    request = ms.irecv(left, tag=1)
    with pytest.raises(ms.SpecError):
        ms.sendrecv(sent, right, source=left, recvtag=0, out=np.empty(3))
    ms.isend(sent, right, tag=1).wait()
    sent[:] = 0
    assert (request.wait() == 1).all()


Own = type("Own", (np.ndarray,), {"__reduce__": lambda self: "own"})

BAD: dict[str, tuple[type[Exception], str, Callable[[MPI.Intracomm], object]]] = {
    "a rank too large": (ms.ArgumentError, "dest is ", lambda comm: ms.send(np.ones(3), comm.size)),
    "a negative rank": (ms.ArgumentError, "dest is -7", lambda comm: ms.send(np.ones(3), -7)),
    "a rank of text": (ms.ArgumentError, "dest is '0'", lambda comm: ms.isend(np.ones(3), cast("int", "0"))),
    "a source too large": (ms.ArgumentError, "source is ", lambda comm: ms.recv(comm.size)),
    "a source of text": (ms.ArgumentError, "source is '0'", lambda comm: ms.irecv(cast("int", "0"))),
    "a source of sendrecv": (
        ms.ArgumentError,
        "source is ",
        lambda comm: ms.sendrecv(np.ones(3), comm.rank, source=comm.size),
    ),
    "a negative tag": (ms.ArgumentError, "tag is -5", lambda comm: ms.send(np.ones(3), 0, tag=-5)),
    "a tag too large": (ms.ArgumentError, "tag is 1099511627776", lambda comm: ms.recv(0, tag=1 << 40)),
    "a tag of text": (ms.ArgumentError, "tag is 'a'", lambda comm: ms.isend(np.ones(3), 0, tag=cast("int", "a"))),
    "an object array": (ms.SpecError, "Python objects", lambda comm: ms.send(np.array([None]), 0)),
    "an object array, later": (ms.SpecError, "Python objects", lambda comm: ms.isend(np.array([None]), 0)),
    "a lock": (ms.SpecError, "cannot be pickled", lambda comm: ms.send({"lock": threading.Lock()}, 0)),
    "a read-only out": (ms.SpecError, "read-only", lambda comm: ms.recv(0, out=np.broadcast_to(0.0, 3))),
    "an out of another class": (ms.SpecError, "recarray", lambda comm: ms.recv(0, out=np.zeros(1).view(np.recarray))),
    "an out that is a list": (ms.SpecError, "a list", lambda comm: ms.irecv(0, out=cast("Any", [1]))),
    "an unknown compression": (ms.ArgumentError, "zip", lambda comm: ms.send(np.ones(3), 0, compress="zip")),
    "an array of another class": (ms.SpecError, "Own", lambda comm: ms.send(np.ones(3).view(Own), 0)),
}


@pytest.mark.two_launches
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(comm: MPI.Intracomm, name: str) -> None:
    """They are refused on this rank alone, before anything is sent."""
    left, right = neighbours(comm)
    error, message, call = BAD[name]
    with pytest.raises(error, match=message):
        call(comm)
    assert ms.sendrecv(np.arange(2), right, source=left).tolist() == [0, 1]
