"""A host and a rank that are lost in mid-broadcast: nothing of them is left."""

import shlex
import subprocess
import sys
from contextlib import suppress

from tests.blackbox.launch import started
from tests.cluster.cluster import cluster
from tests.cluster.spec import make_spec
from tests.processes import wait_until

PROGRAM = [sys.executable, "-m", "tests.faults.programs.signalled"]
TIME_LIMIT_S = 10
OF_THE_LAUNCHER = ("/run/tmp/ompi.", "/run/tmp/prte", "/run/tmp/pmix")

# By itself Open MPI's mpiexec notices a host that went silent after 300 s + 9 probes of 20 s, its time limit or not.
NOTICE_SOON = [
    *("--prtemca", "oob_tcp_keepalive_time", "1"),
    *("--prtemca", "oob_tcp_keepalive_intvl", "1"),
    *("--prtemca", "oob_tcp_keepalive_probes", "2"),
]


def test_lost_host():
    """A host that loses its network in a broadcast.

    Outcome: mpiexec ends the job within its --timeout; nothing of ours is left on the other hosts.
    """
    with cluster(make_spec(3, rate="400mbit")) as hosts:
        line = hosts.mpiexec_line(["--timeout", str(TIME_LIMIT_S), *NOTICE_SOON, *PROGRAM, "9", "SIGKILL", "never"])
        with started(line, hosts.environment(), "sharing again") as job:
            hosts.disconnect("h3")
            output = job.communicate(timeout=6 * TIME_LIMIT_S)[0]
        # The exit status says nothing: Open MPI 5.0's mpiexec returns 0 when it lost a daemon.
        assert "daemon" in output
        assert "h3" in output
        for host in ("h1", "h2"):
            assert hosts.shared_files(host) == []
        assert ranks(hosts, ["h1", "h2"]) == []


AT_ONCE_S = 20


def ranks(hosts, names):
    """The ranks that live on the hosts of these names."""
    lines = [line for host in names for line in hosts.processes(host)]
    return [line for line in lines if line.startswith(shlex.join(PROGRAM))]


def test_killed_rank(make):
    """SIGKILL of the root on one of several hosts during a share.

    Outcome: all ranks end at once, mpiexec mostly too; nothing of ours is left on any host.
    """
    hosts = make(3)
    line = hosts.mpiexec_line(["--timeout", str(6 * TIME_LIMIT_S), *PROGRAM, "0", "SIGKILL", "during"])
    with started(line, hosts.environment(), "sharing again") as job:
        wait_until(lambda: not ranks(hosts, hosts.spec.hosts), AT_ONCE_S)
        # Open MPI 5.0's mpiexec itself now and then misses that its last rank has ended.
        with suppress(subprocess.TimeoutExpired):
            job.wait(TIME_LIMIT_S)
        assert job.returncode != 0  # None if it was missed
    for host in hosts.spec.hosts:
        assert [file for file in hosts.shared_files(host) if not file.startswith(OF_THE_LAUNCHER)] == []
