"""NUMA: to which memory of this host this process is near, as its CPUs say."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from mpishare.host.procfs import text_of

NODES = "/sys/devices/system/node"


def numa_node(folder: str = NODES) -> int | None:
    """The number of the NUMA node whose CPUs alone this process may use.

    None if it may use those of several, as a process that is bound to none, or if the kernel does not report them.

    Source:
        The kernel's Documentation/ABI/stable/sysfs-devices-node; sched_getaffinity(2).
    """
    own = os.sched_getaffinity(0)
    return next((node for node, cpus in _cpus_by_node(folder).items() if own <= cpus), None)


@cache
def _cpus_by_node(folder: str) -> dict[int, frozenset[int]]:
    """The CPUs of each NUMA node; empty for a node that has memory alone."""
    try:
        files = list(Path(folder).iterdir())
    except OSError:
        return {}
    nodes = [file for file in files if file.name.startswith("node") and file.name[4:].isdigit()]
    return {int(node.name[4:]): _cpus(text_of(node / "cpulist")) for node in nodes}


def _cpus(text: str) -> frozenset[int]:
    """The numbers in a list such as "0-3,8,10-11"."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for first, *last in ends for cpu in range(int(first), int((last or [first])[0]) + 1))
