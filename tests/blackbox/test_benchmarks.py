"""The benchmarks run, and keep what they say that they measure; the figures mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.blackbox.launch import nothing_left, run, run_ranks


def kept(folder: Path, name: str) -> Any:
    """What was kept in `folder`: the figures, beside the machine and the versions."""
    found = json.loads((folder / f"{name}.json").read_text())
    assert {"versions", "nodes"} <= set(found["ground"])
    return found["figures"]


def test_messages(tmp_path: Path) -> None:
    words = ["-m", "benchmarks.messages", "--powers", "20,21", "--rounds", "1", "--gib", "0.002"]
    with nothing_left():
        ended = run_ranks(2, words, {"BENCHMARK_RESULTS": str(tmp_path)}, limit_s=30)
    assert ended.returncode == 0, ended.stderr
    figures = kept(tmp_path, "messages")
    sizes = ["1,048,576 bytes", "2,097,152 bytes"]
    others = ["every second of 1,048,576 float64", "memory of a recv of 0.002 GiB"]
    assert list(figures) == [*sizes, *others]
    for size in sizes:
        assert len(figures[size]) == 5
        assert all(row["median, us"] > 0 for row in figures[size].values())
        assert figures[size]["Send, Recv, known buffers"]["of Send, Recv, known buffers"] == 1
    assert all(f"\n{name}\n" in ended.stdout for name in figures)


def test_ways(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.ways", "--images", "400", "--rounds", "1"]
    with nothing_left():
        ended = run(words, {"BENCHMARK_RESULTS": str(tmp_path)}, limit_s=50)
    assert ended.returncode == 0, ended.stderr
    figures = kept(tmp_path, "ways")
    assert figures["bytes"] == 400 * 28 * 28 * 4
    assert len(figures["ways"]) == 10
    assert all(0 <= row["there, ms"] <= row["and back, ms"] for row in figures["ways"].values())
    assert all(f"  {name} " in ended.stdout for name in figures["ways"])


def test_table(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.table", "--mb", "2", "--rounds", "1"]
    with nothing_left():
        ended = run(words, {"BENCHMARK_RESULTS": str(tmp_path)}, limit_s=110)
    assert ended.returncode == 0, ended.stderr
    figures = kept(tmp_path, "table")
    assert len(figures["ways"]) == 4
    assert all(row["seconds"] > 0 and row["peak, MB"] >= 0 for row in figures["ways"].values())
    shared = [table["zero-copy bytes"] for table in figures["flights"].values()]
    assert all(nbytes > 336_776 * 14 * 8 for nbytes in shared)
    assert figures["flights"]["flights, texts as objects"]["objects of all ranks, bytes"] > shared[0]


def test_kernels(tmp_path: Path) -> None:
    words = ["-m", "benchmarks.kernels", "--adds", "80000", "--bins", "10"]
    with nothing_left():
        ended = run_ranks(2, words, {"BENCHMARK_RESULTS": str(tmp_path)}, limit_s=60)
    assert ended.returncode == 0, ended.stderr
    figures = kept(tmp_path, "kernels")
    assert (figures["ranks"], len(figures["ways"]), len(figures["checksum, GB/s"])) == (2, 9, 4)
    assert figures["ways"]["kernels.atomic_add"]["additions"] == 80_000
    for name, row in figures["ways"].items():
        assert row["millions a second"] > 0
        assert name == "plain +=" or row["lost"] == row["wrong"] == 0


def test_collectives(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.collectives", "--hosts", "", "--powers", "10,16", "--rounds", "1"]
    with nothing_left():
        ended = run(words, {"BENCHMARK_RESULTS": str(tmp_path)}, limit_s=60)
    assert ended.returncode == 0, ended.stderr
    figures = kept(tmp_path, "collectives")["2 pretend nodes of 2"]
    assert list(figures) == ["1,024 bytes", "65,536 bytes"]
    for ways in figures.values():
        assert len(ways) == 4
        assert all(row["median, ms"] > 0 for row in ways.values())
    assert all("held, results" in row for row in figures["65,536 bytes"].values())
