"""Each array byte crosses each link once, whatever the ranks per host and wherever the root sits."""

import json
import sys

import pytest

PROGRAM = [sys.executable, "-m", "tests.cluster.programs.links"]
MIB = 64


def parts(hosts, call, *args, options=()):
    """What each host's link carried during a call of 64 MiB."""
    links = json.loads(hosts.mpiexec([*options, *PROGRAM, call, str(MIB), *args]).stdout)
    return {host: tuple(count / (MIB << 20) for count in counts) for host, counts in links.items()}


def assert_once(links, path):
    """The bytes left the first host of the path once, crossed the others once each way, and ended at the last."""
    for place, host in enumerate(path):
        received, sent, _ = links[host]
        assert received == pytest.approx(0 if place == 0 else 1, abs=0.05)
        assert sent == pytest.approx(0 if place == len(path) - 1 else 1, abs=0.05)


BY_NODE = ("--map-by", "slot", "--rank-by", "node")


PATHS = [
    ("1", (), 0, ["h1", "h2", "h3"]),
    ("4", (), 0, ["h1", "h2", "h3"]),
    ("1,3,1", (), 1, ["h2", "h3", "h1"]),
    ("1,3,1", (), 4, ["h3", "h1", "h2"]),
    ("2,2", BY_NODE, 3, ["h2", "h1"]),
]


@pytest.mark.parametrize(("ranks", "options", "root", "path"), PATHS)
def test_once_from_every_root(make, ranks, options, root, path):
    links = parts(make(len(path), ranks=ranks), "share", str(root), options=options)
    assert_once(links, path)


def test_a_file_is_read_once_and_crosses_each_link_once(make):
    links = parts(make(3, ranks="1,3,1"), "load", "job")
    assert_once(links, ["h1", "h2", "h3"])
    read = {host: count - received for host, (received, _, count) in links.items()}  # sockets are read as well
    assert read == pytest.approx({"h1": 1, "h2": 0, "h3": 0}, abs=0.05)


def test_files_of_each_node_cross_no_link(make):
    links = parts(make(2), "load", "node")
    assert links == {host: pytest.approx((0, 0, 1), abs=0.05) for host in ("h1", "h2")}


@pytest.mark.parametrize(("call", "times"), [("allreduce", 2), ("allgather", 1)])
@pytest.mark.parametrize("ranks", ["1", "1,3,1"])
def test_the_least_that_must_cross(make, call, times, ranks):
    links = parts(make(3, ranks=ranks), call)
    counts = [1, 3, 1] if "," in ranks and call == "allgather" else [1, 1, 1]
    for host, (received, sent, _) in enumerate(links.values()):
        # All but the host's own rows come in, all but the next host's go out.
        assert received == pytest.approx(times * (1 - counts[host] / sum(counts)), abs=0.07)
        assert sent == pytest.approx(times * (1 - counts[(host + 1) % 3] / sum(counts)), abs=0.07)
