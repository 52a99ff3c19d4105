"""Clusters as seen from outside: start one, find one that is up, run commands on its hosts, end it."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.cluster.missing import SYSTEM_FOLDERS
from tests.cluster.spec import AGENT, HEAD, HOSTFILE, VENV, Spec

ROOT = Path(__file__).parent.parent.parent
_MODULE = "tests.cluster.init"
_NAMESPACES = ["--mount", "--pid", "--net", "--uts", "--ipc"]

# What Open MPI needs to go over the hosts: the agent for ssh, TCP between them, shared memory within, and patience,
# as all hosts share the cores of one machine.
_OPEN_MPI = {
    "PRTE_MCA_plm_ssh_agent": AGENT,
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class ClusterError(Exception):
    """The cluster could not be made or found."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up.

    Attributes:
        spec: What it is.
        pid: Its first process, as numbered outside.
    """

    spec: Spec
    pid: int

    def words(self, host: str, command: list[str]) -> list[str]:
        """The command line that runs `command` on `host`, in this folder and with this environment."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        enter = ["nsenter", "--target", str(self.pid), *user, *_NAMESPACES, "--"]
        there = ["sh", "-c", 'cd "$0"; exec "$@"', str(Path.cwd()), AGENT, host, shlex.join(command)]
        return [*enter, *there]

    def mpiexec_words(self, words: list[str]) -> list[str]:
        """The command line that runs mpiexec on the first host, over all hosts."""
        return self.words(self.spec.hosts[0], [f"{VENV}/bin/mpiexec", "--hostfile", HOSTFILE, *words])

    def environment(self) -> dict[str, str]:
        """This environment with this Python's folder first on PATH, and what Open MPI and Slurm need to find all."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
        slurm = {"SLURM_CONF": "/run/cluster/slurm/slurm.conf"} if self.spec.slurm else {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_", "PMIX_"))}
        return {**kept, **_OPEN_MPI, **slurm, "PATH": path}

    def exec(self, host: str, command: list[str], *, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs `command` on `host` and waits.

        Raises:
            subprocess.TimeoutExpired: It took longer than `limit_s`.
        """
        return self._run(self.words(host, command), limit_s)

    def mpiexec(self, words: list[str], *, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs mpiexec over all hosts and waits.

        Raises:
            subprocess.TimeoutExpired: It took longer than `limit_s`.
        """
        return self._run(self.mpiexec_words(words), limit_s)

    def _run(self, words: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, timeout=limit_s, check=False
        )

    def cut(self, host: str) -> None:
        """Takes the host off the network, as a pulled cable does."""
        self._run_checked(["ip", "link", "set", host, "down"])

    def kill(self, host: str) -> None:
        """Ends every process of the host at once, as a power failure does, and takes it off the network."""
        self.cut(host)
        for pid in self._processes(host):
            os.kill(pid, signal.SIGKILL)

    def counters(self) -> dict[str, tuple[int, int]]:
        """For each host, the bytes that it has received and sent over its link, frames included."""
        found = {}
        for host in self.spec.hosts:
            line = next(line for line in self._read(host, "/proc/self/net/dev").splitlines() if "eth0:" in line)
            numbers = line.partition(":")[2].split()
            found[host] = (int(numbers[0]), int(numbers[8]))
        return found

    def shared_files(self, host: str) -> list[str]:
        """What lies in the host's /dev/shm and temporary folder."""
        return self.exec(host, ["find", "/dev/shm", "/run/tmp", "-mindepth", "1"]).stdout.split()

    def processes(self, host: str) -> list[str]:
        """The command lines of the host's processes, but for the one that holds its namespaces."""
        return [line for line in self._processes(host).values() if line != "sleep infinity"]

    def _processes(self, host: str) -> dict[int, str]:
        """The processes in the host's network namespace, as numbered outside, with their command lines."""
        net = self.exec(host, ["readlink", "/proc/self/ns/net"]).stdout.strip()
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str((process / "ns/net").readlink()) == net:
                    found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue  # it ended meanwhile, or is not for us to look at, and so not ours
        return found

    def _read(self, host: str, file: str) -> str:
        return self.exec(host, ["cat", file]).stdout

    def _run_checked(self, command: list[str]) -> None:
        ended = self.exec(HEAD, command)
        if ended.returncode:
            raise ClusterError(f"{command}: {ended.stderr}")


def start(spec: Spec, *, until: IO[bytes] | int | None = None) -> tuple[Cluster, subprocess.Popen[bytes]]:
    """Brings a cluster up.

    Args:
        spec: What it is to be.
        until: An open pipe to live as long as; None to live until `down`.

    Raises:
        ClusterError: There is one of that name, or the hosts could not be made.
    """
    if any(cluster.spec.name == spec.name for cluster in running()):
        raise ClusterError(f"a cluster named {spec.name} is up already")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *user, "--fork", "--kill-child", *_NAMESPACES, "--mount-proc"]
    words = [*unshare, sys.executable, "-m", _MODULE, spec.dumps(), *([] if until is None else ["eof"])]
    stdin = subprocess.DEVNULL if until is None else until
    pipe = subprocess.PIPE
    environ = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])}
    process = subprocess.Popen(
        words, cwd=ROOT, env=environ, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    said = json.loads(line) if line else "it ended without a word"
    if said != "ready":
        process.kill()
        raise ClusterError(f"the cluster could not be made: {said}\n{process.communicate()[1].decode()}")
    return next(cluster for cluster in running() if cluster.spec.name == spec.name), process


@contextmanager
def cluster(spec: Spec) -> Iterator[Cluster]:
    """A cluster for the time of a block. It ends with the block, and with this process however that ends."""
    here, there = os.pipe()
    os.set_inheritable(there, False)
    try:
        made, process = start(spec, until=here)
    finally:
        os.close(here)
    try:
        yield made
    finally:
        os.close(there)
        process.communicate()


def running() -> list[Cluster]:
    """The clusters that are up on this machine, told by the command line of their first process."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if words[1:3] == ["-m", _MODULE]:
            found.append(Cluster(Spec.loads(words[3]), int(file.parent.name)))
    return found


def find(name: str) -> Cluster:
    """The cluster of that name.

    Raises:
        ClusterError: None is up.
    """
    for one in running():
        if one.spec.name == name:
            return one
    raise ClusterError(f"no cluster named {name} is up. Start one: python -m tests.cluster up --hosts 3")


def end(one: Cluster) -> None:
    """Ends a cluster; returns when its first process, and so every other, is gone."""
    watch = os.pidfd_open(one.pid)
    try:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        select.select([watch], [], [], 30)
    finally:
        os.close(watch)
