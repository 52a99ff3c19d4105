"""Messages from one rank to another: arrays as their bytes, objects as a skeleton and their arrays."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.raw import overlap
from mpishare.arrays.spec import PLAIN_CLASSES, describe
from mpishare.comm import mpi
from mpishare.comm.context import Context, context_of
from mpishare.comm.requests import pending
from mpishare.errors import ArgumentError, MpishareError, SpecError, StallError, checked_integer
from mpishare.messages.requests import (
    ReceiveRequest,
    Request,
    SendRequest,
    has_fast_messages,
    receive_now,
    send_now,
)
from mpishare.messages.wire import encode, lz4
from mpishare.objects.pickling import PickledObject, pickle_object


def send(array: Any, dest: int, tag: int = 0, *, comm: mpi.Comm | None = None, compress: str | None = None) -> None:
    """Sends an array, or an object with arrays in it, to another rank, which need not know dtype or shape.

    Args:
        array: An array of any shape, any strides and any dtype without Python objects. A C or Fortran contiguous array
            is sent from its own memory, any other from a copy. Or an object: each of its arrays is sent like this, and
            the rest of the object as a small pickle.
        dest: The rank to send to; MPI.PROC_NULL for none.
        tag: An integer >= 0 by which the receiver may select messages.
        comm: The ranks; MPI_COMM_WORLD when None.
        compress: "auto" to compress arrays of 10 kB or more by lz4, if they go to another node, and if a sample shows
            that they arrive sooner. The first message of 2 MiB or more measures the speed of the link.

    Raises:
        SpecError: The array holds Python objects, or the object cannot be pickled.
        ArgumentError: `dest` is not a rank of `comm`, `tag` is negative or too large, or `compress` is unknown.
        BackendError: `compress` needs lz4, which is not installed.
        StallError: The receiver did not come within MPISHARE_TIMEOUT.
        MpishareError: An exception from outside, such as a signal handler's, ended an earlier message on `comm`.

    Collective:
        No; with `recv` or `irecv` on `dest`, for which it waits if the array is large. But over `comm` the first time
        that `comm` is used: call `topology(comm)` on all its ranks before.

    Source:
        MPI 3.1, section 3.2.1 (MPI_Send).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> ms.send(np.arange(3), ms.topology().rank)
        >>> ms.recv(ms.topology().rank)
        array([0, 1, 2])
    """
    context = context_of(comm)
    rank, tag, compresses = _checked_send(context, dest, tag, compress)
    head, data_tag, chunks = message = encode(context, _content(array), has_frames=compresses)
    if rank == context.topology.rank:  # MPI would wait for a receive that cannot come
        SendRequest(context, (head, data_tag, [chunk.copy("K") for chunk in chunks]), rank, tag)
    elif compresses or pending or not has_fast_messages(context):
        SendRequest(context, message, rank, tag, compresses=compresses, is_blocking=True).wait()
    else:
        send_now(context, message, rank, tag)


def isend(array: Any, dest: int, tag: int = 0, *, comm: mpi.Comm | None = None, compress: str | None = None) -> Request:
    """Like `send`, but returns at once. The array must not be changed until the request has ended.

    Args:
        array: What to send; see `send`.
        dest: The rank to send to; MPI.PROC_NULL for none.
        tag: An integer >= 0 by which the receiver may select messages.
        comm: The ranks; MPI_COMM_WORLD when None.
        compress: "auto" to compress before it returns, if that pays; see `send`, which measures the speed of the link.

    Returns:
        A `Request` whose `wait` returns None.

    Raises:
        SpecError: The array holds Python objects, or the object cannot be pickled.
        ArgumentError: `dest` is not a rank of `comm`, `tag` is negative or too large, or `compress` is unknown.
        BackendError: `compress` needs lz4, which is not installed.
        MpishareError: An exception from outside ended an earlier message on `comm`.

    Collective:
        No; with `recv` or `irecv` on `dest`. But over `comm` the first time that `comm` is used.

    Source:
        MPI 3.1, section 3.7.2 (MPI_Isend).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> request = ms.isend(np.zeros(1_000_000), ms.topology().rank)
        >>> ms.recv(ms.topology().rank).nbytes
        8000000
        >>> request.wait()
    """
    context = context_of(comm)
    rank, tag, compresses = _checked_send(context, dest, tag, compress)
    return SendRequest(
        context, encode(context, _content(array), has_frames=compresses), rank, tag, compresses=compresses
    )


def recv(
    source: int | None = None,
    tag: int | None = None,
    *,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
    status: mpi.Status | None = None,
) -> Any:
    """Receives a message that `send` or `isend` of another rank sent.

    A message that comes and does not fit is lost, with an error; the next one is not.

    Args:
        source: The rank to receive from; None or MPI.ANY_SOURCE for whichever sends first, MPI.PROC_NULL for none.
        tag: That of the message; None or MPI.ANY_TAG for any.
        out: A writable array of the shape and dtype of the message, which is received into it: without a copy, if it is
            contiguous in the same order as the sender's array. None for a fresh array.
        comm: The ranks; MPI_COMM_WORLD when None.
        status: Is given the sender, the tag, and the bytes of the arrays.

    Returns:
        `out`, if it is given or `source` is MPI.PROC_NULL. Else a fresh writable array with the bits, dtype and shape
        of the sender's, in Fortran order if that is, else in C order; or the object with such arrays in it.

    Raises:
        SpecError: The message does not fit `out`, or `out` is not a writable array.
        ArgumentError: `source` is not a rank of `comm`, `tag` is negative or too large, `status` is not a Status, or
            the message is an object and `out` is given.
        CapacityError: This process has no memory for the message.
        StallError: Nothing came within MPISHARE_TIMEOUT.
        MpishareError: An exception from outside, such as a signal handler's, ended an earlier message on `comm`.

    Collective:
        No; with `send` or `isend` on `source`. But over `comm` the first time that `comm` is used: call
        `topology(comm)` on all its ranks before.

    Source:
        MPI 3.1, section 3.2.4 (MPI_Recv).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> ms.send({"rows": np.ones(2), "name": "ones"}, ms.topology().rank, tag=7)
        >>> ms.recv(tag=7)
        {'rows': array([1., 1.]), 'name': 'ones'}
    """
    context = context_of(comm)
    rank, wanted_tag = _checked_receive(context, source, tag, out, status)
    if pending or not has_fast_messages(context) or rank == mpi.PROC_NULL:
        return irecv(source, tag=tag, out=out, comm=comm, status=status).wait()
    return receive_now(context, rank, wanted_tag, out, status)


def irecv(
    source: int | None = None,
    tag: int | None = None,
    *,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
    status: mpi.Status | None = None,
) -> Request:
    """Like `recv`, but returns at once. Large messages are received within calls of mpishare that wait for other ranks.

    Args:
        source: The rank to receive from; None or MPI.ANY_SOURCE for whichever sends first, MPI.PROC_NULL for none.
        tag: That of the message; None or MPI.ANY_TAG for any.
        out: A writable array of the shape and dtype of the message; None for a fresh one. See `recv`.
        comm: The ranks; MPI_COMM_WORLD when None.
        status: Is filled in at the end.

    Returns:
        A `Request` whose `wait` returns, and raises, what `recv` would.

    Raises:
        SpecError: `out` is not a writable array.
        ArgumentError: `source` is not a rank of `comm`, `tag` is negative or too large, or `status` is not a Status.
        MpishareError: An exception from outside ended an earlier message on `comm`.

    Collective:
        No; with `send` or `isend` on `source`. But over `comm` the first time that `comm` is used. The sender of a
        large message waits while this rank is in no call of mpishare: end the request before calls of other libraries
        that wait for that sender. Within collectives, the message is received until all ranks have come, if MPI was
        initialized with MPI_THREAD_MULTIPLE, as mpi4py does.

    Source:
        MPI 3.1, section 3.7.2 (MPI_Irecv).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> request = ms.irecv(ms.topology().rank)
        >>> ms.send(np.arange(3), ms.topology().rank)
        >>> request.wait()
        array([0, 1, 2])
    """
    context = context_of(comm)
    rank, wanted_tag = _checked_receive(context, source, tag, out, status)
    return Request(out) if rank == mpi.PROC_NULL else ReceiveRequest(context, rank, wanted_tag, out, status)


def sendrecv(
    array: Any,
    dest: int,
    sendtag: int = 0,
    *,
    source: int | None = None,
    recvtag: int | None = None,
    out: NDArray[Any] | None = None,
    comm: mpi.Comm | None = None,
    status: mpi.Status | None = None,
) -> Any:
    """Sends and receives at the same time, as in a ring or a halo exchange, in which `send` on all ranks would block.

    Args:
        array: What to send; see `send`.
        dest: The rank to send to; MPI.PROC_NULL for none.
        sendtag: The tag of the message that is sent.
        source: The rank to receive from; None or MPI.ANY_SOURCE for any, MPI.PROC_NULL for none.
        recvtag: The tag of the message that is received; None or MPI.ANY_TAG for any.
        out: Where to receive, other memory than `array`; None for a fresh array. See `recv`.
        comm: The ranks; MPI_COMM_WORLD when None.
        status: Is filled in for the message that is received.

    Returns:
        What was received; see `recv`.

    Raises:
        SpecError: `array` and `out` have items in common; nothing has been sent.
        SpecError, ArgumentError, CapacityError, StallError, MpishareError: See `send` and `recv`. `array` has been sent
            all the same; after a StallError, MPI may still read it.

    Collective:
        No; with a send on `source` and a receive on `dest`. But over `comm` the first time that `comm` is used.

    Source:
        MPI 3.1, section 3.10 (MPI_Sendrecv).

    Example:
        >>> import mpishare as ms, numpy as np
        >>> nodes = ms.topology()
        >>> left, right = (nodes.rank - 1) % nodes.size, (nodes.rank + 1) % nodes.size
        >>> int(ms.sendrecv(np.full(2, left), right, source=left)[0]) == (nodes.rank - 2) % nodes.size
        True
    """
    context = context_of(comm)
    _checked_receive(context, source, recvtag, out, status)  # before anything is sent
    rank, tag, _ = _checked_send(context, dest, sendtag, None)
    content = _content(array)
    for part in content.arrays if isinstance(content, PickledObject) else [content]:
        if out is not None and overlap(part, out):
            raise SpecError("array and out overlap: MPI would send what it has received. Pass other memory, or a copy.")
    sending = SendRequest(context, encode(context, content), rank, tag)
    try:
        result = recv(source, tag=recvtag, out=out, comm=comm, status=status)
    except MpishareError as error:
        if not isinstance(error, StallError):
            sending.wait()  # so that the caller may change the array
        raise
    sending.wait()
    return result


def _checked_send(context: Context, dest: int, tag: int, compress: str | None) -> tuple[int, int, bool]:
    """The rank to send to, the tag, and whether the chunks may be compressed, as none are within a node.

    Raises:
        ArgumentError, BackendError: See `send`.
    """
    rank = checked_integer("dest", dest, least=mpi.PROC_NULL, largest=context.topology.size - 1)
    tag = checked_integer("tag", tag, largest=context.max_tag)
    if compress is None:
        return rank, tag, False
    if compress != "auto":
        raise ArgumentError(f"compress {compress!r} is unknown. Use None or 'auto'.")
    lz4()
    return rank, tag, rank >= 0 and context.topology.node_of(rank) != context.topology.node


def _content(obj: Any) -> NDArray[Any] | PickledObject:
    """A plain array as it is; any other object apart from its arrays."""
    return obj if type(obj) in PLAIN_CLASSES else pickle_object(obj)


def _checked_receive(
    context: Context, source: int | None, tag: int | None, out: NDArray[Any] | None, status: mpi.Status | None
) -> tuple[int, int]:
    """The rank and the tag to receive from. Fills in `status` if that is not a rank.

    Raises:
        ArgumentError, SpecError: See `recv`.
    """
    largest = context.topology.size - 1
    rank = mpi.ANY_SOURCE
    if source is not None:
        rank = checked_integer("source", source, mpi.PROC_NULL, mpi.ANY_SOURCE, largest=largest)
    wanted_tag = mpi.ANY_TAG if tag is None else checked_integer("tag", tag, mpi.ANY_TAG, largest=context.max_tag)
    if out is not None and (type(out) not in PLAIN_CLASSES or not out.flags.writeable):
        given = "a read-only array" if type(out) in PLAIN_CLASSES else describe(out)
        raise SpecError(f"out is {given}; expected a writable numpy.ndarray, such as numpy.empty(shape, dtype).")
    if status is not None:
        if not isinstance(status, mpi.Status):
            raise ArgumentError(f"status is {describe(status)}; expected an mpi4py.MPI.Status.")
        if rank == mpi.PROC_NULL:  # MPI 3.1, section 3.11
            context.head_comm.Probe(rank, status=status)
    return rank, wanted_tag
