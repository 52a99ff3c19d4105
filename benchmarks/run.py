"""Runs the benchmarks one after the other, as two at once would measure each other.

    python -m benchmarks.run [--only NAME…] [--list] [--short]

Before each script the limits of the machine are measured, so that they are kept beside its result. `--short` makes few
rounds of small sizes, to see that each script works; its results go to build/bench-short. All of it takes less than an
hour on 2 cores; `make bench` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.keep import FACTS

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Launch:
    """One run of a script."""

    name: str
    ranks: int
    """Under mpiexec; 0 for a script that starts its ranks itself."""
    args: str
    short: str
    """Added where a short run is asked for."""

    def command(self, *, short: bool) -> list[str]:
        """The command line after the interpreter."""
        launcher = ["-m", "mpishare", "run", "-n", str(self.ranks)] if self.ranks else []
        return [*launcher, "-m", *f"benchmarks.{self.args} {self.short if short else ''}".split()]


LAUNCHES = [
    Launch("ground", 4, "ground", ""),
    Launch("share-2", 2, "share", "--powers 10,20,24 --rounds 2"),
    Launch("share-4", 4, "share --powers 10,13,16,20,24,28", "--powers 10,20,24 --rounds 2"),
    Launch("memory-4", 4, "memory", "--mib 64"),
    Launch("situations", 0, "situations", "--rounds 1 --shares 1"),
    Launch("nodes", 0, "nodes", "--links pretend,400mbit --delays 0 --hosts 2 --powers 10,20 --rounds 2"),
    Launch(
        "nodes-more",
        0,
        "nodes --add --links 400mbit,free --delays 0 --hosts 4,8 --ranks 4 --powers 25",
        "--links 400mbit --hosts 4 --powers 20 --rounds 2",
    ),
    Launch(
        "nodes-chunks",
        0,
        "nodes --chunks --links 400mbit,free --delays 0 --powers 20,22,25",
        "--links free --hosts 2 --powers 20 --rounds 2",
    ),
    Launch("growth", 0, "growth", "--ranks 1,2 --hosts 2 --rounds 2"),
    Launch("collectives", 0, "collectives", "--hosts 2 --powers 10,20 --rounds 2"),
    Launch("messages", 2, "messages", "--powers 3,10,20 --rounds 2 --gib 0.1"),
    Launch("messages-hosts", 0, "messages --hosts", "--powers 10,20 --rounds 2"),
    Launch("ways", 0, "ways", "--images 7000 --rounds 2"),
    Launch("pool", 0, "pool", "--items 20000 --bits 12 --rounds 1"),
    Launch("table", 0, "table", "--mb 24 --rounds 1"),
    Launch("kernels", 4, "kernels", "--adds 1000000"),
    Launch("files", 0, "files", "--mib 64 --chunked-mib 16 --rounds 1 --hosts 2 --link-mib 4"),
]


def main() -> int:
    """Runs them; 0 where all ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those of these names")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument("--short", action="store_true", help="few rounds; the results go to build/bench-short")
    options = parser.parse_args()
    unknown = {*(options.only or [])} - {launch.name for launch in LAUNCHES}
    if unknown:
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}; --list has the names")
    chosen = [launch for launch in LAUNCHES if launch.name in (options.only or [launch.name])]
    if options.list:
        for launch in chosen:
            print(f"{launch.name:16} python {shlex.join(launch.command(short=options.short))}")
        return 0
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    if options.short:
        environ.setdefault("BENCHMARK_RESULTS", str(ROOT / "build" / "bench-short"))
    ends = {launch.name: run(launch, environ, short=options.short) for launch in chosen}
    print("\n== summary")
    for name, (status, taken) in ends.items():
        print(f"{name:16} {'ended well' if status == 0 else f'FAILED, status {status}':20} {taken:7.1f} s")
    print(f"{len(ends)} benchmarks in {sum(taken for _, taken in ends.values()) / 60:.1f} minutes")
    return int(any(status for status, _ in ends.values()))


def run(launch: Launch, environ: dict[str, str], *, short: bool) -> tuple[int, float]:
    """The exit status of one, and its seconds."""
    command = launch.command(short=short)
    print(f"\n== {launch.name}: python {shlex.join(command)}", flush=True)
    start = time.perf_counter()
    machine = [sys.executable, "-m", "benchmarks.machine"]
    found = subprocess.run(machine, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True).stdout
    facts = {**json.loads(found), "command": f"python -m benchmarks.run --only {launch.name}", "runs": command}
    environ = {**environ, FACTS: json.dumps(facts)}
    status = subprocess.run([sys.executable, *command], cwd=ROOT, env=environ, check=False).returncode
    return status, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
