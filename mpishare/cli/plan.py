"""`mpishare plan`: the memory that data take on each node, shared and copied, and the lines that ask Slurm for it."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress

import mpishare as ms
from mpishare.cli import Parser
from mpishare.config import counted, format_bytes, parse_bytes

_RANK_BYTES = 256 << 20
"""The memory of a rank without data, unless given: Python, NumPy and MPI take 40 to 80 MiB, the rest is a margin."""

_MEM_STEP_BYTES = 256 << 20
"""--mem is rounded up to a multiple of this."""

_FACTS = ("name", "shape", "dtype", "nbytes", "layout", "chunks", "filters", "reason", "left_out", "target")
"""Facts of an array that the JSON has."""


def main(argv: list[str]) -> int:
    """Prints the plan; 0 when one copy per node fits, 1 when it does not."""
    options = _options(argv)
    names: dict[tuple[str, ms.Stored], list[str]] = {}  # of each array of each file, which is in memory once
    nbytes = 0
    for data in options.file:
        path, dataset = _path_and_dataset(data)
        size = _size_of(path)
        nbytes += size or 0
        for name, array in ms.stored(path, dataset).items() if size is None else ():
            names.setdefault((path, array), []).append(name)
    nbytes += sum(array.nbytes for _, array in names)
    fits = nbytes + options.ranks_per_node * options.each <= options.memory
    if options.json:
        arrays = [
            {"file": path, **{fact: getattr(array, fact) for fact in _FACTS}, "names": names[path, array]}
            for path, array in names
        ]
        print(json.dumps({**vars(options), "data": nbytes, "fits": fits, "arrays": arrays}, indent=2, default=str))
        return 0 if fits else 1
    print(*(_line(array, names[path, array], path) for path, array in names), _table(options, nbytes), sep="\n")
    if fits:
        print(_batch_lines(options, nbytes))
    return 0 if fits else 1


def _options(argv: list[str]) -> argparse.Namespace:
    """The options; a wrong one ends the program with exit status 2."""
    parser = Parser(
        prog="mpishare plan",
        description="Prints what data take on each node of a job, with one copy per node or one copy per rank, whether "
        "that fits, and lines of a batch script that ask for it. Reads the heads of files only.",
    )
    add = parser.add_argument
    described = "a size such as 8G; or a file that ms.load takes, or a dataset or group in it"
    add("file", metavar="SIZE|FILE[:DATASET]", nargs="+", help=described)
    add("-n", "--ranks", type=int, required=True, help="ranks of the job")
    add("-N", "--nodes", type=int, required=True, help="nodes of the job")
    add("--each", type=parse_bytes, metavar="SIZE", default=_RANK_BYTES, help="memory of a rank without the data: 256M")
    add("--memory", type=parse_bytes, metavar="SIZE", help="of a node, for jobs: 60G (default: 95%% of this host's)")
    add("--shm", type=parse_bytes, metavar="SIZE", help="its /dev/shm (default: half of --memory, or of this host)")
    add("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(argv)
    if not 0 < options.nodes <= options.ranks:
        parser.error("-n and -N take 1 or more, and each node has at least one rank")
    if options.each < 1:
        parser.error("--each takes 1 or more")
    options.ranks_per_node = -(-options.ranks // options.nodes)  # on the fullest node
    options.memory, options.shm = _room(options.memory, options.shm)
    return options


def _path_and_dataset(file: str) -> tuple[str, str | None]:
    """The parts of FILE:DATASET. Both may have colons: FILE is the longest part that is there."""
    path = file
    while ":" in path and not os.path.exists(path):  # noqa: PTH110 - never an error
        path = path.rpartition(":")[0]
    return path, file[len(path) + 1 :] or None


def _size_of(path: str) -> int | None:
    """The bytes of a size such as "8G"; None where a file has that name, or it is no size."""
    with suppress(ValueError):
        return None if os.path.exists(path) else parse_bytes(path)  # noqa: PTH110 - never an error
    return None


def _room(memory: int | None, shm: int | None) -> tuple[int, int]:
    """The memory that a job may have on a node, and the size of its /dev/shm, in bytes, as given or as on this host."""
    if memory is None:
        machine = next(node.machine for node in ms.info().nodes if node.machine)  # that of this host
        memory = min(machine.memory_bytes * 19 // 20, machine.memory_limit or machine.memory_bytes)
        shm = machine.shm.total if shm is None and machine.shm else shm
    return memory, memory // 2 if shm is None else shm


def _line(array: ms.Stored, names: list[str], path: str) -> str:
    """An array as a line of text, with its other names."""
    filters = f" by {', '.join(array.filters)}" if array.filters else ""
    linked = f" in {array.target[0]}" if array.target else ""
    strings = "; its strings take as many bytes as the longest, known only when read" if array.is_text else ""
    also = "".join(f"; also {name}" for name in names[1:])
    left_out = "".join(f"; left out: {reason}" for reason in (array.reason, *array.left_out) if reason)
    facts = f"{array.shape} {array.dtype}, {format_bytes(array.nbytes)}, {array.layout}{filters}{linked}"
    return f"{names[0] or path}: {facts}{strings}{also}{left_out}"


def _table(options: argparse.Namespace, nbytes: int) -> str:
    """The bytes on the fullest node, and whether they fit there."""
    ranks, each, room = options.ranks_per_node, options.each, options.memory
    job = f"{counted(options.ranks, 'rank')} on {counted(options.nodes, 'node')}, up to {ranks} per node"
    lines = [
        f"{job}, each with {format_bytes(each)} for itself; a node has {format_bytes(room)} for jobs",
        "",
        f"  {'memory on a node':24} {'data':>10} {'with the ranks':>14}",
    ]
    rows = [
        ("one copy", nbytes, (room - nbytes) // each),
        ("one copy, and the root's", 2 * nbytes, (room - 2 * nbytes) // each),
        ("one copy per rank", ranks * nbytes, room // (nbytes + each)),
    ]
    for title, data, most_ranks in rows:
        total = format_bytes(data + ranks * each)
        lines.append(f"  {title:24} {format_bytes(data):>10} {total:>14}  {_verdict(ranks, most_ranks)}")
    windows = "fit" if 2 * nbytes <= options.shm else "may not all fit; the rest are nameless files in memory"
    return "\n".join([*lines, f"  /dev/shm of {format_bytes(options.shm)}: MPI's windows {windows}"])


def _verdict(ranks: int, most_ranks: int) -> str:
    """Whether the ranks fit on a node."""
    if ranks <= most_ranks:
        return "fits"
    fewer = f"; {counted(most_ranks, 'rank')} a node would" if most_ranks > 0 else " with any rank"
    return f"does not fit{fewer}"


def _batch_lines(options: argparse.Namespace, nbytes: int) -> str:
    """What a batch script asks Slurm for."""
    ranks = options.ranks_per_node
    fits_twice = 2 * nbytes + ranks * options.each <= options.memory
    ntasks = f"--ntasks={options.ranks}" if options.ranks % options.nodes else f"--ntasks-per-node={ranks}"
    mem, mem_from_root = (_mem(copies * nbytes + ranks * options.each, options.memory) for copies in (1, 2))
    sbatch = (f"#SBATCH {option}" for option in (f"--nodes={options.nodes}", ntasks, mem))
    from_root = f"needs {mem_from_root}" if fits_twice else "does not fit"
    return "\n".join(["", f"for ms.load(file); ms.share(np.load(file)) {from_root}:", *sbatch])


def _mem(nbytes: int, room: int) -> str:
    """The option that asks Slurm for this memory on each node, which has no more than `room`."""
    return f"--mem={min(-(-nbytes // _MEM_STEP_BYTES) * _MEM_STEP_BYTES, room) >> 20}M"
