"""The benchmarks run and keep their figures; the figures of such short runs mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.launch import nothing_left, run, run_ranks


def check_messages(figures: Any) -> None:
    sizes = ["1,048,576 bytes", "2,097,152 bytes"]
    assert list(figures) == [*sizes, "every second of 1,048,576 float64", "memory of a recv of 0.002 GiB"]
    assert all(len(figures[size]) == 5 for size in sizes)
    assert all(row["median, us"] > 0 for size in sizes for row in figures[size].values())


def check_ways(figures: Any) -> None:
    assert (figures["bytes"], len(figures["ways"])) == (400 * 28 * 28 * 4, 10)
    assert all(0 <= row["there, ms"] <= row["and back, ms"] for row in figures["ways"].values())


def check_table(figures: Any) -> None:
    assert len(figures["ways"]) == 4
    assert all(row["seconds"] > 0 and row["peak, MB"] >= 0 for row in figures["ways"].values())
    assert all(table["zero-copy bytes"] > 336_776 * 14 * 8 for table in figures["flights"].values())


def check_kernels(figures: Any) -> None:
    assert (figures["ranks"], len(figures["ways"]), len(figures["checksum, GB/s"])) == (2, 9, 4)
    assert all(name == "plain +=" or row["lost"] == row["wrong"] == 0 for name, row in figures["ways"].items())


def check_collectives(figures: Any) -> None:
    sizes = figures["2 pretend nodes of 2"]
    assert list(sizes) == ["1,024 bytes", "65,536 bytes"]
    assert all(len(ways) == 4 and row["median, ms"] > 0 for ways in sizes.values() for row in ways.values())


RUNS = {
    "messages": (2, "--powers 20,21 --rounds 1 --gib 0.002", check_messages),
    "ways": (0, "--images 400 --rounds 1", check_ways),
    "table": (0, "--mb 2 --rounds 1", check_table),
    "kernels": (2, "--adds 80000 --bins 10", check_kernels),
    "collectives": (0, "--hosts= --powers 10,16 --rounds 1", check_collectives),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", RUNS)
def test_benchmark(name: str, tmp_path: Path) -> None:
    size, options, check = RUNS[name]
    command, environ = ["-m", f"benchmarks.{name}", *options.split()], {"BENCHMARK_RESULTS": str(tmp_path)}
    with nothing_left():
        started = run_ranks(size, command, environ, limit_s=300) if size else None
        ended = started or run([sys.executable, *command], environ, limit_s=300)
    assert ended.returncode == 0, ended.stderr
    kept = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"versions", "nodes"} <= set(kept["ground"])
    check(kept["figures"])


@pytest.mark.parametrize(
    ("size", "way"), [(0, "multiprocessing.Pool, initializer"), (2, "mpishare.Pool, bound method"), (2, "uneven")]
)
def test_a_way_of_the_benchmark_of_pools(size: int, way: str) -> None:
    command = ["-m", "benchmarks.pool", "--way", way, "--items", "2000", "--bits", "6", "--rounds", "1"]
    ended = run_ranks(size, command) if size else run([sys.executable, *command])
    assert ended.returncode == 0, ended.stderr
    assert any(json.loads(line) for line in ended.stdout.splitlines())
