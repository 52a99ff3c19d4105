"""Clusters as seen from outside: start one, run commands on its hosts, end it."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.blackbox.launch import AS_ROOT, OPEN_MPI, ROOT, checked
from tests.cluster.missing import SYSTEM_FOLDERS
from tests.cluster.spec import AGENT, HEAD, HOSTFILE, VENV, Spec
from tests.processes import children_of, of_processes

_MODULE = "tests.cluster.init"
_NAMESPACES = ["--mount", "--pid", "--net", "--uts", "--ipc"]

# What Open MPI needs to go over the hosts: the agent for ssh, TCP between them, shared memory within.
_OPEN_MPI = {
    **OPEN_MPI,
    "PRTE_MCA_plm_ssh_agent": AGENT,
    "OMPI_MCA_btl": "self,sm,tcp",
    "OMPI_MCA_osc": "^ucx",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up.

    Attributes:
        spec: What it is.
        pid: Its first process, as numbered outside.
    """

    spec: Spec
    pid: int

    def line(self, host, command):
        """The command line that runs `command` on `host`, in this folder and with this environment."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        enter = ["nsenter", "--target", str(self.pid), *user, *_NAMESPACES, "--"]
        return [*enter, "sh", "-c", 'cd "$0"; exec "$@"', str(Path.cwd()), AGENT, host, shlex.join(command)]

    def mpiexec_line(self, args):
        """The command line that runs mpiexec on the first host, over all hosts."""
        return self.line(self.spec.hosts[0], [f"{VENV}/bin/mpiexec", "--hostfile", HOSTFILE, *args])

    def environment(self):
        """This environment with this Python's folder first on PATH, and what Open MPI and Slurm need to find all."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])
        slurm = {"SLURM_CONF": "/run/cluster/slurm/slurm.conf"} if self.spec.slurm else {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_", "PMIX_"))}
        return {**kept, **_OPEN_MPI, **slurm, "PATH": path}

    def exec(self, host, command, *, status=0):
        """Runs `command` on `host` and waits for the exit status `status`, for 300 s at most."""
        return self._run(self.line(host, command), status, 300)

    def mpiexec(self, args, *, status=0, limit_s=300):
        """Runs mpiexec over all hosts and waits for the exit status `status`.

        Raises:
            subprocess.TimeoutExpired: It took longer than `limit_s`.
        """
        return self._run(self.mpiexec_line(args), status, limit_s)

    def _run(self, line, status, limit_s):
        environ = self.environment()
        ended = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=limit_s, check=False)
        return checked(ended, status)

    def disconnect(self, host):
        """Takes the host off the network, as a pulled cable does."""
        self.exec(HEAD, ["ip", "link", "set", host, "down"])

    def shared_files(self, host):
        """What lies in the host's /dev/shm and temporary folder."""
        return self.exec(host, ["find", "/dev/shm", "/run/tmp", "-mindepth", "1"]).stdout.split()

    def processes(self, host):
        """The command lines of the host's processes, but for the one that holds its namespaces."""
        net = self.exec(host, ["readlink", "/proc/self/ns/net"]).stdout.strip()

        def command_line(process):
            is_here = str((process / "ns/net").readlink()) == net
            return is_here and (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()

        return [line for line in of_processes(command_line) if line != "sleep infinity"]


@contextmanager
def cluster(spec):
    """A cluster for the time of a block. It ends with the block, and with this process however that ends.

    Raises:
        RuntimeError: The hosts could not be made.
    """
    unshare = ["unshare", *AS_ROOT, "--fork", "--kill-child", *_NAMESPACES, "--mount-proc"]
    environ = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])}
    line, pipe = [*unshare, sys.executable, "-m", _MODULE, json.dumps(spec)], subprocess.PIPE
    with subprocess.Popen(
        line, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:  # it ends when its stdin is closed
        if process.stdout.readline() != b"ready\n":
            process.kill()
            raise RuntimeError(f"the cluster could not be made: {process.communicate()[1].decode()}")
        yield Cluster(spec, children_of(process.pid)[0])
