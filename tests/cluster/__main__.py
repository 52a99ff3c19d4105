"""`python -m tests.cluster`: a cluster of several hosts on this machine, with Slurm if wanted."""

from __future__ import annotations

import argparse
import os
import sys

from tests.cluster.cluster import Cluster, ClusterError, end, find, running, start
from tests.cluster.missing import missing
from tests.cluster.spec import make_spec


def main() -> int:
    """Runs one command; returns its exit status."""
    ours, words = _cut_words(sys.argv[1:])
    options = _parser().parse_args(ours)
    options.words = words
    try:
        return int(options.command(options))
    except (ClusterError, ValueError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def _cut_words(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those of the command that is to run: all after "exec HOST", or after "mpiexec"."""
    for verb, own in (("exec", 2), ("mpiexec", 1)):
        if verb in argv:
            cut = argv.index(verb) + own
            return argv[:cut], argv[cut:]
    return argv, []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--name", default="cluster", help="which cluster, when several are up (default: %(default)s)")
    commands = parser.add_subparsers(required=True)
    up = commands.add_parser("up", help="bring a cluster up")
    up.add_argument("--hosts", type=int, default=3, help="number of hosts, named h1, h2, … (default: %(default)s)")
    up.add_argument("--ranks-per-host", default="2", help="slots a host, or one number a host with commas")
    up.add_argument("--rate", default="", help="hold each link to a speed, e.g. 400mbit")
    up.add_argument("--shm", default="1g", help="size of /dev/shm a host, or one a host with commas, e.g. 64m")
    up.add_argument("--slurm", action="store_true", help="start munged, slurmctld on the head, a slurmd on each host")
    up.set_defaults(command=_up)
    run = commands.add_parser("exec", help="exec HOST CMD…: run a command on h1, h2, … or head; a shell without CMD")
    run.add_argument("host")
    run.set_defaults(command=_exec)
    commands.add_parser("mpiexec", help="mpiexec WORDS…: run it over all hosts").set_defaults(command=_mpiexec)
    for name, call, text in (
        ("cut", _cut, "take a host off the network"),
        ("kill", _kill, "end all processes of a host and take it off the network"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("host")
        one.set_defaults(command=call)
    commands.add_parser("status", help="list the clusters that are up").set_defaults(command=_status)
    commands.add_parser("down", help="end the cluster").set_defaults(command=_down)
    return parser


def _up(options: argparse.Namespace) -> int:
    lacking = missing(slurm=options.slurm)
    if lacking:
        raise ClusterError("; ".join(lacking))
    spec = make_spec(
        options.hosts,
        ranks=options.ranks_per_host,
        rate=options.rate,
        shm=options.shm,
        slurm=options.slurm,
        name=options.name,
    )
    start(spec)
    print(f"cluster {spec.name} is up: {', '.join(spec.hosts)} and head. A shell: python -m tests.cluster exec h1 bash")
    return 0


def _exec(options: argparse.Namespace) -> int:
    one = _checked(options)
    return _become(one, one.words(options.host, options.words or ["bash"]))


def _mpiexec(options: argparse.Namespace) -> int:
    one = find(options.name)
    return _become(one, one.mpiexec_words(options.words))


def _become(one: Cluster, words: list[str]) -> int:
    os.execvpe(words[0], words, one.environment())
    return 0


def _cut(options: argparse.Namespace) -> int:
    _checked(options).cut(options.host)
    return 0


def _kill(options: argparse.Namespace) -> int:
    _checked(options).kill(options.host)
    return 0


def _checked(options: argparse.Namespace) -> Cluster:
    """The cluster, when it has the host that is asked for."""
    one = find(options.name)
    if options.host not in [*one.spec.hosts, "head"]:
        raise ClusterError(f"no host {options.host}; there are {', '.join(one.spec.hosts)} and head")
    return one


def _status(options: argparse.Namespace) -> int:
    for one in running():
        slurm = ", Slurm" if one.spec.slurm else ""
        print(f"{one.spec.name}: {len(one.spec.hosts)} hosts, ranks {one.spec.ranks}{slurm}")
    return 0


def _down(options: argparse.Namespace) -> int:
    end(find(options.name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
