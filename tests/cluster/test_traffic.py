"""Each array byte crosses each link once, whatever the ranks per host and wherever the root sits."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import Make

NBYTES = 64 << 20
PROGRAM = [sys.executable, "-m", "tests.cluster.programs.traffic", str(NBYTES >> 20)]


def links(one: Cluster, root: int, *words: str) -> dict[str, tuple[float, float]]:
    """For each host, the bytes received and sent while 64 MiB were shared, as parts of 64 MiB."""
    ended = one.mpiexec([*words, *PROGRAM, str(root)])
    assert ended.returncode == 0, ended.stderr
    return {host: (received / NBYTES, sent / NBYTES) for host, (received, sent) in json.loads(ended.stdout).items()}


def assert_once(found: dict[str, tuple[float, float]], path: list[str]) -> None:
    """The bytes left the first host of the path once, crossed the others once each way, and ended at the last."""
    for place, host in enumerate(path):
        received, sent = found[host]
        assert received == pytest.approx(0 if place == 0 else 1, abs=0.05)
        assert sent == pytest.approx(0 if place == len(path) - 1 else 1, abs=0.05)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_once_whatever_the_ranks_per_host(make: Make, ranks: int) -> None:
    one = make(3, ranks=str(ranks), name=f"once-{ranks}")
    assert_once(links(one, 0), ["h1", "h2", "h3"])


def test_once_from_every_root(make: Make) -> None:
    one = make(3, ranks="2,1,2", name="roots")
    paths = [["h1", "h2", "h3"], ["h1", "h2", "h3"], ["h2", "h3", "h1"], ["h3", "h1", "h2"], ["h3", "h1", "h2"]]
    for root, path in enumerate(paths):
        assert_once(links(one, root), path)


def test_once_when_ranks_go_round_the_hosts(make: Make) -> None:
    one = make(2, ranks="2", name="round")
    assert_once(links(one, 3, "--map-by", "slot", "--rank-by", "node"), ["h2", "h1"])


LOADING = [sys.executable, "-m", "tests.cluster.programs.loading", str(NBYTES >> 20)]


def loaded(one: Cluster, read: str) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """The same while 64 MiB were loaded, and what the ranks of each host read of files, as parts of 64 MiB."""
    ended = one.mpiexec([*LOADING, read])
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    links = {host: (row["link"][0] / NBYTES, row["link"][1] / NBYTES) for host, row in told.items()}
    return links, {host: row["read"] / NBYTES - links[host][0] for host, row in told.items()}  # sockets are read too


def test_a_file_is_read_once_and_crosses_each_link_once(make: Make) -> None:
    one = make(3, ranks="3,1,2", name="load")
    links, read = loaded(one, "job")
    assert_once(links, ["h1", "h2", "h3"])
    assert read == pytest.approx({"h1": 1, "h2": 0, "h3": 0}, abs=0.05)


def test_what_follows_a_broken_chunk_crosses_no_link(make: Make) -> None:
    """The error is known at the beginning, and none waits for 64 MiB that are of no use."""
    one = make(3, ranks="3,1,2", name="broken")
    ended = one.mpiexec([sys.executable, "-m", "tests.cluster.programs.broken", str(NBYTES >> 20)])
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert max(told["links"].values()) < NBYTES / 4
    assert all("dataset '/numbers' of" in error for error in told["errors"])
    assert sorted(error.split()[0] for error in told["errors"]) == ["FileError"] + ["PeerError"] * 5


def test_files_of_each_node_cross_no_link(make: Make) -> None:
    one = make(2, ranks="2", name="load-node")
    links, read = loaded(one, "node")
    assert links == {host: pytest.approx((0, 0), abs=0.05) for host in ("h1", "h2")}
    assert read == pytest.approx({"h1": 1, "h2": 1}, abs=0.05)


@pytest.mark.parametrize(("call", "times"), [("allreduce", 2), ("allgather", 1)])
@pytest.mark.parametrize("ranks", ["1", "2,1,3"])
def test_the_least_that_must_cross(make: Make, call: str, times: int, ranks: str) -> None:
    one = make(3, ranks=ranks, name=f"{call}-{ranks.count(',')}")
    ended = one.mpiexec([sys.executable, "-m", "tests.cluster.programs.collectives", call, "24"])
    assert ended.returncode == 0, ended.stderr
    counts = [2, 1, 3] if "," in ranks else [1, 1, 1]
    for host, (received, sent) in enumerate(json.loads(ended.stdout).values()):
        if call == "allreduce":
            parts = 2 / 3, 2 / 3
        else:  # all but what is here comes in, all but what the next host has goes out
            parts = 1 - counts[host] / sum(counts), 1 - counts[(host + 1) % 3] / sum(counts)
        assert received / (24 << 20) == pytest.approx(times * parts[0], abs=0.07)
        assert sent / (24 << 20) == pytest.approx(times * parts[1], abs=0.07)
