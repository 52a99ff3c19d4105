"""What a cluster is, and where its files lie inside its own namespaces."""

from typing import NamedTuple

RUN = "/run/cluster"
"""A folder on a tmpfs that only the cluster's own mount namespace has: it goes with the cluster, however that ends."""

AGENT = f"{RUN}/agent"
HOSTFILE = f"{RUN}/hostfile"
LOG = f"{RUN}/log"
VENV = f"{RUN}/venv"
"""This Python's folder by a path without spaces, which Open MPI's command line for ssh does not quote."""

HEAD = "head"


class Spec(NamedTuple):
    """A cluster.

    Attributes:
        ranks: Slots for ranks, by host.
        rate: Speed of each link as tc writes it, such as "400mbit"; "" for as fast as the machine is.
        shm: Size of /dev/shm as mount writes it, such as "64m", by host.
        slurm: Whether slurmctld, slurmd and munged run.
    """

    ranks: list[int]
    rate: str
    shm: list[str]
    slurm: bool

    @property
    def hosts(self):
        """Names of the hosts: h1, h2 and so on."""
        return [f"h{number + 1}" for number in range(len(self.ranks))]


def make_spec(hosts: int, *, ranks: str = "2", rate: str = "", shm: str = "1g", slurm: bool = False) -> Spec:
    """A spec in which `ranks` and `shm` are one value for all hosts, or one a host, separated by commas."""
    counts, sizes = ((text.split(",") * hosts)[:hosts] for text in (ranks, shm))
    return Spec([int(count) for count in counts], rate, sizes, slurm)


def address_of(host: str) -> str:
    """The address of a host on the cluster's own network."""
    return f"10.77.0.{254 if host == HEAD else host[1:]}"
