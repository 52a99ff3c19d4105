"""The command line: `mpishare` or `python -m mpishare`."""

from __future__ import annotations

import sys

from mpishare.cli import bench, clean, info, plan, run

_COMMANDS = {"bench": bench.main, "clean": clean.main, "info": info.main, "plan": plan.main, "run": run.main}

_USAGE = """\
usage: mpishare COMMAND [options]

One copy per node of any array, as a plain NumPy view on every rank of an MPI job.

commands:
  info [--json]                        versions, placement of the ranks, memory of each node, segment kinds
  bench [--mib N]                      how fast arrays are shared, beside MPI's own broadcasts, and a verdict
  plan FILE[:DATASET] -n RANKS -N NODES
                                       the memory of data on each node, whether they fit, the lines for sbatch
  clean [--dry-run]                    remove the shared memory that killed jobs of yours left on this host
  run -n N [mpiexec options] PROGRAM   start PROGRAM on N ranks with mpiexec

`mpishare COMMAND --help` prints its options.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    args = sys.argv[1:] if argv is None else argv
    if args in (["-h"], ["--help"]):
        print(_USAGE, end="")
        return 0
    if not args or args[0] not in _COMMANDS:
        print(_USAGE, end="", file=sys.stderr)
        return 2
    return _COMMANDS[args[0]](args[1:])
