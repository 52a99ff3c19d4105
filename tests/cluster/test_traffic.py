"""Each array byte crosses each link once, whatever the ranks per host and wherever the root sits."""

import json
import sys

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import Make

PROGRAM = [sys.executable, "-m", "tests.cluster.programs.links"]
MIB = 64
Parts = dict[str, tuple[float, float, float]]
"""For each host: received, sent and read, as parts of 64 MiB."""


def parts(hosts: Cluster, *args: str, options: tuple[str, ...] = ()) -> tuple[Parts, list[str]]:
    """What each host's link carried during a call of 64 MiB, and the other lines that were printed."""
    first, *lines = hosts.mpiexec([*options, *PROGRAM, *args]).stdout.splitlines()
    links = {host: tuple(count / (MIB << 20) for count in counts) for host, counts in json.loads(first).items()}
    return links, lines


def assert_once(links: Parts, path: list[str]) -> None:
    """The bytes left the first host of the path once, crossed the others once each way, and ended at the last."""
    for place, host in enumerate(path):
        received, sent, _ = links[host]
        assert received == pytest.approx(0 if place == 0 else 1, abs=0.05)
        assert sent == pytest.approx(0 if place == len(path) - 1 else 1, abs=0.05)


@pytest.mark.parametrize(
    ("ranks", "root", "path"),
    [
        ("1", 0, ["h1", "h2", "h3"]),
        ("4", 0, ["h1", "h2", "h3"]),
        ("1,3,1", 1, ["h2", "h3", "h1"]),
        ("1,3,1", 3, ["h2", "h3", "h1"]),
        ("1,3,1", 4, ["h3", "h1", "h2"]),
    ],
)
def test_once_from_every_root(make: Make, ranks: str, root: int, path: list[str]) -> None:
    assert_once(parts(make(3, ranks=ranks), "share", str(MIB), str(root))[0], path)


def test_once_when_ranks_go_round_the_hosts(make: Make) -> None:
    options = ("--map-by", "slot", "--rank-by", "node")
    assert_once(parts(make(2), "share", str(MIB), "3", options=options)[0], ["h2", "h1"])


def test_a_file_is_read_once_and_crosses_each_link_once(make: Make) -> None:
    links, _ = parts(make(3, ranks="1,3,1"), "load", str(MIB), "job")
    assert_once(links, ["h1", "h2", "h3"])
    read = {host: count - received for host, (received, _, count) in links.items()}  # sockets are read as well
    assert read == pytest.approx({"h1": 1, "h2": 0, "h3": 0}, abs=0.05)


def test_files_of_each_node_cross_no_link(make: Make) -> None:
    links, _ = parts(make(2), "load", str(MIB), "node")
    assert links == {host: pytest.approx((0, 0, 1), abs=0.05) for host in ("h1", "h2")}


def test_the_rest_of_a_broken_file_crosses_no_link(make: Make) -> None:
    """The error is known at the beginning, and no rank waits for the other 62 MiB."""
    links, [line] = parts(make(3, ranks="1,3,1"), "load_broken", str(MIB))
    errors = json.loads(line)
    assert all(received < 1 / 4 for received, _, _ in links.values())
    assert all("dataset '/packed' of" in error for error in errors)
    assert sorted(error.split()[0] for error in errors) == ["FileError"] + ["PeerError"] * 4


@pytest.mark.parametrize(("call", "times"), [("allreduce", 2), ("allgather", 1)])
@pytest.mark.parametrize("ranks", ["1", "1,3,1"])
def test_the_least_that_must_cross(make: Make, call: str, times: int, ranks: str) -> None:
    links, _ = parts(make(3, ranks=ranks), call, str(MIB))
    counts = [1, 3, 1] if "," in ranks and call == "allgather" else [1, 1, 1]
    for host, (received, sent, _) in enumerate(links.values()):
        # All but the host's own rows come in, all but the next host's go out.
        assert received == pytest.approx(times * (1 - counts[host] / sum(counts)), abs=0.07)
        assert sent == pytest.approx(times * (1 - counts[(host + 1) % 3] / sum(counts)), abs=0.07)
