"""What a cluster is asked to be, and where its files lie inside its own namespaces."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

RUN = "/run/cluster"
"""A folder on a tmpfs that only the cluster's own mount namespace has: it goes with the cluster, however that ends."""

AGENT = f"{RUN}/agent"
HOSTFILE = f"{RUN}/hostfile"
LOG = f"{RUN}/log"
VENV = f"{RUN}/venv"
"""This Python's folder by a path without spaces, which Open MPI's command line for ssh does not quote."""

HEAD = "head"
HEAD_ADDRESS = "10.77.0.254"


@dataclass(frozen=True)
class Spec:
    """A cluster.

    Attributes:
        name: Names it for the commands; two clusters that are up at once differ in it.
        ranks: Slots for ranks on each host, one number a host.
        rate: Speed of each link in tc's words, such as "400mbit"; "" for as fast as the machine is.
        shm: Size of /dev/shm on each host in mount's words, one a host.
        slurm: Whether slurmctld, slurmd and munged run.
    """

    name: str
    ranks: tuple[int, ...]
    rate: str
    shm: tuple[str, ...]
    slurm: bool

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts: h1, h2 and so on."""
        return [f"h{number + 1}" for number in range(len(self.ranks))]

    @staticmethod
    def address(host: str) -> str:
        """The address of a host on the cluster's own network."""
        return HEAD_ADDRESS if host == HEAD else f"10.77.0.{host[1:]}"

    def dumps(self) -> str:
        """The spec as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Spec:
        """The spec that `dumps` told of."""
        told = json.loads(text)
        return cls(told["name"], tuple(told["ranks"]), told["rate"], tuple(told["shm"]), told["slurm"])


def make_spec(hosts: int, *, ranks: str = "2", rate: str = "", shm: str = "1g", slurm: bool = False, name: str) -> Spec:
    """A spec from the words of a command line: `ranks` and `shm` are one value, or one a host, with commas.

    Raises:
        ValueError: A word is not understood.
    """
    counts, sizes = _one_each(ranks, hosts), _one_each(shm, hosts)
    if not 1 <= hosts <= 200 or not all(count.isdigit() and int(count) > 0 for count in counts):
        raise ValueError(f"a cluster has 1 to 200 hosts with 1 rank or more, not {hosts} with {ranks}")
    if not all(re.fullmatch(r"\d+[kmg]?", size) for size in sizes):
        raise ValueError(f"/dev/shm has a size such as 64m or 1g, not {shm}")
    if not re.fullmatch(r"(\d+[kmg]?bit)?", rate):
        raise ValueError(f"a link has a rate such as 400mbit, not {rate}")
    if not re.fullmatch(r"[a-z0-9-]+", name):
        raise ValueError(f"a name is made of a-z, 0-9 and -, not {name!r}")
    return Spec(name, tuple(map(int, counts)), rate, tuple(sizes), slurm)


def _one_each(words: str, hosts: int) -> list[str]:
    values = words.split(",")
    if len(values) not in (1, hosts):
        raise ValueError(f"{words!r} has {len(values)} values for {hosts} hosts")
    return values * hosts if len(values) == 1 else values
