"""`mpishare plan`: the memory that data take on each node, shared and copied, and the lines that ask Slurm for it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import mpishare as ms
from mpishare.config import parse_bytes

_RANK_BYTES = 256 << 20
"""The memory of a rank without data, unless given: Python, NumPy and MPI take 40 to 80 MiB, the rest is a margin."""

_MEM_STEP_BYTES = 256 << 20
"""--mem is rounded up to a multiple of this."""


@dataclass(frozen=True)
class Plan:
    """The memory that data take in a job, in bytes.

    Attributes:
        data: The data, once.
        ranks: Ranks of the job.
        nodes: Nodes of the job.
        each: The memory of a rank without the data.
        memory: The memory of a node.
        limit: The limit of its control groups; None without one.
        shm: The size of its /dev/shm; 0 without one.
    """

    data: int
    ranks: int
    nodes: int
    each: int
    memory: int
    limit: int | None
    shm: int

    @property
    def ranks_a_node(self) -> int:
        """The ranks of the fullest node."""
        return -(-self.ranks // self.nodes)

    @property
    def shared(self) -> int:
        """The bytes that the fullest node holds with one copy of the data."""
        return self.data + self.ranks_a_node * self.each

    @property
    def copied(self) -> int:
        """The bytes that it holds with one copy a rank."""
        return self.ranks_a_node * (self.data + self.each)

    @property
    def room(self) -> int:
        """The bytes that a node may hold."""
        return self.memory if self.limit is None else min(self.memory, self.limit)

    @property
    def fits(self) -> bool:
        """Whether one copy a node fits."""
        return self.shared <= self.room

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data for JSON."""
        derived = {"shared": self.shared, "copied": self.copied, "fits": self.fits, "sbatch": self.sbatch()}
        return {**vars(self), "ranks_a_node": self.ranks_a_node, **derived}

    def sbatch(self) -> list[str]:
        """The lines of a batch script that ask for it."""
        is_even = self.ranks % self.nodes == 0
        ranks = f"--ntasks-per-node={self.ranks_a_node}" if is_even else f"--ntasks={self.ranks}"
        mem = f"--mem={-(-self.shared // _MEM_STEP_BYTES) * (_MEM_STEP_BYTES >> 20)}M"
        return [f"#SBATCH {option}" for option in (f"--nodes={self.nodes}", ranks, mem)]


def main(argv: list[str]) -> int:
    """Prints the plan; 0 when the data fit, 1 when they do not, 2 when there is no plan."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not 0 < options.nodes <= options.ranks:
        parser.error("-n and -N take 1 or more, and each node has at least one rank")
    if options.each < 1:
        parser.error("--each takes 1 or more")
    try:
        path, dataset = _path_and_dataset(options.file)
        arrays = ms.stored(path, dataset).values()
        plan = _plan(options, sum(array.nbytes for array in arrays))
    except ms.MpishareError as error:
        print(f"mpishare plan: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"arrays": [_as_dict(array) for array in arrays], **plan.as_dict()}, indent=2))
    else:
        node = "this host" if options.memory is None else "such a node"
        lines = [_line(array, path) for array in arrays]
        print("\n".join([*lines, *_table(plan), *_fit(plan, node), "", *plan.sbatch()]))
    return 0 if plan.fits else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpishare plan",
        description="Tells what the data in a file take on each node of a job, with one copy a node and with one a "
        "rank, whether that fits, and the lines of a batch script that ask for it. Reads the head of the file only.",
    )
    add = parser.add_argument
    add("file", metavar="FILE[:DATASET]", help="a .npy file, or an HDF5 file, with a dataset or group in it")
    add("-n", "--ranks", type=int, required=True, help="ranks of the job")
    add("-N", "--nodes", type=int, required=True, help="nodes of the job")
    add("--each", type=parse_bytes, metavar="SIZE", default=_RANK_BYTES, help="memory of a rank without the data: 256M")
    add(
        "--memory", type=parse_bytes, metavar="SIZE", help="memory of a node, such as 64G; without it that of this host"
    )
    add("--shm", type=parse_bytes, metavar="SIZE", help="its /dev/shm; without it half of --memory, or as on this host")
    add("--json", action="store_true", help="print JSON for programs")
    return parser


def _path_and_dataset(file: str) -> tuple[str, str | None]:
    """The parts of FILE:DATASET. A colon in the name of an existing file is part of the name."""
    path, colon, dataset = file.rpartition(":")
    return (file, None) if not colon or os.path.exists(file) else (path, dataset)  # noqa: PTH110 - never an error


def _plan(options: argparse.Namespace, data: int) -> Plan:
    """The plan for this host, or for the node that the options describe."""
    if options.memory is not None:
        memory, limit, shm = options.memory, None, options.memory // 2
    else:
        machine = ms.info().nodes[0].machine
        memory, limit = machine.memory_bytes, machine.memory_limit
        shm = 0 if machine.shm is None else machine.shm.total
    shm = shm if options.shm is None else options.shm
    return Plan(data, options.ranks, options.nodes, options.each, memory, limit, shm)


def _as_dict(array: ms.Stored) -> dict[str, Any]:
    """An array as plain data for JSON."""
    names = ("name", "shape", "nbytes", "layout", "chunks", "filters")
    return {**{name: getattr(array, name) for name in names}, "dtype": str(array.dtype)}


def _line(array: ms.Stored, path: str) -> str:
    """An array as a line of text."""
    filters = f" by {', '.join(array.filters)}" if array.filters else ""
    strings = "; its strings take as many bytes as the longest, known only when read" if array.is_text else ""
    name = array.name or path
    return f"{name}: {array.shape} {array.dtype}, {array.nbytes:,} bytes, {array.layout}{filters}{strings}"


def _table(plan: Plan) -> list[str]:
    ranks = plan.ranks_a_node
    return [
        f"{plan.ranks} ranks on {plan.nodes} nodes, up to {ranks} a node, each with {plan.each:,} bytes for itself",
        "",
        f"  {'bytes on a node':22} {'data':>18} {'and the ranks':>18}",
        f"  {'one copy, shared':22} {plan.data:18,} {plan.shared:18,}",
        f"  {'one copy a rank':22} {plan.data * ranks:18,} {plan.copied:18,}",
        "",
    ]


def _fit(plan: Plan, node: str) -> list[str]:
    """What fits on a node, and what does not."""
    allowed = "" if plan.room == plan.memory else f", of which control groups allow {plan.room:,}"
    has_windows = plan.data <= plan.shm
    return [
        f"  memory of {node} {plan.memory:,} bytes{allowed}:",
        f"    one copy {_verdict(plan.fits, (plan.room - plan.data) // plan.each)}",
        f"    one copy a rank {_verdict(plan.copied <= plan.room, plan.room // (plan.data + plan.each))}",
        f"  /dev/shm {plan.shm:,} bytes:",
        f"    MPI's windows {'fit' if has_windows else 'do not fit; mpishare takes its own files in memory then'}",
    ]


def _verdict(fits: bool, most_ranks: int) -> str:
    if fits:
        return "fits"
    return f"does not fit, but with {most_ranks} ranks a node" if most_ranks > 0 else "does not fit with any rank"
