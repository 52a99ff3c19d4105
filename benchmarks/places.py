"""Where the benchmarks between nodes run: pretend nodes of this machine, and clusters of hosts with links of a kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRETEND_NODES = {"2 pretend nodes of 1": ("2", "block:1"), "2 pretend nodes of 2": ("4", "block:2")}
"""Ranks and MPISHARE_NODES by title. Such nodes talk through shared memory, a link as fast as memory."""

ONE_NODE = "one node"
PRETEND, FREE, NO_DELAY, MPICH = "pretend", "free", "0", "mpich"
_MPICH_PYTHON = Path(__file__).parents[1] / ".venv-mpich/bin/python"
_PATIENCE_S = 1200


def title_of(hosts: int | str, ranks: int | str, link: str, delay: str = NO_DELAY) -> str:
    """How the results name a cluster."""
    return f"{hosts} hosts of {ranks}, {link}" + (f", {delay}" if delay != NO_DELAY else "")


def on_pretend_nodes(title: str, program: list[str], settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a program told as JSON that runs on pretend nodes of this machine, by MPICH where it has settings."""
    ranks, nodes = PRETEND_NODES[title]
    return on_ranks(ranks, nodes, program, settings)


def on_ranks(ranks: str, nodes: str, program: list[str], settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a program told as JSON that runs on `ranks` ranks of this machine, with `nodes` as MPISHARE_NODES."""
    python = sys.executable if settings is None else str(_MPICH_PYTHON)
    command = [python, "-m", "mpishare", "run", "-n", ranks, "-m", *program]
    environ = {**os.environ, "MPISHARE_NODES": nodes, **(settings or {})}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result


def on_cluster(hosts: int, ranks: str, link: str, program: list[str], delay: str = NO_DELAY) -> dict[str, Any]:
    """What a program told as JSON that runs on all hosts of a cluster.

    Args:
        hosts: Number of hosts.
        ranks: Ranks a host.
        link: Speed of each link as tc writes it; "free" for as fast as the machine is.
        program: Module and arguments.
        delay: Of the path between two hosts, on each way, as "50us".
    """
    from tests.cluster.cluster import cluster
    from tests.cluster.spec import make_spec

    rate, delay = "" if link == FREE else link, "" if delay == NO_DELAY else delay
    with cluster(make_spec(hosts, ranks=ranks, rate=rate, delay=delay)) as hosts_up:
        ended = hosts_up.mpiexec([sys.executable, "-m", *program], limit_s=_PATIENCE_S)
    result: dict[str, Any] = json.loads(ended.stdout)
    return result
