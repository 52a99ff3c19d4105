"""The benchmarks run and keep their figures; the figures of such short runs mean nothing."""

import json
import sys

import pytest

from tests.blackbox.launch import run, run_ranks

RUNS = {
    "messages": (2, "--powers 20,21 --rounds 1 --gib 0.002", ["1,048,576 bytes", "2,097,152 bytes"]),
    "ways": (0, "--images 400 --rounds 1", ["bytes", "ways"]),
    "table": (0, "--mb 2 --rounds 1", ["ways", "flights"]),
    "kernels": (2, "--adds 80000 --bins 10", ["ways", "checksum, GB/s"]),
    "collectives": (0, "--hosts= --powers 10,16 --rounds 1", ["2 pretend nodes of 2"]),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", RUNS)
def test_benchmark(name, tmp_path):
    size, options, parts = RUNS[name]
    run_benchmark(size, name, options.split(), {"BENCHMARK_RESULTS": str(tmp_path)})
    kept = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"versions", "nodes"} <= set(kept["ground"])
    assert all(kept["figures"][part] for part in parts)


WAYS = {"multiprocessing.Pool, initializer": 0, "mpishare.Pool, bound method": 2, "uneven": 2}


@pytest.mark.parametrize(("way", "size"), WAYS.items())
def test_a_way_of_the_benchmark_of_pools(way, size):
    ended = run_benchmark(size, "pool", ["--way", way, "--items=2000", "--bits=6", "--rounds=1"], {})
    assert any(json.loads(line) for line in ended.stdout.splitlines())


def run_benchmark(size, name, options, environ):
    """Runs a benchmark on `size` ranks, or as one process that starts its own."""
    command = ["-m", f"benchmarks.{name}", *options]
    if size:
        return run_ranks(size, command, environ, limit_s=300)
    return run([sys.executable, *command], environ, limit_s=300, is_cleaned=True)
