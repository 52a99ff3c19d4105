"""`mpishare plan`: what the data in a file take on each node, shared and copied, and what to ask Slurm for."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

import mpishare as ms

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
"""As Slurm's --mem takes them."""

_EACH_BYTES = 256 << 20
"""What a rank takes for itself when nothing is said: Python, NumPy and MPI take 40 to 80 MiB, the rest is room."""

_ASKED_BYTES = 256 << 20
"""--mem is rounded up to this."""


@dataclass(frozen=True)
class Plan:
    """The memory that data take in a job, in bytes.

    Attributes:
        data: The data, once.
        ranks: In the job.
        nodes: In the job.
        each: What each rank takes for itself besides.
        memory: Of a node.
        limit: What its control groups allow, None where they do not limit it.
        shm: The size of its /dev/shm, 0 without one.
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
        """On the fullest node."""
        return -(-self.ranks // self.nodes)

    @property
    def shared(self) -> int:
        """What the fullest node holds with one copy of the data."""
        return self.data + self.ranks_a_node * self.each

    @property
    def copied(self) -> int:
        """What it holds with one copy a rank."""
        return self.ranks_a_node * (self.data + self.each)

    @property
    def room(self) -> int:
        """What a node may hold."""
        return self.memory if self.limit is None else min(self.memory, self.limit)

    @property
    def fits(self) -> bool:
        """Whether one copy a node fits."""
        return self.shared <= self.room

    @property
    def mem_words(self) -> str:
        """What --mem takes, with some room."""
        return f"{-(-self.shared // _ASKED_BYTES) * (_ASKED_BYTES >> 20)}M"

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data for JSON."""
        derived = {"shared": self.shared, "copied": self.copied, "fits": self.fits, "sbatch": self.sbatch()}
        return {**vars(self), "ranks_a_node": self.ranks_a_node, **derived}

    def sbatch(self) -> list[str]:
        """The lines of a batch script that ask for it."""
        even = self.ranks % self.nodes == 0
        placed = f"--ntasks-per-node={self.ranks_a_node}" if even else f"--ntasks={self.ranks}"
        return [f"#SBATCH {word}" for word in (f"--nodes={self.nodes}", placed, f"--mem={self.mem_words}")]


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
        found = ms.stored(path, dataset)
        plan = _planned(options, sum(one.nbytes for one in found.values()))
    except ms.MpishareError as error:
        print(f"mpishare plan: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"arrays": [_told(one) for one in found.values()], **plan.as_dict()}, indent=2))
    else:
        node = "this host" if options.memory is None else "such a node"
        arrays = [_line(one, path) for one in found.values()]
        print("\n".join([*arrays, *_table(plan), *_fit(plan, node), "", *plan.sbatch()]))
    return 0 if plan.fits else 1


def parse_bytes(text: str) -> int:
    """A number of bytes as Slurm takes it: digits, and K, M, G or T for powers of 1024."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:I?B)?", text.strip().upper())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes. Write 800M, 64G or 1.5T, say.")
    return int(float(found[1]) * _UNITS[found[2]])


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
    add("--each", type=parse_bytes, metavar="SIZE", default=_EACH_BYTES, help="what a rank takes for itself: 256M")
    add(
        "--memory", type=parse_bytes, metavar="SIZE", help="memory of a node, such as 64G; without it that of this host"
    )
    add("--shm", type=parse_bytes, metavar="SIZE", help="its /dev/shm; without it half of --memory, or as on this host")
    add("--json", action="store_true", help="print JSON for programs")
    return parser


def _path_and_dataset(words: str) -> tuple[str, str | None]:
    """FILE:DATASET in its parts. A colon in the name of a file that is there is part of the name."""
    path, colon, dataset = words.rpartition(":")
    return (words, None) if not colon or os.path.exists(words) else (path, dataset)  # noqa: PTH110 - never an error


def _planned(options: argparse.Namespace, data: int) -> Plan:
    """The plan for this host, or for the node that was told."""
    if options.memory is not None:
        memory, limit, shm = options.memory, None, options.memory // 2
    else:
        machine = ms.info().nodes[0].machine
        memory, limit = machine.memory_bytes, machine.memory_limit
        shm = 0 if machine.shm is None else machine.shm.total
    shm = shm if options.shm is None else options.shm
    return Plan(data, options.ranks, options.nodes, options.each, memory, limit, shm)


def _told(one: ms.Stored) -> dict[str, Any]:
    """An array as plain data for JSON."""
    about = {"name": one.name, "shape": one.shape, "dtype": str(one.dtype), "nbytes": one.nbytes}
    return {**about, "layout": one.layout, "chunks": one.chunks, "filters": one.filters}


def _line(one: ms.Stored, path: str) -> str:
    """An array for people."""
    filters = f" by {', '.join(one.filters)}" if one.filters else ""
    texts = "; its texts take as much as the longest each, which only reading tells" if one.is_text else ""
    return f"{one.name or path}: {one.shape} {one.dtype}, {one.nbytes:,} bytes, {one.layout}{filters}{texts}"


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
