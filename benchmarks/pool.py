"""Integers to bit arrays through a method of an object with a cache: in a loop, in the pools of others, and by ours.

    python -m benchmarks.pool [--items 50000] [--bits 8,12,16] [--workers 2] [--rounds 9]

The ancestor mapped the object's bound method with multiprocessing.Pool, which pickles the object with every chunk of
tasks. Beside it stand the best means of each pool, by which the object is in each process before the clock starts: an
initializer, fork, an object that was put or scattered once. Ours brings the object in each map.
For each way and each size of the object: the time of one map. Each way runs in programs
of its own, three times, in an order that changes, and once more for the most that all processes held together (PSS,
looked at ten times a second). What is not installed is named in the result. Then, of ours: what a task costs besides
its work, one at a time and by chunks; how much 2 ranks gain where a task takes 20 us; and, where one in a hundred tasks
is a hundred times longer, how far apart the ranks end. Prints a table and keeps it as results/pool.json, with a picture
beside it.

What they cannot do: multiprocessing and joblib's processes do not reach a second node, and Ray and dask do not run on
the ranks of an MPI job. mpi4py.futures and schwimmbad need a rank besides the workers.
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
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.keep import keep
from benchmarks.picture import bars
from benchmarks.rounds import Call, in_blocks, measure, order, row, seconds_row
from benchmarks.watch import held_bytes
from jobs.task_map import Encoder

_LOOK_S = 0.1
_LOOP, _OURS = "a loop", "mpishare.map, bound method"
_encoder: Encoder | None = None


def main() -> None:
    """Measures each way in processes of its own."""
    options = parse_options()
    if options.way:
        print(json.dumps(inside(options)))
        return
    installed = [name for name in WAYS if REQUIRED.get(name) is None or find_spec(REQUIRED[name])]
    times: dict[str, dict[str, list[float]]] = {name: {} for name in installed}
    for number, rounds in enumerate(in_blocks(options.rounds)):
        for name in order(installed, number):
            for bits, taken in json.loads(run_inside(name, options, rounds)[0]).items():
                times[name].setdefault(bits, []).extend(taken)
    sizes = {
        f"an object of {1 << int(bits):,} strings": {name: seconds_row(taken[bits]) for name, taken in times.items()}
        for bits in options.bits.split(",")
    }
    rows = [*sizes.values()][-1]
    for name in installed:
        rows[name]["MiB"] = round(run_inside(name, options, 1, looks=True)[1] / (1 << 20))
    for title, table in sizes.items():
        print(title)
        for name, taken in table.items():
            print(f"  {name:44} " + "  ".join(f"{column} {value}" for column, value in taken.items()), flush=True)
    ours = {name: json.loads(run_inside(name, options, options.rounds)[0]) for name in ("overhead", "work", "uneven")}
    for name, figures in ours.items():
        print(f"{name}: {figures}")
    ground = json.loads(run_inside("ground", options, 1)[0])
    asked = {"items": options.items, "workers": options.workers}
    asked["not installed"] = [name for name in WAYS if name not in installed]
    keep(options.name, {**asked, "sizes": sizes, "ways": rows, **ours}, ground)
    seconds = {"seconds": {name: taken["seconds"] for name, taken in rows.items()}}
    bars(options.name, seconds, "time, s", f"{options.items:,} tasks through {[*sizes][-1]}")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=50_000)
    parser.add_argument("--bits", default="8,12,16", help="an object has 2 to this power strings")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--name", default="pool", help="of the result (default: %(default)s)")
    parser.add_argument("--way", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


@dataclass(frozen=True)
class Case:
    """What a way maps, and how often."""

    bits: int
    workers: int
    rounds: int
    items: list[int]

    @property
    def chunk(self) -> int:
        """Tasks that multiprocessing sends at a time."""
        return max(1, len(self.items) // (4 * self.workers))

    @property
    def chunks(self) -> list[list[int]]:
        """All tasks so, for pools that have no such parameter."""
        return [self.items[start : start + self.chunk] for start in range(0, len(self.items), self.chunk)]

    def times(self, call: Callable[[], Any]) -> list[float]:
        """Seconds of each round, without a first that warms up."""
        return [timed(call) for _ in range(self.rounds + 1)][1:]


def begin(bits: int) -> None:
    """What a pool's initializer makes in each process."""
    global _encoder
    _encoder = Encoder(bits)


def encode(number: int) -> Any:
    """By what the initializer made."""
    assert _encoder is not None
    return _encoder.encode(number)


def encode_numbers(numbers: list[int]) -> list[Any]:
    """A chunk, by what the initializer made."""
    return [encode(number) for number in numbers]


def encode_chunk(encoder: Encoder, numbers: list[int]) -> list[Any]:
    """By an object that is an argument, for pools whose objects are put once."""
    return [encoder.encode(number) for number in numbers]


def timed(call: Callable[[], Any]) -> float:
    """Seconds."""
    start = time.perf_counter()
    values = call()
    seconds = time.perf_counter() - start
    assert values is None or len(values) >= 0
    return seconds


def serial(case: Case) -> list[float]:
    """A loop."""
    encoder = Encoder(case.bits)
    return case.times(lambda: [encoder.encode(item) for item in case.items])


def bound(case: Case) -> list[float]:
    """multiprocessing.Pool and the bound method."""
    encoder = Encoder(case.bits)
    with multiprocessing.Pool(case.workers) as pool:
        return case.times(lambda: pool.map(encoder.encode, case.items))


def initialized(case: Case) -> list[float]:
    """multiprocessing.Pool and an initializer that makes the object in each process."""
    with multiprocessing.Pool(case.workers, begin, (case.bits,)) as pool:
        return case.times(lambda: pool.map(encode, case.items))


def forked(case: Case) -> list[float]:
    """multiprocessing.Pool, forked when a global has the object."""
    begin(case.bits)
    with multiprocessing.get_context("fork").Pool(case.workers) as pool:
        return case.times(lambda: pool.map(encode, case.items))


def joblib(case: Case) -> list[float]:
    """The bound method by joblib, by as many chunks as multiprocessing makes: its own choice is one at a time."""
    from joblib import Parallel, delayed

    call = delayed(Encoder(case.bits).encode)
    with Parallel(n_jobs=case.workers, batch_size=case.chunk) as parallel:
        return case.times(lambda: parallel(call(item) for item in case.items))


def joblib_initialized(case: Case) -> list[float]:
    """The function by joblib, whose processes have the object from the initializer, by the same chunks."""
    from joblib import Parallel, delayed

    from benchmarks import pool  # functions of __main__ would go by value, each with globals of its own

    call = delayed(pool.encode)
    with Parallel(case.workers, batch_size=case.chunk, initializer=pool.begin, initargs=(case.bits,)) as parallel:
        return case.times(lambda: parallel(call(item) for item in case.items))


def ray(case: Case) -> list[float]:
    """Ray, with the object put once, by the same chunks."""
    import ray

    ray.init(num_cpus=case.workers, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    put, remote = ray.put(Encoder(case.bits)), ray.remote(encode_chunk)
    return case.times(lambda: ray.get([remote.remote(put, chunk) for chunk in case.chunks]))


def dask(case: Case) -> list[float]:
    """dask, with the object scattered once, by the same chunks."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=case.workers, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        future = client.scatter(Encoder(case.bits), broadcast=True, hash=False)
        return case.times(
            lambda: client.gather([client.submit(encode_chunk, future, chunk, pure=False) for chunk in case.chunks])
        )


def futures(case: Case) -> list[float] | None:
    """mpi4py.futures and the bound method, by as many chunks as multiprocessing makes."""
    return _futures(case, lambda: Encoder(case.bits).encode)


def futures_initialized(case: Case) -> list[float] | None:
    """mpi4py.futures where each rank has made the object before, which its executor's initializer would do as well."""
    begin(case.bits)
    return _futures(case, lambda: encode)


def _futures(case: Case, make: Callable[[], Callable[[int], Any]]) -> list[float] | None:
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor() as executor:
        if executor is None:
            return None
        run: Any = executor
        call = make()
        return case.times(lambda: list(run.map(call, case.items, chunksize=case.chunk)))


def schwimmbad(case: Case) -> list[float] | None:
    """By MPIPool of schwimmbad, where each rank has made the object before, by the same chunks.

    A worker's pool ends the program when it is closed, so here that is caught, and the next size goes on.
    """
    from schwimmbad import MPIPool

    begin(case.bits)
    try:
        with MPIPool() as pool:
            return case.times(lambda: pool.map(encode_numbers, case.chunks))
    except SystemExit:
        return None


def ours(case: Case) -> list[float] | None:
    """mpishare.map and the bound method."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    encoder = Encoder(case.bits) if comm.rank == 0 else None
    ms.topology()

    def call() -> Any:
        return ms.map(encoder.encode if encoder else None, case.items)

    taken = []
    for _ in range(case.rounds + 1):
        comm.Barrier()
        taken.append(timed(call))
    return taken[1:] if comm.rank == 0 else None


def our_pool(case: Case) -> list[float] | None:
    """mpishare.Pool and the bound method."""
    import mpishare as ms

    with ms.Pool() as pool:
        if pool is None:
            return None
        encoder = Encoder(case.bits)
        return case.times(lambda: pool.map(encoder.encode, case.items))


WAYS: dict[str, tuple[int, Callable[[Case], list[float] | None]]] = {
    _LOOP: (0, serial),
    "multiprocessing.Pool, bound method": (0, bound),
    "multiprocessing.Pool, initializer": (0, initialized),
    "multiprocessing.Pool, fork with a global": (0, forked),
    "joblib, bound method": (0, joblib),
    "joblib, initializer": (0, joblib_initialized),
    "Ray, object put once": (0, ray),
    "dask, object scattered once": (0, dask),
    "mpi4py.futures, bound method": (1, futures),
    "mpi4py.futures, initializer": (1, futures_initialized),
    "schwimmbad.MPIPool, object on each rank": (1, schwimmbad),
    _OURS: (2, ours),
    "mpishare.Pool, bound method": (2, our_pool),
}
"""For each way whether it runs under MPI, 1 with a rank besides the workers, and what it does."""

REQUIRED = {
    "joblib, bound method": "joblib",
    "joblib, initializer": "joblib",
    "Ray, object put once": "ray",
    "dask, object scattered once": "distributed",
    "schwimmbad.MPIPool, object on each rank": "schwimmbad",
}
"""Packages that some ways need."""


def inside(options: argparse.Namespace) -> Any:
    """One way, in its own process or on its own ranks; its seconds by bits, None on ranks that have none."""
    if options.way not in WAYS:
        return EXTRAS[options.way](options)
    result = {}
    for bits in map(int, options.bits.split(",")):
        items = np.random.default_rng(6).integers(0, 1 << bits, options.items).tolist()
        result[bits] = WAYS[options.way][1](Case(bits, options.workers, options.rounds, items))
    return None if None in result.values() else result


def _map_nothing(count: int, chunk: int | None, _: int) -> None:
    import mpishare as ms

    ms.map(nothing, range(count), chunk=chunk)


def nothing(number: int) -> int:
    """A task without work."""
    return number


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of all ranks for a task that does nothing, less what a loop takes for it."""
    from mpi4py import MPI

    count = min(options.items, 200_000)
    kinds = {"one at a time": (1, count // 4), "by chunks": (None, count)}
    calls: dict[str, Call] = {_LOOP: lambda _: [nothing(number) for number in range(count)]}
    for name, (chunk, number) in kinds.items():
        calls[name] = partial(_map_nothing, number, chunk)
    times = {name: taken[1:] for name, taken in measure(MPI.COMM_WORLD, calls, 1, options.rounds, warm_up=1).items()}
    loop_s = statistics.median(times[_LOOP]) / count
    figures: dict[str, Any] = {
        f"{name}, us": round((statistics.median(times[name]) / number - loop_s) * 1e6, 2)
        for name, (_, number) in kinds.items()
    }
    return {**figures, "times": {name: row(taken) for name, taken in times.items()}}


def work(options: argparse.Namespace) -> dict[str, Any]:
    """How much faster than a loop where a task takes 20 us of a core, the object's way to the ranks included."""
    from mpi4py import MPI

    import mpishare as ms

    comm = MPI.COMM_WORLD
    bits = int(options.bits.split(",")[-1])
    items = np.random.default_rng(6).integers(0, 1 << bits, options.items).tolist()
    encoder = Encoder(bits, 20.0) if comm.rank == 0 else None
    calls: dict[str, Call] = {
        _LOOP: lambda _: [encoder.encode(item) for item in items] if encoder else None,
        _OURS: lambda _: ms.map(encoder.encode if encoder else None, items),
    }
    times = {name: taken[1:] for name, taken in measure(comm, calls, 1, options.rounds).items()}
    gain = [alone / combined for alone, combined in zip(times[_LOOP], times[_OURS], strict=True)]
    rows = {name: row(taken) for name, taken in times.items()}
    return {
        "loop, s": round(statistics.median(times[_LOOP]), 3),
        "over a loop": round(statistics.median(gain), 2),
        "times": rows,
    }


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


def run_inside(way: str, options: argparse.Namespace, rounds: int, *, looks: bool = False) -> tuple[str, int]:
    """What one way says, and the most bytes that its processes held together, 0 without looks."""
    extra = WAYS[way][0] if way in WAYS else 2
    args = ["-m", "benchmarks.pool", "--way", way, "--items", str(options.items), "--bits", options.bits]
    args += ["--workers", str(options.workers), "--rounds", str(rounds)]
    ranks = options.workers + (extra == 1)
    launcher = ["-m", "mpishare", "run", "-n", str(ranks)] if extra else []
    with subprocess.Popen([sys.executable, *launcher, *args], stdout=subprocess.PIPE, text=True) as process:
        held = 0
        while looks and process.poll() is None:
            held = max(held, held_bytes(process.pid))
            time.sleep(_LOOK_S)
        assert process.stdout is not None
        lines = [line for line in process.stdout.read().splitlines() if line not in ("null", "{}")]
    if process.returncode:
        raise SystemExit(f"{way} ended with status {process.returncode}")
    return lines[-1], held


if __name__ == "__main__":
    main()
