"""Shows how to send arrays from rank to rank, and how long it takes: images travel there and back, and stay the same.

    mpiexec -n 2 python jobs/round_trip.py
    mpiexec -n 2 python jobs/round_trip.py --data images.npy --to 1

Without --data the set is of the shape and type of MNIST as published for OpenML: 70,000 images of 28 x 28 pixels as
float32, about 220 MB. Ranks other than the two do nothing.

Your own data: --data takes a .npy file with any array; read another format in `read`, which only rank 0 calls.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import mpishare as ms

IMAGES, PIXELS = 70_000, 28 * 28

comm = MPI.COMM_WORLD


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it, also where a bit differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE.npy", help="the array to send")
    parser.add_argument("--to", type=int, default=1, help="the rank that sends it back (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="round trips (default: %(default)s)")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    if not 0 < options.to < comm.size:
        raise ValueError(f"round_trip: --to {options.to} is not another rank; expected 1 to {comm.size - 1}")
    if comm.rank == 0:
        send_and_receive(read(options.data), options)
    if comm.rank == options.to:
        for _ in range(options.repeats):
            array = ms.recv(0)
            comm.send(None, 0)  # it is there
            ms.send(array, 0)


def read(path: str | None) -> NDArray[Any]:
    """The array."""
    if path is None:
        return np.random.default_rng(28).random((IMAGES, PIXELS), np.float32)
    return np.asarray(np.load(path, allow_pickle=False))


def send_and_receive(array: NDArray[Any], options: argparse.Namespace) -> None:
    """The part of rank 0."""
    print(f"{array.shape} {array.dtype}, {array.nbytes:,} bytes, rank 0 to rank {options.to} and back")
    for number in range(options.repeats):
        start = time.perf_counter()
        ms.send(array, options.to)
        comm.recv(source=options.to)
        middle = time.perf_counter()
        back = ms.recv(options.to)
        seconds = middle - start, time.perf_counter() - middle
        if (back.dtype, back.shape, back.tobytes()) != (array.dtype, array.shape, array.tobytes()):
            raise AssertionError("the bits that came back differ")
        forth, backward = (f"{each * 1e3:.1f} ms, {array.nbytes / each / 1e9:.2f} GB/s" for each in seconds)
        print(f"  {number + 1}: there {forth}; back {backward}: all bits are the same")
    print(f"images: no pickle of {array.nbytes / 1e6:.1f} MB on either rank, which comm.send would make")


if __name__ == "__main__":
    main()
