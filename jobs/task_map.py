"""Turns integers into arrays of their bits on all ranks, by the method of an object that holds a large cache.

    mpiexec -n 4 python jobs/task_map.py
    mpiexec -n 4 python jobs/task_map.py --items 200000 --work 20 --progress --json

The cache has the 2^20 texts of 20 binary digits, some 70 MB of Python objects. multiprocessing's pools pickle it again
and again where such a method is mapped; here it goes to each rank once. Each result is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

import mpishare as ms

BITS = 20


class Encoder:
    """Knows the binary digits of every number below 2 to the power of `bits`."""

    def __init__(self, bits: int = BITS, work_us: float = 0.0) -> None:
        """`work_us` is how long each call computes besides, in microseconds."""
        self.texts = {number: format(number, f"0{bits}b") for number in range(1 << bits)}
        self.work_s = work_us * 1e-6

    def encode(self, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bits of a number, the highest first."""
        if self.work_s:
            end = time.thread_time() + self.work_s
            while time.thread_time() < end:
                pass
        return np.frombuffer(self.texts[number].encode(), np.uint8) - ord("0")


def main(args: Sequence[str] | None = None) -> int:
    """The job, with `words` in place of the command line's; returns 0 when all is right."""
    comm, options = MPI.COMM_WORLD, parse_options(args)
    ms.topology()
    encoder, items = None, None
    if comm.rank == 0:
        encoder = Encoder(options.bits, options.work)
        items = np.random.default_rng(6).integers(0, 1 << options.bits, options.items).tolist()
    figures: dict[str, Any] = {"ranks": comm.size, "items": options.items}
    start = time.perf_counter()
    result = ms.map(encoder.encode if encoder else None, items, chunk=options.chunk, progress=options.progress)
    figures["seconds"] = round(time.perf_counter() - start, 3)
    is_right = True
    if comm.rank == 0 and encoder is not None and items is not None and result is not None:
        is_right = check(result, items, options.bits)
        if options.serial:
            start = time.perf_counter()
            alone = [encoder.encode(item) for item in items]
            figures["serial seconds"] = round(time.perf_counter() - start, 3)
            assert len(alone) == len(result)
        tell(figures, is_right, as_json=options.json)
    return 0 if comm.bcast(is_right) else 1


def check(result: list[Any], items: list[int], bits: int) -> bool:
    """Whether the bits, weighed, are the numbers again."""
    if not items:
        return result == []
    weights = 1 << np.arange(bits)[::-1]
    return bool((np.asarray(result) @ weights == items).all())


def tell(figures: dict[str, Any], is_right: bool, *, as_json: bool) -> None:
    """Prints the figures."""
    if as_json:
        print(json.dumps({**figures, "right": is_right}))
        return
    each = figures["seconds"] / max(figures["items"], 1) * 1e6
    print(f"{figures['items']:,} items on {figures['ranks']} ranks in {figures['seconds']} s, {each:.2f} us each")
    if "serial seconds" in figures:
        print(f"  in a loop on one rank: {figures['serial seconds']} s")
    print("  each number is the sum of its bits" if is_right else "  BITS ARE WRONG")


def parse_options(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line, the same on every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="how many numbers (default: %(default)s)")
    parser.add_argument("--bits", type=int, default=BITS, help="bits of each number (default: %(default)s)")
    parser.add_argument(
        "--work", type=float, default=0.0, metavar="US", help="microseconds of computing for each besides"
    )
    parser.add_argument("--chunk", type=int, help="items that a rank takes at a time; by time without it")
    parser.add_argument("--progress", action="store_true", help="show a bar; needs tqdm")
    parser.add_argument("--serial", action="store_true", help="do it in a loop on rank 0 as well, for comparison")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(args)
    if options.items < 0 or not 1 <= options.bits <= 24 or options.work < 0:
        parser.error("--items takes 0 or more, --bits 1 to 24, --work 0 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
