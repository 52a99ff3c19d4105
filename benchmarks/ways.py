"""A set of images from one process to another and back, 220 MB as float32, in ten ways.

    python -m benchmarks.ways [--images 70000] [--rounds 5]

For each way: the time until the other process has the array as an array again, and the time until it is back. The
first six are between a process and its child, the last four between two ranks. An array that is mapped or shared is
there before its bytes have been read, so that all ways read one byte of each page before the clock stops.
Prints a table and keeps it as results/ways.json, with a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep
from benchmarks.picture import bars

PIXELS = 28 * 28
Images = NDArray[np.float32]
Times = dict[str, list[tuple[float, float]]]
RAM_FOLDER = Path("/dev/shm")
_PAGE_ITEMS = 1024


def main() -> None:
    """Measures all ways, here and in two ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=70_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = options.images, PIXELS
    if options.inside:
        in_ranks(shape, options.rounds)
        return
    times: Times = {}
    for name, make in WAYS.items():
        with tempfile.TemporaryDirectory(dir=RAM_FOLDER if name == IN_MEMORY else None) as folder:
            times[name] = with_child(name, make, folder, shape, options.rounds)
    arguments = ["run", "-n", "2", "-m", "benchmarks.ways", "--inside", "--images", str(options.images)]
    command = [sys.executable, "-m", "mpishare", *arguments, "--rounds", str(options.rounds)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    times |= result["times"]
    figures = {name: row(taken) for name, taken in times.items()}
    nbytes = options.images * PIXELS * 4
    print(f"{nbytes:,} bytes, medians of {options.rounds}")
    for name, figure in figures.items():
        print(f"  {name:36} " + "  ".join(f"{value:10,.1f} {what}" for what, value in figure.items()))
    keep("ways", {"bytes": nbytes, "ways": figures}, result["ground"])
    legs = {what: {name: figure[what] for name, figure in figures.items()} for what in ("there, ms", "and back, ms")}
    bars("ways", legs, "ms", f"{nbytes / 1e6:.0f} MB to another process and back")


def row(taken: list[tuple[float, float]]) -> dict[str, float]:
    """Medians, in milliseconds."""
    there, back = zip(*taken, strict=True)
    return {
        "there, ms": round(statistics.median(there) * 1e3, 1),
        "and back, ms": round(statistics.median(back) * 1e3, 1),
    }


def looked_at(array: Images) -> Images:
    """The array, with each of its pages touched."""
    array.reshape(-1)[::_PAGE_ITEMS].max()
    return array


class Ends:
    """Two ends of one way: what the parent sends the child receives, and the other way round."""

    def send(self, array: Images) -> None:
        """To the other end."""
        raise NotImplementedError

    def recv(self) -> Images:
        """From the other end."""
        raise NotImplementedError


class ThroughFile(Ends):
    """A file that the other process maps: on disk, or in memory."""

    def __init__(self, folder: str, is_parent: bool) -> None:
        names = [Path(folder) / "there.npy", Path(folder) / "back.npy"]
        self._mine, self._theirs = names if is_parent else names[::-1]

    def send(self, array: Images) -> None:
        """Writes it beside, then gives it its name."""
        others = self._mine.with_suffix(".part.npy")
        np.save(others, array)
        others.rename(self._mine)

    def recv(self) -> Images:
        """Waits for the name."""
        while not self._theirs.exists():
            time.sleep(0.0002)
        array: Images = np.load(self._theirs, mmap_mode="r")
        self._theirs.unlink()
        return looked_at(array)


class ThroughPipe(Ends):
    """Two pipes, the bytes as they are."""

    def __init__(self, read: Any, write: Any, shape: tuple[int, int]) -> None:
        self._read, self._write, self._shape = read, write, shape

    def send(self, array: Images) -> None:
        """Writes the bytes."""
        self._write.send_bytes(array)

    def recv(self) -> Images:
        """Reads them into fresh memory."""
        array = np.empty(self._shape, np.float32)
        self._read.recv_bytes_into(array.reshape(-1))
        return array


class ThroughStreams(Ends):
    """A named pipe each way, or a TCP connection, the bytes as they are."""

    def __init__(self, read: Any, write: Any, shape: tuple[int, int]) -> None:
        self._read, self._write, self._shape = read, write, shape

    def send(self, array: Images) -> None:
        """Writes the bytes."""
        view = array.data.cast("B")
        while view:
            view = view[self._write(view[: 1 << 20]) :]

    def recv(self) -> Images:
        """Reads them into fresh memory."""
        array = np.empty(self._shape, np.float32)
        view = array.data.cast("B")
        while view:
            view = view[self._read(view) :]
        return array


class ThroughQueue(Ends):
    """Two queues of multiprocessing, which pickle."""

    def __init__(self, read: Any, write: Any) -> None:
        self._read, self._write = read, write

    def send(self, array: Images) -> None:
        """Puts it."""
        self._write.put(array)

    def recv(self) -> Images:
        """Gets it."""
        array: Images = self._read.get()
        return array


def file_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """Files in `folder`."""
    return (lambda: ThroughFile(folder, True)), ("file", folder)


def pipe_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """Anonymous pipes."""
    there, back = stage.Pipe(duplex=False), stage.Pipe(duplex=False)
    return (lambda: ThroughPipe(back[0], there[1], shape)), ("pipe", there[0], back[1])


def fifo_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """Named pipes."""
    there, back = f"{folder}/there", f"{folder}/back"
    os.mkfifo(there)
    os.mkfifo(back)

    def parent() -> Ends:
        write = FileIO(there, "wb")
        return ThroughStreams(FileIO(back, "rb").readinto, write.write, shape)

    return parent, ("fifo", there, back)


def tcp_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """A connection over the loopback device."""
    server = socket.create_server(("127.0.0.1", 0))

    def parent() -> Ends:
        connection = server.accept()[0]
        return ThroughStreams(connection.recv_into, connection.send, shape)

    return parent, ("tcp", server.getsockname())


def queue_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """multiprocessing.Queue."""
    there, back = stage.Queue(), stage.Queue()
    return (lambda: ThroughQueue(back, there)), ("queue", there, back)


IN_MEMORY = "file in memory, mapped"
WAYS: dict[str, Callable[..., Any]] = {
    "file on disk, mapped": file_ends,
    IN_MEMORY: file_ends,
    "pipe": pipe_ends,
    "named pipe": fifo_ends,
    "TCP": tcp_ends,
    "multiprocessing.Queue": queue_ends,
}


def child_end(kind: str, arguments: tuple[Any, ...], shape: tuple[int, int]) -> Ends:
    """The other end, in the child."""
    if kind == "file":
        return ThroughFile(arguments[0], False)
    if kind == "pipe":
        return ThroughPipe(arguments[0], arguments[1], shape)
    if kind == "fifo":
        read = FileIO(arguments[0], "rb")
        return ThroughStreams(read.readinto, FileIO(arguments[1], "wb").write, shape)
    if kind == "tcp":
        connection = socket.create_connection(arguments[0])
        return ThroughStreams(connection.recv_into, connection.send, shape)
    return ThroughQueue(*arguments)


def child(clock: Any, rounds: int, shape: tuple[int, int], kind: str, *arguments: Any) -> None:
    """Receives, tells when, sends back."""
    end = child_end(kind, arguments, shape)
    for _ in range(rounds):
        array = end.recv()
        clock.send(time.perf_counter())
        end.send(array)
    clock.recv()  # until the parent has all


def with_child(
    name: str, make: Callable[..., Any], folder: str, shape: tuple[int, int], rounds: int
) -> list[tuple[float, float]]:
    """Time there, and there and back, of every round but the first. All processes of a machine have one clock."""
    stage = multiprocessing.get_context("spawn")
    clock, theirs = stage.Pipe()
    parent, arguments = make(shape, stage, folder)
    other = stage.Process(target=child, args=(theirs, rounds + 1, shape, *arguments))
    other.start()
    end = parent()
    images = np.random.default_rng(28).random(shape, np.float32)
    taken = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        end.send(images)
        back = end.recv()
        stop = time.perf_counter()
        taken.append((clock.recv() - start, stop - start))
        assert (back == images).all(), name
    clock.send(None)
    other.join()
    return taken[1:]


def in_ranks(shape: tuple[int, int], rounds: int) -> None:
    """The ways between two ranks; rank 0 tells the times as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    peer = 1 - comm.rank
    room = np.empty(shape, np.float32)

    def receive_known() -> Images:
        comm.Recv(room, peer)
        return room

    pairs: dict[str, tuple[Callable[[Images], object], Callable[[], Images]]] = {
        "MPI, pickled": (lambda array: comm.send(array, peer), lambda: comm.recv(None, peer)),
        "MPI, known buffers": (lambda array: comm.Send(array, peer), receive_known),
        "mpishare, send and recv": (lambda array: ms.send(array, peer), lambda: ms.recv(peer)),
    }
    images = np.random.default_rng(28).random(shape, np.float32)
    times: Times = {}
    for name, (send, receive) in pairs.items():
        times[name] = in_turn(comm, rounds, images, send, receive)
    times["mpishare, share"] = shared(comm, rounds, images)
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"times": times, "ground": ground}))


def in_turn(comm: Any, rounds: int, images: Images, send: Any, receive: Any) -> list[tuple[float, float]]:
    """Rank 0 sends, rank 1 tells when it has the array, and sends it back."""
    taken = []
    for _ in range(rounds + 1):
        comm.Barrier()
        start = time.perf_counter()
        if comm.rank == 0:
            send(images)
            back = receive()
            stop = time.perf_counter()
            assert (back == images).all()
            taken.append((comm.recv(source=1) - start, stop - start))
        else:
            array = receive()
            there = time.perf_counter()
            send(array)
            comm.send(there, 0)
    return taken[1:]


def shared(comm: Any, rounds: int, images: Images) -> list[tuple[float, float]]:
    """Rank 0 shares with rank 1, which shares it again with rank 0."""
    import mpishare as ms

    taken = []
    for _ in range(rounds + 1):
        comm.Barrier()
        start = time.perf_counter()
        array = looked_at(ms.share(images if comm.rank == 0 else None))
        there = time.perf_counter()
        back = looked_at(ms.share(array if comm.rank == 1 else None, root=1))
        stop = time.perf_counter()
        if comm.rank == 0:
            assert (back == images).all()
            taken.append((comm.recv(source=1) - start, stop - start))
        else:
            comm.send(there, 0)
        del array, back
    return taken[1:]


if __name__ == "__main__":
    main()
