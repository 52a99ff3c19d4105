"""Jobs give the answers of NumPy and scikit-learn on any ranks and nodes, and heat resumes."""

import math
import os
import re
import signal
import sys

import numpy as np
import pytest

from tests.blackbox.launch import PLAIN, ROOT, environment, run_code, run_ranks, started
from tests.processes import children_of

JOBS = {file.stem: file for file in (ROOT / "jobs").glob("*.py")}
TRY_AGAIN = 75


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a space in its name, with the input of the jobs."""
    folder, rng = tmp_path_factory.mktemp("some data"), np.random.default_rng(1)
    centers = rng.uniform(-3, 3, (6, 5))
    np.save(folder / "points.npy", rng.standard_normal((4000, 5)) + centers[rng.integers(0, 6, 4000)])
    np.save(folder / "table.npy", np.asfortranarray(rng.standard_normal((300, 70))))
    np.save(folder / "images.npy", rng.random((500, 28, 28), np.float32))
    energy, scatter, capture = np.array([1.0, 1e7]), np.zeros((2, 1)), np.full((2, 1), 0.5)
    np.savez(folder / "absorber.npz", energy=energy, mass=np.array([12.0]), scatter=scatter, capture=capture)
    redshift = np.linspace(0.1, 1, 20)
    np.savez(folder / "supernovae.npz", redshift=redshift, modulus=5 * np.log10(redshift), inverse=100 * np.eye(20))
    return folder


def run_jobs(calls):
    """Calls `main` of each job on the same three ranks, which must return None or 0; what they print."""
    lines = [f"import jobs.{job}\nassert not jobs.{job}.main({[*map(str, args)]})" for job, args in calls]
    return run_code(3, "\n".join(lines), {"MPISHARE_NODES": "cyclic:2"}).stdout


def test_each_job_agrees_with_one_rank(data, tmp_path):
    """By its own check, or by known answers."""
    points, supernovae = ["--data", data / "points.npy"], ["--data", data / "supernovae.npz"]
    clusters, chain = ["--output", tmp_path / "clusters.npz"], ["--output", tmp_path / "chain"]
    calls = [
        ("kmeans", [*points, "--clusters", 7, *clusters, "--plot", tmp_path / "kmeans.png", "--check"]),
        ("regression", ["--samples", 3000, "--check"]),
        ("regression", [*points, "--batch", 100]),
        ("histogram", ["--data", data / "table.npy", "--columns", 5, 0, "--bins", 50, "--check"]),
        ("transport", ["--neutrons", 500, "--check"]),
        ("transport", ["--data", data / "absorber.npz", "--neutrons", 10_000, "--thickness", 2]),
        ("likelihood", [*supernovae, "--steps", 20, *chain, "--check"]),
        ("ensemble", ["--make", tmp_path, "--output", tmp_path / "statistics.nc", "--check"]),
        ("task_map", ["--items", 20_000, "--bits", 12, "--check"]),
        ("table_stats", ["--output", tmp_path / "stats.csv", "--check"]),
        ("heat", [tmp_path / "heat", "--size", 61, 50, "--steps", 600, "--check"]),
        ("broadcast", ["--data", data / "table.npy"]),
        ("round_trip", ["--data", data / "images.npy", "--repeats", 2]),
    ]
    from sklearn.cluster import KMeans  # whose import takes a second of each process that collects this file

    output = run_jobs(calls)
    assert output.count("on one rank") == 9
    ours = np.load(tmp_path / "clusters.npz")
    theirs = KMeans(7, init=ours["start"], n_init=1, max_iter=300, tol=0, algorithm="lloyd")
    assert ours["labels"].tolist() == theirs.fit(np.load(data / "points.npy")).labels_.tolist()
    [passed] = re.findall(r"10,000 neutrons .*: 0 come back, ([\d,]+) pass", output)
    assert int(passed.replace(",", "")) == pytest.approx(10_000 / math.e, abs=300)  # six standard deviations
    assert np.load(tmp_path / "chain.npy").shape == (20, 32, 2)
    assert "all 3 ranks agree bit for bit" in output
    assert output.count("all bits are the same") == 2


RESUMED = """
import sys, jobs.heat
*job, steps = sys.argv[1:]
assert jobs.heat.main([*job, "--size", "61", "50", "--steps", steps, "--check"]) == 0
try: jobs.heat.main([*job, "--size", "21", "20"])
except ValueError as error: print(error)
"""


def test_heat_is_stopped_by_a_signal_and_resumed_on_other_ranks(tmp_path):
    job = ["jobs/heat.py", str(tmp_path), "--size", "61", "50", "--steps", "1000000"]
    line = [sys.executable, "-m", "mpishare", "run", "-n", "3", *job]
    with started(line, environment({"MPISHARE_NODES": "block:2"}), "step ") as stopped:
        os.kill(children_of(stopped.pid)[-1], signal.SIGUSR1)
        output = stopped.communicate(timeout=300)[0]
    assert stopped.returncode == TRY_AGAIN, output
    first = int(re.findall(r"^first 0, step (\d+)$", output, re.MULTILINE)[0])
    assert first > 0
    args = [*PLAIN, "-c", RESUMED, str(tmp_path), str(first + 73)]
    resumed = run_ranks(4, args, {"MPISHARE_NODES": "sizes:3,1"}).stdout
    assert f"first {first}, step {first + 73}: as on one rank" in resumed
    assert resumed.count("heat: --size 21 20: fewer rows than ranks, or not the size of the checkpoint") == 4


def test_a_bad_argument_is_said_once():
    """Also where mpi4py ends the job because of the first rank that ends."""
    for python, argument, message in (
        (["-m", "mpi4py"], "--to=3", "--to 3 is not another rank; expected 1 to 2"),
        ([], "--data=nowhere.npy", "No such file or directory: 'nowhere.npy'"),
    ):
        ended = run_ranks(3, [*python, "jobs/round_trip.py", argument], status="failure")
        assert ended.stderr.count(message) == 1, ended.stderr


HELP = """
import runpy, sys
for job in sys.argv[1:-1]:
    try: runpy.run_path(job, run_name="__main__")
    except SystemExit: pass
"""


def test_each_job_has_help_and_is_in_the_readme():
    ended = run_ranks(1, [*PLAIN, "-c", HELP, *map(str, JOBS.values()), "--help"])
    assert ended.stdout.count("usage: ") == len(JOBS), ended.stderr
    text = (ROOT / "jobs" / "README.md").read_text()
    assert all(f"`{job}.py`" in text for job in JOBS)
