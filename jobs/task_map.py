"""Shows how to map the method of an object with a large cache over many small tasks, and how long each task takes.

    mpiexec -n 4 python jobs/task_map.py
    mpiexec -n 4 python jobs/task_map.py --items 200000 --work 20

What it computes, the bits of integers, is there to be checked. The cache has the 2^20 strings of 20 binary digits, some
70 MB of Python objects. multiprocessing's pools pickle it again and again where such a method is mapped; here it is
sent to each rank once.

Your own data: in place of Encoder any object that can be pickled, with one of its methods, and a list of items. With
--check, the bits must be the numbers again, and as rank 0 has them in a loop.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms

BITS = 20

comm = MPI.COMM_WORLD


class Encoder:
    """Knows the binary digits of every number below 2 to the power of `bits`."""

    def __init__(self, bits: int = BITS, work_us: float = 0.0) -> None:
        """`work_us` is how long each call computes besides, in microseconds."""
        self.strings = {number: format(number, f"0{bits}b") for number in range(1 << bits)}
        self.work_s = work_us * 1e-6

    def encode(self, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bits of a number, the highest first."""
        if self.work_s:
            end = time.thread_time() + self.work_s
            while time.thread_time() < end:
                pass
        return np.frombuffer(self.strings[number].encode(), np.uint8) - ord("0")


def main(args: Sequence[str] | None = None) -> None:
    """The job. An error on any rank ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="how many numbers (default: %(default)s)")
    parser.add_argument("--bits", type=int, choices=range(1, 25), default=BITS, help="of each number (default: 20)")
    parser.add_argument("--work", type=float, default=0.0, metavar="US", help="microseconds of computing for each")
    parser.add_argument("--progress", action="store_true", help="show a bar; needs tqdm")
    parser.add_argument("--check", action="store_true", help="do it in a loop on rank 0 as well")
    options = ms.share(call=lambda: parser.parse_args(args))  # rank 0 alone prints the usage
    encoder = items = None
    if comm.rank == 0:
        encoder = Encoder(options.bits, options.work)
        items = np.random.default_rng(6).integers(0, 1 << options.bits, options.items).tolist()
    start = time.perf_counter()
    result = ms.map(encoder.encode if encoder else None, items, progress=options.progress)
    seconds = time.perf_counter() - start
    if encoder is None or items is None or result is None:  # not on rank 0
        return
    print(f"{len(items):,} items on {comm.size} ranks in {seconds:.3f} s, {seconds / len(items) * 1e6:.2f} us each")
    if options.check:
        np.testing.assert_array_equal(result, [encoder.encode(item) for item in items])
        np.testing.assert_array_equal(np.asarray(result) @ (1 << np.arange(options.bits)[::-1]), items)
        print("task_map: as on one rank")
    print("cache: sent once to each rank, not with each chunk of tasks; Python strings are a copy per rank")


if __name__ == "__main__":
    main()
