"""Clusters for the tests, and the proof that each left nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, cluster, running
from tests.cluster.spec import make_spec

Make = Callable[..., Cluster]


# What a cluster makes is told from the rest of the machine by these words: its programs, and its hosts' names.
_PROGRAMS = re.compile(r"slurmctld|slurmd|munged|prted|tests\.cluster\.init|sleep infinity")
_FILES = re.compile(r"cluster|slurm|munge|\.(h\d+|head)\.")


def traces() -> dict[str, set[str]]:
    """What a cluster could leave on this machine: links, mounts, files and processes."""
    processes = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue  # it ended meanwhile
        if _PROGRAMS.search(words):
            processes.add(f"{file.parent.name} {words}")
    links = Path("/proc/self/net/dev").read_text().splitlines()
    files = [str(file) for folder in ("/run", "/dev/shm", "/tmp") for file in Path(folder).iterdir()]
    return {
        "links": {line.partition(":")[0] for line in links},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "files": {file for file in files if _FILES.search(file)},
        "processes": processes,
    }


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Fails when the block leaves a link, a mount, a file or a process."""
    before = traces()
    yield
    after = traces()
    assert {name: after[name] - before[name] for name in before} == {name: set() for name in before}


@pytest.fixture(scope="module")
def make() -> Iterator[Make]:
    """Makes clusters that end with the module, of a number of hosts and what else `make_spec` takes."""
    with leaves_nothing(), ExitStack() as stack:  # the clusters end before their traces are sought

        def up(hosts: int, name: str = "test", **asked: object) -> Cluster:
            return stack.enter_context(cluster(make_spec(hosts, name=name, **asked)))  # type: ignore[arg-type]

        yield up
    assert not [one for one in running() if one.spec.name.startswith("test")]
