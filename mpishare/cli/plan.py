"""`mpishare plan`: the memory that data take on each node, shared and copied, and the lines that ask Slurm for it."""

from __future__ import annotations

import argparse
import json
import os
from typing import NamedTuple

import mpishare as ms
from mpishare.config import parse_bytes

_RANK_BYTES = 256 << 20
"""The memory of a rank without data, unless given: Python, NumPy and MPI take 40 to 80 MiB, the rest is a margin."""

_MEM_STEP_BYTES = 256 << 20
"""--mem is rounded up to a multiple of this."""

_FACTS = ("name", "shape", "dtype", "nbytes", "layout", "chunks", "filters", "reason", "left_out", "target")
"""Of an array, in JSON."""


class Plan(NamedTuple):
    """The memory that data take in a job, in bytes.

    Attributes:
        data: The data, once.
        ranks: Ranks of the job.
        nodes: Nodes of the job.
        each: The memory of a rank without the data.
        memory: The memory of a node.
        limit: The limit of its control groups; None without one.
        shm: The size of its /dev/shm; 0 without one.
        ranks_a_node: The ranks of the fullest node.
        shared: The bytes that the fullest node holds with one copy of the data.
        shared_from_root: The same where the root holds the data for itself as well, as in ms.share(np.load(file)).
        copied: The bytes that it holds with one copy per rank.
        fits: Whether one copy per node fits.
        sbatch: The lines of a batch script that ask for it.
    """

    data: int
    ranks: int
    nodes: int
    each: int
    memory: int
    limit: int | None
    shm: int
    ranks_a_node: int
    shared: int
    shared_from_root: int
    copied: int
    fits: bool
    sbatch: list[str]


def make_plan(*, data: int, ranks: int, nodes: int, each: int, memory: int, limit: int | None, shm: int) -> Plan:
    """The plan for a node of `memory` bytes, of which control groups allow `limit`."""
    ranks_a_node = -(-ranks // nodes)
    shared, copied = data + ranks_a_node * each, ranks_a_node * (data + each)
    ntasks = f"--ntasks={ranks}" if ranks % nodes else f"--ntasks-per-node={ranks_a_node}"
    sbatch = [f"#SBATCH {option}" for option in (f"--nodes={nodes}", ntasks, _mem(shared))]
    fits = shared <= _room(memory, limit)
    return Plan(data, ranks, nodes, each, memory, limit, shm, ranks_a_node, shared, shared + data, copied, fits, sbatch)


def _mem(nbytes: int) -> str:
    """The option that asks Slurm for so many bytes per node."""
    return f"--mem={-(-nbytes // _MEM_STEP_BYTES) * (_MEM_STEP_BYTES >> 20)}M"


def _room(memory: int, limit: int | None) -> int:
    """The bytes that a node may hold."""
    return memory if limit is None else min(memory, limit)


def main(argv: list[str]) -> int:
    """Prints the plan; 0 when the data fit, 1 when they do not."""
    options = _options(argv)
    path, dataset = _path_and_dataset(options.file)
    arrays: dict[ms.Stored, list[str]] = {}  # with the names of each, which is in memory once
    for name, array in ms.stored(path, dataset).items():
        arrays.setdefault(array, []).append(name)
    plan = _plan(options, sum(array.nbytes for array in arrays))
    if options.json:
        facts = [{**{name: getattr(array, name) for name in _FACTS}, "names": arrays[array]} for array in arrays]
        print(json.dumps({"arrays": facts, **plan._asdict()}, indent=2, default=str))
    else:
        lines = [_line(array, names, path) for array, names in arrays.items()]
        node = "this host" if options.memory is None else "such a node"
        print(*lines, *_table(plan, node), *plan.sbatch, sep="\n")
    return 0 if plan.fits else 1


def _options(argv: list[str]) -> argparse.Namespace:
    """The options; a wrong one ends the program with exit status 2."""
    parser = argparse.ArgumentParser(
        prog="mpishare plan",
        description="Prints what the data in a file take on each node of a job, with one copy per node or one copy per "
        "rank, whether that fits, and lines of a batch script that ask for it. Reads the head of the file only.",
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
    options = parser.parse_args(argv)
    if not 0 < options.nodes <= options.ranks:
        parser.error("-n and -N take 1 or more, and each node has at least one rank")
    if options.each < 1:
        parser.error("--each takes 1 or more")
    return options


def _path_and_dataset(file: str) -> tuple[str, str | None]:
    """The parts of FILE:DATASET. Both may have colons: FILE is the longest part that is the name of a file."""
    colons = [place for place, character in enumerate(file) if character == ":"]
    for end in (len(file), *reversed(colons)):
        if os.path.isfile(file[:end]):  # noqa: PTH113 - never an error
            return file[:end], file[end + 1 :] or None
    path, colon, dataset = file.rpartition(":")
    return (path, dataset) if colon else (file, None)


def _plan(options: argparse.Namespace, data: int) -> Plan:
    """The plan for this host, or for the node that the options describe."""
    if options.memory is not None:
        memory, limit, shm = options.memory, None, options.memory // 2
    else:
        machine = ms.info().nodes[0].machine
        memory, limit = machine.memory_bytes, machine.memory_limit
        shm = 0 if machine.shm is None else machine.shm.total
    shm = shm if options.shm is None else options.shm
    job = {"ranks": options.ranks, "nodes": options.nodes, "each": options.each}
    return make_plan(data=data, **job, memory=memory, limit=limit, shm=shm)


def _line(array: ms.Stored, names: list[str], path: str) -> str:
    """An array as a line of text, with its other names."""
    filters = f" by {', '.join(array.filters)}" if array.filters else ""
    linked = f" in {array.target[0]}" if array.target else ""
    strings = "; its strings take as many bytes as the longest, known only when read" if array.is_text else ""
    also = "".join(f"; also {name}" for name in names[1:])
    left_out = "".join(f"; left out: {reason}" for reason in (array.reason, *array.left_out) if reason)
    facts = f"{array.shape} {array.dtype}, {array.nbytes:,} bytes, {array.layout}{filters}{linked}"
    return f"{names[0] or path}: {facts}{strings}{also}{left_out}"


def _table(plan: Plan, node: str) -> list[str]:
    """The bytes on a node, and what fits there."""
    ranks, room = plan.ranks_a_node, _room(plan.memory, plan.limit)
    allowed = "" if room == plan.memory else f", of which control groups allow {room:,}"
    windows = "fit" if 2 * plan.data <= plan.shm else "may not all fit; the rest are nameless files in memory"
    return [
        f"{plan.ranks} ranks on {plan.nodes} nodes, up to {ranks} per node, each with {plan.each:,} bytes for itself",
        "",
        f"  {'bytes on a node':22} {'data':>18} {'and the ranks':>18}",
        f"  {'one copy, shared':22} {plan.data:18,} {plan.shared:18,}",
        f"  {'and the root has one':22} {2 * plan.data:18,} {plan.shared_from_root:18,}",
        f"  {'one copy per rank':22} {plan.data * ranks:18,} {plan.copied:18,}",
        "",
        f"  memory of {node} {plan.memory:,} bytes{allowed}:",
        f"    one copy {_verdict(plan.fits, (room - plan.data) // plan.each)}",
        f"    one copy per rank {_verdict(plan.copied <= room, room // (plan.data + plan.each))}",
        f"  /dev/shm {plan.shm:,} bytes:",
        f"    MPI's windows {windows}",
        "",
        f"For load(file). For share(np.load(file)), as the root has a copy of its own, {_mem(plan.shared_from_root)}:",
    ]


def _verdict(fits: bool, most_ranks: int) -> str:
    if fits:
        return "fits"
    return f"does not fit, but with {most_ranks} ranks per node" if most_ranks > 0 else "does not fit with any rank"
