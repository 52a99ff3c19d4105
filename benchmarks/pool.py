"""A million integers to bit arrays through an object with a large cache: in a loop, in four pools, and by ours.

    python -m benchmarks.pool [--items 1000000] [--bits 20] [--workers 2] [--rounds 3]

The ancestor mapped the object's bound method with multiprocessing.Pool, which pickles the object with every chunk of
tasks. For each way: the time of one map, and the most that all processes held together (PSS, looked at ten times a
second). Then, of ours: what a task costs besides its work, one at a time and by chunks; how much 2 ranks gain where a
task takes 20 us; and, where one in a hundred tasks is a hundred times longer, how far apart the ranks end. Prints a
table and keeps it as results/pool.json, with a picture beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.keep import RESULTS, keep
from benchmarks.picture import bars
from benchmarks.watch import held_bytes
from jobs.task_map import Encoder

_LOOK_S = 0.1
_encoder: Encoder | None = None


def main() -> None:
    """Measures each way in processes of its own."""
    options = parse_options()
    if options.way:
        print(json.dumps(inside(options)))
        return
    rows = {}
    for name in WAYS:
        rows[name] = measured(name, options)
        print(f"{name:40} " + "  ".join(f"{what} {value}" for what, value in rows[name].items()), flush=True)
    ours = {name: result(name, options) for name in ("overhead", "work", "uneven")}
    for name, figures in ours.items():
        print(f"{name}: {figures}")
    ground = json.loads(run_inside("ground", options)[0])
    keep("pool", {"items": options.items, "workers": options.workers, "ways": rows, **ours}, ground)
    print(f"kept in {RESULTS / 'pool.json'}")
    seconds = {"seconds": {name: row["seconds"] for name, row in rows.items()}}
    bars("pool", seconds, "seconds", f"{options.items:,} tasks through a cache of {1 << options.bits:,} texts")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def begin(bits: int) -> None:
    """What a pool's initializer makes in each process."""
    global _encoder
    _encoder = Encoder(bits)


def encode(number: int) -> Any:
    """By what the initializer made."""
    assert _encoder is not None
    return _encoder.encode(number)


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    values = call()
    seconds = time.perf_counter() - start
    assert values is None or len(values) >= 0
    return seconds


def serial(options: argparse.Namespace, items: list[int]) -> list[float]:
    """A loop."""
    encoder = Encoder(options.bits)
    return [timed(lambda: [encoder.encode(item) for item in items]) for _ in range(options.rounds)]


def bound(options: argparse.Namespace, items: list[int]) -> list[float]:
    """multiprocessing.Pool and the bound method."""
    encoder = Encoder(options.bits)
    with multiprocessing.Pool(options.workers) as pool:
        return [timed(lambda: pool.map(encoder.encode, items)) for _ in range(options.rounds)]


def bound_small(options: argparse.Namespace, items: list[int]) -> list[float]:
    """The same by as many chunks as Pool makes for 8 processes, once."""
    encoder = Encoder(options.bits)
    with multiprocessing.Pool(options.workers) as pool:
        return [timed(lambda: pool.map(encoder.encode, items, max(1, len(items) // 32)))]


def initialized(options: argparse.Namespace, items: list[int]) -> list[float]:
    """multiprocessing.Pool and an initializer that makes the object in each process."""
    with multiprocessing.Pool(options.workers, begin, (options.bits,)) as pool:
        return [timed(lambda: pool.map(encode, items)) for _ in range(options.rounds)]


def joblib(options: argparse.Namespace, items: list[int]) -> list[float]:
    """The bound method by joblib, once, by as many chunks as multiprocessing makes: its own choice is one at a time."""
    from joblib import Parallel, delayed

    call, chunk = delayed(Encoder(options.bits).encode), max(1, len(items) // (4 * options.workers))
    with Parallel(n_jobs=options.workers, batch_size=chunk) as parallel:
        return [timed(lambda: parallel(call(item) for item in items))]


def futures(options: argparse.Namespace, items: list[int]) -> list[float] | None:
    """mpi4py.futures and the bound method, by as many chunks as multiprocessing makes."""
    from mpi4py.futures import MPICommExecutor

    chunk = max(1, len(items) // (4 * options.workers))
    with MPICommExecutor() as executor:
        if executor is None:
            return None
        encoder = Encoder(options.bits)
        run: Any = executor
        return [timed(lambda: list(run.map(encoder.encode, items, chunksize=chunk))) for _ in range(options.rounds)]


def ours(options: argparse.Namespace, items: list[int]) -> list[float] | None:
    """mpishare.map and the bound method."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    encoder = Encoder(options.bits) if comm.rank == 0 else None
    ms.topology()
    taken = []
    for _ in range(options.rounds):
        comm.Barrier()
        taken.append(timed(lambda: ms.map(encoder.encode if encoder else None, items)))
    return taken if comm.rank == 0 else None


def our_pool(options: argparse.Namespace, items: list[int]) -> list[float] | None:
    """mpishare.Pool, which has the object from the second map on."""
    import mpishare as ms

    with ms.Pool() as pool:
        if pool is None:
            return None
        encoder = Encoder(options.bits)
        pool.map(encoder.encode, items[:100])
        return [timed(lambda: pool.map(encoder.encode, items)) for _ in range(options.rounds)]


WAYS: dict[str, tuple[int, Callable[[argparse.Namespace, list[int]], list[float] | None]]] = {
    "a loop": (0, serial),
    "multiprocessing.Pool, bound method": (0, bound),
    "the same by the chunks of 8 processes": (0, bound_small),
    "multiprocessing.Pool, initializer": (0, initialized),
    "joblib, bound method": (0, joblib),
    "mpi4py.futures, bound method": (1, futures),
    "mpishare.map, bound method": (2, ours),
    "mpishare.Pool, bound method": (2, our_pool),
}
"""For each way whether it runs under MPI, 1 with a rank besides the workers, and what it does."""


def inside(options: argparse.Namespace) -> Any:
    """One way, in its own process or on its own ranks; the figures, None on ranks that have none."""
    if options.way in WAYS:
        items = np.random.default_rng(6).integers(0, 1 << options.bits, options.items).tolist()
        return WAYS[options.way][1](options, items)
    return EXTRAS[options.way](options)


def nothing(number: int) -> int:
    """A task without work."""
    return number


def overhead(options: argparse.Namespace) -> dict[str, float]:
    """Microseconds of all ranks for a task that does nothing, less what a loop takes for it."""
    import mpishare as ms

    count = min(options.items, 200_000)
    loop = statistics.median([timed(lambda: [nothing(number) for number in range(count)]) for _ in range(5)]) / count
    figures = {}
    for name, chunk, number in (("one at a time, us", 1, count // 4), ("by chunks, us", None, count)):
        call = partial(ms.map, nothing, range(number), chunk=chunk)
        taken = [timed(call) for _ in range(options.rounds + 2)]
        figures[name] = round((statistics.median(taken[2:]) / number - loop) * 1e6, 2)
    return figures


def work(options: argparse.Namespace) -> dict[str, float]:
    """How much faster than a loop where a task takes 20 us of a core, the object's way to the ranks included."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    items = np.random.default_rng(6).integers(0, 1 << options.bits, options.items).tolist()
    encoder = Encoder(options.bits, 20.0) if comm.rank == 0 else None
    alone, combined = [], []
    for _ in range(options.rounds):
        if encoder is not None:
            alone.append(timed(lambda: [encoder.encode(item) for item in items]))
        comm.Barrier()
        combined.append(timed(lambda: ms.map(encoder.encode if encoder else None, items)))
    if not alone:
        return {}
    gain = [entry / other for entry, other in zip(alone, combined, strict=True)]
    return {"loop, s": round(statistics.median(alone), 3), "over a loop": round(statistics.median(gain), 2)}


def uneven_task(number: int) -> float:
    """One in a hundred takes 0.1 s of a core, the others 1 ms; when it ended."""
    end = time.thread_time() + (0.1 if number % 100 == 50 else 0.001)
    while time.thread_time() < end:
        pass
    _ended[0] = time.monotonic()
    return _ended[0]


_ended = [0.0]


def uneven(options: argparse.Namespace) -> dict[str, float]:
    """How far apart the ranks end, over the longest task, on one node and over pretended ones."""
    from mpi4py import MPI

    import mpishare as ms

    ms.map(uneven_task, range(min(2000, options.items // 100)), gather="none")
    ends = MPI.COMM_WORLD.gather(_ended[0])
    return {} if ends is None else {"ranks": len(ends), "apart, longest tasks": round((max(ends) - min(ends)) / 0.1, 2)}


def ground(options: argparse.Namespace) -> dict[str, Any]:
    """The machine and the versions."""
    import mpishare as ms

    return ms.info().as_dict()


EXTRAS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "overhead": overhead,
    "work": work,
    "uneven": uneven,
    "ground": ground,
}


def result(name: str, options: argparse.Namespace) -> Any:
    """The figures of one of `EXTRAS`."""
    return json.loads(run_inside(name, options)[0])


def measured(way: str, options: argparse.Namespace) -> dict[str, float]:
    """The median time of one way, and the most that its processes held."""
    out, held = run_inside(way, options)
    taken = json.loads(out)
    return {"seconds": round(statistics.median(taken), 3), "rounds": len(taken), "MiB": round(held / (1 << 20))}


def run_inside(way: str, options: argparse.Namespace) -> tuple[str, int]:
    """What one way says, and the most bytes that its processes held together."""
    extra = WAYS[way][0] if way in WAYS else 2
    args = ["-m", "benchmarks.pool", "--way", way, "--items", str(options.items), "--bits", str(options.bits)]
    args += ["--workers", str(options.workers), "--rounds", str(options.rounds)]
    ranks = options.workers + (extra == 1)
    launcher = ["-m", "mpishare", "run", "-n", str(ranks)] if extra else []
    with subprocess.Popen([sys.executable, *launcher, *args], stdout=subprocess.PIPE, text=True) as process:
        held = 0
        while process.poll() is None:
            held = max(held, held_bytes(process.pid))
            time.sleep(_LOOK_S)
        assert process.stdout is not None
        lines = [line for line in process.stdout.read().splitlines() if line not in ("null", "{}")]
    if process.returncode:
        raise SystemExit(f"{way} ended with status {process.returncode}")
    return lines[0], held


if __name__ == "__main__":
    main()
