"""Sends a set of images to another rank and back, each leg timed, and compares what came back bit for bit.

    mpiexec -n 2 python jobs/round_trip.py
    mpiexec -n 2 python jobs/round_trip.py --data images.npy --to 1

Without --data the set is of the shape and type of MNIST as published for OpenML: 70,000 images of 28 x 28 pixels as
float32, about 220 MB. Ranks other than the two only take part in the start.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms

IMAGES, PIXELS = 70_000, 28 * 28


def main(args: Sequence[str] | None = None) -> int:
    """The job, with `words` in place of the command line's; returns 0 when all bits came back."""
    comm = MPI.COMM_WORLD
    options = parse_options(args)
    ms.topology()
    if not 0 < options.to < comm.size:
        args = f"round_trip: --to {options.to} is no other rank: start 2 ranks or more, and name one from 1 on"
        raise SystemExit(args if comm.rank == 0 else 1)
    if comm.rank == 0:
        return there_and_back(options)
    if comm.rank == options.to:
        echo(options.repeats)
    return int(comm.bcast(None))


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="the array to send; only rank 0 reads the file")
    parser.add_argument("--to", type=int, default=1, help="the rank that sends it back (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="round trips (default: %(default)s)")
    return parser.parse_args(args)


def there_and_back(options: argparse.Namespace) -> int:
    """Rank 0: sends, receives, compares."""
    comm = MPI.COMM_WORLD
    array = read(options.data)
    print(f"{array.shape} {array.dtype}, {array.nbytes:,} bytes, rank 0 to rank {options.to} and back")
    expected, is_good = digest(array), True
    for number in range(options.repeats):
        start = time.perf_counter()
        ms.send(array, options.to)
        comm.recv(source=options.to)
        middle = time.perf_counter()
        back = ms.recv(options.to)
        end = time.perf_counter()
        is_same = comm.recv(source=options.to) == expected == digest(back)
        is_same &= (back.dtype, back.shape) == (array.dtype, array.shape)
        is_good &= is_same
        legs = [
            f"{seconds * 1e3:.1f} ms, {array.nbytes / seconds / 1e9:.2f} GB/s"
            for seconds in (middle - start, end - middle)
        ]
        print(
            f"  {number + 1}: there {legs[0]}; back {legs[1]}: {'all bits are the same' if is_same else 'BITS DIFFER'}"
        )
    return int(comm.bcast(0 if is_good else 1))


def echo(repeats: int) -> None:
    """The other rank: tells when the array is there, sends it back, and then tells its digest."""
    for _ in range(repeats):
        array = ms.recv(0)
        MPI.COMM_WORLD.send(None, 0)
        ms.send(array, 0)
        MPI.COMM_WORLD.send(digest(array), 0)


def read(path: str | None) -> np.ndarray[Any, Any]:
    """The array; ends the job where it cannot be read or sent."""
    if path is None:
        return np.random.default_rng(28).random((IMAGES, PIXELS), np.float32)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise SystemExit(f"round_trip: {type(error).__name__}: {error}") from error


def digest(array: np.ndarray[Any, Any]) -> bytes:
    """BLAKE2 of the bytes in memory order."""
    return hashlib.blake2b(array.ravel(order="K").view(np.uint8).data, digest_size=16).digest()


if __name__ == "__main__":
    raise SystemExit(main())
