"""`python -m tests.cluster`: a shell on a host of a cluster on this machine, which lasts as long as the shell."""

import argparse
import subprocess

from tests.cluster.cluster import cluster
from tests.cluster.missing import missing
from tests.cluster.spec import HEAD, make_spec


def main():
    """Makes the cluster and runs the shell, or a command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--hosts", type=int, default=3, help="number of hosts, named h1, h2, … (default: %(default)s)")
    parser.add_argument("--ranks", default="2", help="slots a host, or one number a host with commas")
    parser.add_argument("--rate", default="", help="speed of each link, e.g. 400mbit")
    parser.add_argument("--shm", default="1g", help="size of /dev/shm a host, or one a host with commas, e.g. 64m")
    parser.add_argument(
        "--slurm", action="store_true", help="start munged, slurmctld on the head, a slurmd on each host"
    )
    parser.add_argument("--on", default=HEAD, help="the host of the shell (default: %(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="instead of a shell, after all options")
    options = parser.parse_args()
    if lacking := missing(slurm=options.slurm):
        parser.error("; ".join(lacking))
    kinds = {name: getattr(options, name) for name in ("ranks", "rate", "shm", "slurm")}
    spec = make_spec(options.hosts, **kinds)
    with cluster(spec) as hosts:
        line = hosts.line(options.on, options.command or ["bash"])
        return subprocess.run(line, env=hosts.environment(), check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
