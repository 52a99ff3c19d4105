"""Runs the benchmarks one after the other, as two at once would measure each other.

    python -m benchmarks.run [--only NAME…] [--list] [--short] [--wide [--cores N]]

Before each script the limits of the machine are measured, so that they are kept beside its result. `--short` makes few
rounds of small sizes, to see that each script works; its results go to build/bench-short. `make bench` runs all of it
in less than an hour on 2 cores. For that the largest array between hosts has 16 MiB, and 32 MiB without rivals;
`--list` names what runs only by its name. `make bench-wide` runs another set, for a machine with 8 to 128 cores.
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

    @property
    def option(self) -> str:
        """Of `benchmarks.run`, without which it is not known there."""
        return " --wide" if self.name.startswith("wide-") else ""

    def command(self, *, short: bool) -> list[str]:
        """The command line after the interpreter."""
        launcher = ["-m", "mpishare", "run", "-n", str(self.ranks)] if self.ranks else []
        return [*launcher, "-m", *f"benchmarks.{self.args} {self.short if short else ''}".split()]


LAUNCHES = [
    Launch("ground", 4, "ground", ""),
    Launch("share-2", 2, "share", "--powers 10,20,24,28 --rounds 1"),
    Launch("share-4", 4, "share --powers 10,16,20,26", "--powers 10,20,24 --rounds 1"),
    Launch("memory-4", 4, "memory", "--mib 64"),
    Launch("nodes", 0, "nodes", "--links pretend,400mbit --powers 10,20,21 --rounds 1 --rivals expert,default"),
    Launch(
        "nodes-delays",
        0,
        "nodes --add --links 4gbit,10gbit --delays 1ms --hosts 4",
        "--links 10gbit --powers 20 --rounds 1 --rivals pshmem",
    ),
    Launch(
        "nodes-more",
        0,
        "nodes --add --links 400mbit,free --hosts 4 --ranks 4",
        "--links 400mbit --powers 20,21 --rounds 1",
    ),
    Launch(
        "nodes-many",
        0,
        "nodes --add --links 400mbit --hosts 8 --ranks 4 --powers 24 --rivals forced",
        "--hosts 2 --powers 20 --rounds 1",
    ),
    Launch(
        "nodes-links",
        0,
        "nodes --name nodes-links --links 400mbit,1gbit,4gbit,10gbit --delays 0,50us,1ms --powers 25 --rivals=",
        "--links 10gbit --hosts 2 --powers 20 --rounds 1",
    ),
    Launch("growth", 0, "growth", "--ranks 1,2 --hosts 2 --rounds 1"),
    Launch("collectives", 0, "collectives", "--hosts 4 --powers 10,20 --rounds 1"),
    Launch("messages", 2, "messages", "--powers 3,10,16,20,28 --rounds 1"),
    Launch("messages-hosts", 0, "messages --hosts", "--powers 10,20 --rounds 1"),
    Launch("profile", 0, "profile", "--rounds 20"),
    Launch("ways", 0, "ways", "--images 700 --rounds 1"),
    Launch("pool", 0, "pool", "--items 20000 --bits 6,8,10 --rounds 1"),
    Launch("table", 0, "table", "--mb 8 --rounds 1"),
    Launch("kernels", 4, "kernels", "--adds 1000000 --rounds 1"),
    Launch("files", 0, "files", "--mib 64 --chunked-mib 16 --rounds 1 --hosts 2 --link-mib 4"),
]
"""What `make bench` runs, in less than an hour on 2 cores."""

MORE = [
    Launch("situations", 0, "situations", "--rounds 1 --shares 1"),
    Launch(
        "nodes-chunks",
        0,
        "nodes --chunks --links 400mbit,free --powers 20,22,25",
        "--links free --hosts 2 --powers 20 --rounds 1",
    ),
]
"""Which no document quotes: they run where they are named."""


def wide(cores: int) -> list[Launch]:
    """The set for a machine with many cores, `make bench-wide`: with 1, 2, 4, 8, 16 ... ranks, a core each.

    Its results are named after the number of ranks, and no table quotes them beside those of `make bench`.
    """
    counts = [1 << power for power in range(cores.bit_length())]
    small = "--powers 10,20 --rounds 1"
    launches = [
        Launch(
            "wide-growth",
            0,
            f"growth --only node --ranks {','.join(map(str, counts))} --name wide-growth",
            "--ranks 1 --rounds 1",
        )
    ]
    for ranks in counts:
        name = f"wide-share-{ranks}"
        launches += [
            Launch(name, ranks, f"share --powers 10,16,20,24,26 --name {name}", small),
            Launch(f"wide-steps-{ranks}", ranks, "steps", "--rounds 1"),
        ]
        for question, args, short in (
            ("messages", "--powers 3,10,16,20,24", f"{small} --gib 0.1"),
            ("pool", f"--workers {ranks}", "--items 2000 --bits 6 --rounds 1"),
            ("files", f"--ranks {ranks} --hosts 0 --mib 128 --chunked-mib 32", "--mib 16 --chunked-mib 4 --rounds 1"),
        ):
            name = f"wide-{question}-{ranks}"
            if ranks > 1:
                on_ranks = ranks if question == "messages" else 0
                launches.append(Launch(name, on_ranks, f"{question} {args} --name {name}", short))
    return launches


def main() -> int:
    """Runs them; 0 where all ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those of these names")
    parser.add_argument("--list", action="store_true", help="print the commands")
    parser.add_argument("--short", action="store_true", help="few rounds; the results go to build/bench-short")
    parser.add_argument("--wide", action="store_true", help="those of make bench-wide, with up to a rank a core")
    parser.add_argument(
        "--cores", type=int, default=len(os.sched_getaffinity(0)), help="of them (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.cores < 1:
        parser.error("--cores takes 1 or more")
    launches = wide(options.cores) if options.wide else LAUNCHES
    known = launches if options.wide else [*LAUNCHES, *MORE]
    unknown = {*(options.only or [])} - {launch.name for launch in known}
    if unknown:
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}; --list has the names")
    chosen = [launch for launch in known if launch.name in options.only] if options.only else launches
    if options.list:
        for launch in chosen if options.only else known:
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


def names_for(launch: Launch) -> list[str]:
    """The launches that make a result, in their order: those before it too, where it adds to their result."""
    if "--add" not in launch.args.split():
        return [launch.name]
    script = launch.args.split()[0]
    return [each.name for each in LAUNCHES[: LAUNCHES.index(launch) + 1] if each.args.split()[0] == script]


def run(launch: Launch, environ: dict[str, str], *, short: bool) -> tuple[int, float]:
    """The exit status of one, and its seconds."""
    command = launch.command(short=short)
    print(f"\n== {launch.name}: python {shlex.join(command)}", flush=True)
    start = time.perf_counter()
    machine = [sys.executable, "-m", "benchmarks.machine"]
    printed = subprocess.run(machine, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=True).stdout
    again = f"python -m benchmarks.run{launch.option} --only {' '.join(names_for(launch))}"
    facts = {**json.loads(printed), "command": again, "runs": command}
    environ = {**environ, FACTS: json.dumps(facts)}
    status = subprocess.run([sys.executable, *command], cwd=ROOT, env=environ, check=False).returncode
    return status, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
