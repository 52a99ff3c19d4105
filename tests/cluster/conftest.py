"""Clusters for the tests, and the proof that each left nothing behind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, cluster
from tests.cluster.spec import make_spec

Make = Callable[..., Cluster]

_SESSION = f"test-{os.getpid()}"
_MARK = f"MPISHARE_TESTS={_SESSION}"
os.environ["MPISHARE_TESTS"] = _SESSION  # every process that the tests start inherits it

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
    """The processes that these tests started, with or without a parent."""
    lines = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _MARK.encode() in (process / "environ").read_bytes().split(b"\0"):
                command = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                lines.add(f"{process.name} {command}")
        except OSError:
            continue  # it has ended, or belongs to someone else
    return lines


@contextmanager
def leaves_nothing() -> Iterator[None]:
    """Fails when the block leaves a link, a mount, a file or a process."""
    before = traces()
    yield
    after = traces()
    assert {name: after[name] - before[name] for name in before} == {name: set() for name in before}


@pytest.fixture(scope="session")
def make() -> Iterator[Make]:
    """Makes clusters that end with the session, of `make_spec`'s arguments; the same one for the same arguments."""
    with leaves_nothing(), ExitStack() as stack:  # the clusters end before their traces are sought

        @cache
        def up(hosts: int, **options: object) -> Cluster:
            return stack.enter_context(cluster(make_spec(hosts, **options)))  # type: ignore[arg-type]

        yield up
