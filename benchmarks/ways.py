"""A set of images from one process to another and back, 110 MB as float32, in twelve ways.

    python -m benchmarks.ways [--images 35000] [--rounds 9]

For each way: the time until the other process has the array as an array again, and the time until it is back. The
first seven are between a process and its child, the last five between two ranks. Each runs in programs of its own,
three times, in an order that changes; the array is another one in each round. A block of the standard library's shared
memory and a window are made once and used again, as are MPI's known buffers. An array that is mapped or shared is
there before its bytes have been read, so that all ways read one byte of each page before the clock stops.
Prints a table and keeps it as results/ways.json, with a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import FileIO
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep
from benchmarks.picture import bars
from benchmarks.rounds import MEDIAN, in_blocks, order
from benchmarks.rounds import row as rounds_row

PIXELS = 28 * 28
Images = NDArray[np.float32]
Times = dict[str, list[tuple[float, float]]]
RAM_FOLDER = Path("/dev/shm")
_PAGE_ITEMS = 1024


def main() -> None:
    """Measures all ways, here and in two ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=35_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = options.images, PIXELS
    if options.inside:
        in_ranks(options.inside, shape, options.rounds)
        return
    times: Times = {name: [] for name in [*WAYS, *PAIRS, WINDOW, SHARED]}
    arguments = ["run", "-n", "2", "-m", "benchmarks.ways", "--images", str(options.images), "--inside"]
    command = [sys.executable, "-m", "mpishare", *arguments]
    for number, rounds in enumerate(in_blocks(options.rounds)):
        for name in order(times, number):
            if name in WAYS:
                with tempfile.TemporaryDirectory(dir=RAM_FOLDER if name == IN_MEMORY else None) as folder:
                    times[name] += with_child(name, WAYS[name], folder, shape, rounds)
                continue
            ended = subprocess.run([*command, name, "--rounds", str(rounds)], stdout=subprocess.PIPE, check=True)
            result = json.loads(ended.stdout)
            times[name] += result["times"]
    figures = {name: row(taken) for name, taken in times.items()}
    nbytes = options.images * PIXELS * 4
    print(f"{nbytes:,} bytes, medians of {options.rounds}")
    for name, figure in figures.items():
        print(
            f"  {name:36} "
            + "  ".join(f"{value:10,.1f} {column}" for column, value in figure.items() if "quartile" not in column)
        )
    keep("ways", {"bytes": nbytes, "ways": figures}, result["ground"])
    there = {name: figure["there, ms"] for name, figure in figures.items()}
    bars("ways", {"": there}, "time until the other process has it, ms", f"{nbytes / 1e6:.0f} MB to another process")


def row(taken: list[tuple[float, float]]) -> dict[str, float]:
    """Medians and quartiles, in milliseconds."""
    result: dict[str, float] = {}
    for leg, times in zip(("there", "and back"), zip(*taken, strict=True), strict=True):
        figures = rounds_row(times)
        result |= {f"{leg}, ms": figures[MEDIAN]}
        result |= {f"{leg}, {column}": value for column, value in figures.items() if "quartile" in column}
    return {**result, "rounds": len(taken)}


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
        self._own, self._others = names if is_parent else names[::-1]

    def send(self, array: Images) -> None:
        """Writes it beside, then gives it its name."""
        others = self._own.with_suffix(".part.npy")
        np.save(others, array)
        others.rename(self._own)

    def recv(self) -> Images:
        """Waits for the name."""
        while not self._others.exists():
            time.sleep(0.0002)
        array: Images = np.load(self._others, mmap_mode="r")
        self._others.unlink()
        return looked_at(array)


class ThroughPipe(Ends):
    """Two pipes, the bytes as they are."""

    def __init__(self, read: Any, write: Any, shape: tuple[int, int]) -> None:
        self._read, self._write, self._shape = read, write, shape

    def send(self, array: Images) -> None:
        """Writes the bytes."""
        self._write.send_bytes(array)

    def recv(self) -> Images:
        """Reads them into new memory."""
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
        """Reads them into new memory."""
        array = np.empty(self._shape, np.float32)
        view = array.data.cast("B")
        while view:
            view = view[self._read(view) :]
        return array


class ThroughBlocks(Ends):
    """Two blocks of shared memory, attached once, and two pipes that tell when one is filled."""

    def __init__(self, names: tuple[str, str], read: Any, write: Any, shape: tuple[int, int]) -> None:
        self._blocks = [SharedMemory(name) for name in names]
        self._own, self._others = (np.ndarray(shape, np.float32, block.buf) for block in self._blocks)
        self._read, self._write = read, write

    def send(self, array: Images) -> None:
        """Copies it into the block."""
        np.copyto(self._own, array)
        self._write.send(None)

    def recv(self) -> Images:
        """The block of the other end."""
        self._read.recv()
        return looked_at(self._others)


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


def block_ends(shape: tuple[int, int], stage: Any, folder: str) -> tuple[Callable[[], Ends], tuple[Any, ...]]:
    """multiprocessing.shared_memory, used again."""
    there, back = stage.Pipe(duplex=False), stage.Pipe(duplex=False)
    blocks = [SharedMemory(create=True, size=shape[0] * shape[1] * 4) for _ in range(2)]
    names = blocks[0].name, blocks[1].name
    _blocks.extend(blocks)
    return (lambda: ThroughBlocks(names, back[0], there[1], shape)), ("blocks", names[::-1], there[0], back[1])


_blocks: list[SharedMemory] = []
"""What is given back after a way."""

IN_MEMORY = "file in memory, mapped"
WAYS: dict[str, Callable[..., Any]] = {
    "file on disk, mapped": file_ends,
    IN_MEMORY: file_ends,
    "pipe": pipe_ends,
    "named pipe": fifo_ends,
    "TCP": tcp_ends,
    "multiprocessing.Queue": queue_ends,
    "multiprocessing.shared_memory": block_ends,
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
    if kind == "blocks":
        return ThroughBlocks(arguments[0], arguments[1], arguments[2], shape)
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
    clock, far_end = stage.Pipe()
    parent, arguments = make(shape, stage, folder)
    other = stage.Process(target=child, args=(far_end, rounds + 1, shape, *arguments))
    other.start()
    end = parent()
    images, taken = made(shape), []
    for number in range(rounds + 1):
        images[0, 0] = number
        start = time.perf_counter()
        end.send(images)
        back = end.recv()
        stop = time.perf_counter()
        taken.append((clock.recv() - start, stop - start))
        assert (back == images).all(), name
    clock.send(None)
    other.join()
    while _blocks:
        _blocks.pop().unlink()
    return taken[1:]


def made(shape: tuple[int, int]) -> Images:
    """Numbers at random."""
    return np.random.default_rng(28).random(shape, np.float32)


PAIRS = ("MPI, pickled", "MPI, known buffers", "mpishare, send and recv")
WINDOW, SHARED = "MPI, windows used again", "mpishare, share"


def in_ranks(name: str, shape: tuple[int, int], rounds: int) -> None:
    """A way between two ranks; rank 0 tells the times as JSON."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    if name in PAIRS:
        times = in_turn(comm, shape, rounds, *pair(comm, ms, name, shape))
    else:
        times = shared(comm, shape, rounds, ms.share if name == SHARED else by_windows(comm, shape))
    ground = ms.info().as_dict()
    if comm.rank == 0:
        print(json.dumps({"times": times, "ground": ground}))


def pair(
    comm: Any, ms: Any, name: str, shape: tuple[int, int]
) -> tuple[Callable[[Images], object], Callable[[], Images]]:
    """How a way sends and how it receives."""
    peer, room = 1 - comm.rank, np.empty(shape, np.float32)

    def receive_known() -> Images:
        comm.Recv(room, peer)
        return room

    pairs: dict[str, tuple[Callable[[Images], object], Callable[[], Images]]] = {
        "MPI, pickled": (lambda array: comm.send(array, peer), lambda: comm.recv(None, peer)),
        "MPI, known buffers": (lambda array: comm.Send(array, peer), receive_known),
        "mpishare, send and recv": (lambda array: ms.send(array, peer), lambda: ms.recv(peer)),
    }
    return pairs[name]


def by_windows(comm: Any, shape: tuple[int, int]) -> Callable[..., Images]:
    """A window for each root, made once, into which it copies."""
    from mpi4py import MPI

    rooms: list[Images] = []
    for root in range(2):
        window = MPI.Win.Allocate_shared(shape[0] * shape[1] * 4 if comm.rank == root else 0, 4, comm=comm)
        memory: Any = window.Shared_query(root)[0]
        rooms.append(np.frombuffer(memory, np.float32).reshape(shape))

    def share(array: Images | None, root: int = 0) -> Images:
        if array is not None:
            np.copyto(rooms[root], array)
        comm.Barrier()
        return rooms[root]

    return share


def in_turn(comm: Any, shape: tuple[int, int], rounds: int, send: Any, receive: Any) -> list[tuple[float, float]]:
    """Rank 0 sends, rank 1 tells when it has the array, and sends it back."""
    images, taken = made(shape), []
    for number in range(rounds + 1):
        images[0, 0] = number
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


def shared(comm: Any, shape: tuple[int, int], rounds: int, share: Callable[..., Images]) -> list[tuple[float, float]]:
    """Rank 0 shares with rank 1, which shares it again with rank 0."""
    images, taken = made(shape), []
    for number in range(rounds + 1):
        images[0, 0] = number
        comm.Barrier()
        start = time.perf_counter()
        array = looked_at(share(images if comm.rank == 0 else None))
        there = time.perf_counter()
        back = looked_at(share(array if comm.rank == 1 else None, root=1))
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
