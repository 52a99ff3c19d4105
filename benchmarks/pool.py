"""Tasks through a method of an object: by our map and Pool, and by a loop and the pools of others.

    python -m benchmarks.pool [--rounds 9] [--workers 2] [--items 20000] [--bits 8,16]

A task takes about a microsecond; the object holds 2 to the power of `--bits` strings. "by method" is what people write:
the bound method, which most pools pickle with every chunk of tasks. "kept" is each pool's best means, by which the
object is in each process before the clock starts. Ours brings it in each map. Each way runs in programs of its own, in
an order that changes. mpi4py.futures and schwimmbad need a rank besides the workers.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks import harness
from jobs.task_map import Encoder

OURS, OUR_POOL = "mpishare.map, by method", "mpishare.Pool, by method"
BLOCKS = 3
"""Programs of each way."""
Run = Callable[[Callable[[], Any]], None]
"""Times a call, round after round."""
_encoder: Encoder | None = None


def main() -> None:
    """Starts the programs of all ways, prints and keeps."""
    options = harness.options(__doc__, workers=2, items=20_000, bits="8,16", way="")
    if options.way:
        in_program(options)
        return
    figures = {}
    for bits in options.bits.split(","):
        times: dict[str, list[float]] = {name: [] for name in WAYS if find_spec(package_of(name))}
        for number in range(BLOCKS):
            for name in harness.order(times, number):
                times[name] += seconds_of(name, bits, options)
        title = f"{options.items:,} tasks through an object of {1 << int(bits):,} strings"
        figures[title] = harness.compared(harness.rows(times), OURS)
        harness.show(title, figures[title])
    harness.keep("pool", {"workers": options.workers, **figures})


def package_of(name: str) -> str:
    """What a way needs."""
    return name.split(".")[0].split(",")[0] if name.startswith(("schwimmbad", "joblib")) else "mpishare"


def seconds_of(name: str, bits: str, options: Any) -> list[float]:
    """What one program of a way measures."""
    rounds = str(max(1, options.rounds // BLOCKS))
    args = ["--way", name, "--bits", bits, "--items", str(options.items), "--workers", str(options.workers)]
    ranks = (0, options.workers + 1, options.workers)[WAYS[name][0]]
    seconds: list[float] = harness.told([*harness.on_ranks(ranks), "-m", "benchmarks.pool", *args, "--rounds", rounds])
    return seconds


def in_program(options: Any) -> None:
    """One way; tells the seconds of each round but the first."""
    items = np.random.default_rng(6).integers(0, 1 << int(options.bits), options.items).tolist()
    seconds: list[float] = []

    def run(call: Callable[[], Any]) -> None:
        for _ in range(options.rounds + 1):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)

    WAYS[options.way][1](run, int(options.bits), items, options.workers)
    if WAYS[options.way][0] == 0 or rank() == 0:
        print(json.dumps(seconds[1:]), flush=True)


def rank() -> int:
    """Of this process."""
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.rank)


def begin(bits: int) -> None:
    """What a pool's initializer makes in each process."""
    global _encoder
    _encoder = Encoder(bits)


def encode(number: int) -> Any:
    """By what the initializer made."""
    assert _encoder is not None
    return _encoder.encode(number)


def encode_all(numbers: list[int]) -> list[Any]:
    """A chunk, for pools that take one task at a time."""
    return [encode(number) for number in numbers]


def chunk_of(items: list[int], workers: int) -> int:
    """Tasks that multiprocessing sends at a time; the others are given the same."""
    return max(1, len(items) // (4 * workers))


def loop(run: Run, bits: int, items: list[int], workers: int) -> None:
    """A loop."""
    encoder = Encoder(bits)
    run(lambda: [encoder.encode(item) for item in items])


def processes(run: Run, bits: int, items: list[int], workers: int) -> None:
    """The bound method by multiprocessing.Pool."""
    encoder = Encoder(bits)
    with multiprocessing.Pool(workers) as pool:
        run(lambda: pool.map(encoder.encode, items))


def processes_kept(run: Run, bits: int, items: list[int], workers: int) -> None:
    """An initializer of multiprocessing.Pool."""
    with multiprocessing.Pool(workers, begin, (bits,)) as pool:
        run(lambda: pool.map(encode, items))


def joblib(run: Run, bits: int, items: list[int], workers: int) -> None:
    """The bound method by joblib."""
    from joblib import Parallel, delayed

    call = delayed(Encoder(bits).encode)
    with Parallel(n_jobs=workers, batch_size=chunk_of(items, workers)) as parallel:
        run(lambda: parallel(call(item) for item in items))


def futures(run: Run, bits: int, items: list[int], workers: int) -> None:
    """The bound method by mpi4py.futures."""
    by_futures(run, items, workers, Encoder(bits).encode)


def futures_kept(run: Run, bits: int, items: list[int], workers: int) -> None:
    """A function by mpi4py.futures; each rank has made the object before."""
    begin(bits)
    by_futures(run, items, workers, encode)


def by_futures(run: Run, items: list[int], workers: int, call: Callable[[int], Any]) -> None:
    """The executor on the ranks of the job."""
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor() as executor:
        if executor is not None:
            mapped: Any = executor.map  # type: ignore[attr-defined] # of the executor that the block gives
            run(lambda: list(mapped(call, items, chunksize=chunk_of(items, workers))))


def schwimmbad(run: Run, bits: int, items: list[int], workers: int) -> None:
    """MPIPool of schwimmbad, by chunks; each rank has made the object before. A worker's pool ends its program."""
    from schwimmbad import MPIPool

    begin(bits)
    size = chunk_of(items, workers)
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    with MPIPool() as pool:
        run(lambda: pool.map(encode_all, chunks))


def ours(run: Run, bits: int, items: list[int], workers: int) -> None:
    """The bound method by mpishare.map."""
    from mpi4py import MPI

    import mpishare as ms

    call = Encoder(bits).encode if MPI.COMM_WORLD.rank == 0 else None
    run(lambda: ms.map(call, items))


def our_pool(run: Run, bits: int, items: list[int], workers: int) -> None:
    """The bound method by mpishare.Pool."""
    import mpishare as ms

    with ms.Pool() as pool:
        if pool is not None:
            encoder = Encoder(bits)
            run(lambda: pool.map(encoder.encode, items))


WAYS: dict[str, tuple[int, Callable[[Run, int, list[int], int], None]]] = {
    "a loop": (0, loop),
    "multiprocessing.Pool, by method": (0, processes),
    "multiprocessing.Pool, kept": (0, processes_kept),
    "joblib, by method": (0, joblib),
    "mpi4py.futures, by method": (1, futures),
    "mpi4py.futures, kept": (1, futures_kept),
    "schwimmbad.MPIPool, kept": (1, schwimmbad),
    OURS: (2, ours),
    OUR_POOL: (2, our_pool),
}
"""For each way 1 where it runs on a rank more than there are workers, 2 where it runs on as many, and what it does."""


if __name__ == "__main__":
    main()
