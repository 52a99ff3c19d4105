"""Jobs that compute: k-means as scikit-learn's, a histogram as NumPy's, on any number of ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import KMeans

from tests.blackbox.launch import ROOT, nothing_left, run, run_code, run_ranks


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,000 points in 5 dimensions, around 6 places and between them."""
    rng = np.random.default_rng(1)
    places = rng.uniform(-3, 3, (6, 5))
    file = tmp_path_factory.mktemp("points") / "some points.npy"
    np.save(file, rng.standard_normal((4000, 5)) + places[rng.integers(0, 6, 4000)])
    return file


@pytest.fixture(scope="module")
def flights() -> Path:
    """The table as jobs/flights.py writes it, unless an earlier run has."""
    file = ROOT / "build" / "flights.npy"
    if not file.exists():
        ended = run([sys.executable, "jobs/flights.py", str(file)])
        assert ended.returncode == 0, ended.stderr
    return file


def as_imports(calls: list[tuple[str, list[str]]]) -> str:
    """Code that calls the `main` of each job with its words."""
    lines = [f"import jobs.{job}\nassert jobs.{job}.main({words}) == 0" for job, words in calls]
    return "\n".join(lines)


@pytest.mark.parametrize(("size", "nodes"), [(1, ""), (2, ""), (3, "block:2"), (4, "cyclic:2"), (5, "sizes:1,3,1")])
def test_the_answers_of_others(size: int, nodes: str, points: Path, flights: Path, tmp_path: Path) -> None:
    found, counts = tmp_path / "found.npz", tmp_path / "counts.npy"
    kmeans = ["--data", str(points), "--clusters", "7", "--output", str(found), "--json"]
    histogram = ["--data", str(flights), "--column", "5", "--bins", "250", "--output", str(counts), "--json"]
    with nothing_left():
        ended = run_code(size, as_imports([("kmeans", kmeans), ("histogram", histogram)]), {"MPISHARE_NODES": nodes})
    assert ended.returncode == 0, ended.stderr
    clusters, bins = map(json.loads, ended.stdout.splitlines())
    assert (clusters["ranks"], clusters["points"], clusters["same"]) == (size, 4000, True)
    assert (bins["ranks"], bins["counted"], bins["same"]) == (size, 336_776, True)
    assert np.load(counts).tolist() == np.histogram(np.load(flights)[:, 5], 250)[0].tolist()
    ours = np.load(found)
    theirs = KMeans(7, init=ours["start"], n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(np.load(points))
    assert ours["labels"].tolist() == theirs.labels_.tolist()
    assert np.allclose(ours["centers"], theirs.cluster_centers_, rtol=1e-9, atol=1e-12)


def test_kmeans_tells_how_it_goes() -> None:
    words = ["--points", "3000", "--dims", "2", "--clusters", "3", "--progress"]
    ended = run_ranks(2, ["jobs/kmeans.py", *words])
    assert ended.returncode == 0, ended.stderr
    assert "3 clusters of 3,000 points in " in ended.stdout
    assert "one rank alone finds the same" in ended.stdout
    assert "round 1 on 2 ranks: 3,000 points moved" in ended.stderr


def test_histogram_of_made_values_within_a_range() -> None:
    words = ["--values", "50000", "--bins", "64", "--range", "-1", "1", "--progress"]
    ended = run_ranks(3, ["jobs/histogram.py", *words])
    assert ended.returncode == 0, ended.stderr
    inside = np.abs(np.random.default_rng(2013).standard_normal(50_000)) <= 1
    assert f"{inside.sum():,} of 50,000 values in 64 bins on 3 ranks" in ended.stdout
    assert "numpy.histogram counts the same" in ended.stdout
    assert "values of rank 0" in ended.stderr


def test_jobs_as_imports(tmp_path: Path) -> None:
    """All of them, and those that compute at the edges of what they take."""
    names = ("twice.npy", "found.npz", "images.npy", "halves.npy")
    twice, found, images, halves = (tmp_path / name for name in names)
    np.save(halves, np.arange(300, dtype="f2"))
    np.save(twice, np.repeat([[0.0], [5.0]], 4, axis=0))
    np.save(images, np.zeros((10, 28, 28)))
    calls = [
        ("kmeans", ["--data", str(twice), "--clusters", "8", "--output", str(found)]),
        *(("histogram", ["--values", str(values)]) for values in (0, 1, 7)),
        ("histogram", ["--data", str(halves)]),
        ("broadcast", ["--shape", "20,20"]),
        ("task_map", ["--items", "100", "--bits", "5"]),
        ("round_trip", ["--data", str(images), "--repeats", "1"]),
    ]
    ended = run_code(2, as_imports(calls))
    assert ended.returncode == 0, ended.stderr
    assert all(f"{values} of {values} values" in ended.stdout for values in (0, 1, 7))
    assert "all bits are the same" in ended.stdout
    result = np.load(found)  # most clusters have no point, and keep the center that they had
    assert result["centers"].tolist() == result["start"].tolist()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["kmeans", "--points", "3"], "10 clusters of float64 (3, 8)"),
        (["kmeans", "--data", "nowhere.npy"], "kmeans: FileError"),
        (["kmeans", "--data", "EMPTY"], "kmeans: FileError"),
        (["histogram", "--data", "README.md"], "histogram: ValueError"),
        (["histogram", "--data", "EMPTY"], "histogram: EOFError"),
        (["broadcast", "--data", "EMPTY"], "broadcast: EOFError"),
    ],
)
def test_bad_input_ends_everywhere(words: list[str], told: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.npy"
    empty.touch()
    given = [str(empty) if word == "EMPTY" else word for word in words[1:]]
    ended = run_ranks(3, ["--", sys.executable, f"jobs/{words[0]}.py", *given], limit_s=30)
    assert ended.returncode != 0
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_each_job_is_told_of() -> None:
    told = (ROOT / "jobs" / "README.md").read_text()
    for job in (ROOT / "jobs").glob("*.py"):
        assert f"`{job.name}`" in told


@pytest.mark.parametrize("job", ["kmeans", "histogram"])
def test_help(job: str) -> None:
    ended = run([sys.executable, f"jobs/{job}.py", "--help"])
    assert (ended.returncode, ended.stdout.startswith("usage: ")) == (0, True)
