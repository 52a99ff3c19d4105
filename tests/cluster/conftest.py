"""Clusters for the tests, and the proof that each left nothing behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, cluster, running
from tests.cluster.spec import make_spec

Make = Callable[..., Cluster]

SESSION = f"test-{os.getpid()}"
"""How the clusters of these tests are named, so that tests in another folder may run at the same time."""

_MARK = f"MPISHARE_TESTS={SESSION}"
os.environ["MPISHARE_TESTS"] = SESSION  # every process that the tests start has it from them

# Files of a cluster are told from the rest of the machine by these words.
_FILES = re.compile(r"cluster|slurm|munge|\.(h\d+|head)\.")


def traces() -> dict[str, set[str]]:
    """What a cluster could leave on this machine: links, mounts, files and processes."""
    links = Path("/proc/self/net/dev").read_text().splitlines()
    files = [str(file) for folder in ("/run", "/dev/shm", "/tmp") for file in Path(folder).iterdir()]
    return {
        "links": {line.partition(":")[0] for line in links},
        "mounts": set(Path("/proc/self/mounts").read_text().splitlines()),
        "files": {file for file in files if _FILES.search(file)},
        "processes": _processes(),
    }


def _processes() -> set[str]:
    """The processes that these tests started, whatever has become of their parents."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                found.add(f"{process.name} {words}")
        except OSError:
            continue  # it ended meanwhile, or is not for us to look at, and so not ours
    return found


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

        def up(hosts: int, name: str = "hosts", **asked: object) -> Cluster:
            spec = make_spec(hosts, name=f"{SESSION}-{name}", **asked)  # type: ignore[arg-type]
            return stack.enter_context(cluster(spec))

        yield up
    assert not [one for one in running() if one.spec.name.startswith(SESSION)]
