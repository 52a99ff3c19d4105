"""Hosts and ranks that are lost in mid-broadcast, and the owner of a cluster: nothing of them is left."""

import os
import select
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.blackbox.launch import environment, started
from tests.cluster.cluster import cluster
from tests.cluster.spec import make_spec
from tests.processes import children_of, wait_until

PROGRAM = [sys.executable, "-m", "tests.faults.programs.signalled"]
TIME_LIMIT_S = 10
OF_THE_LAUNCHER = ("/run/tmp/ompi.", "/run/tmp/prte", "/run/tmp/pmix")

# By itself Open MPI's mpiexec notices a host that went silent after 300 s + 9 probes of 20 s, its time limit or not.
NOTICE_SOON = [
    *("--prtemca", "oob_tcp_keepalive_time", "1"),
    *("--prtemca", "oob_tcp_keepalive_intvl", "1"),
    *("--prtemca", "oob_tcp_keepalive_probes", "2"),
]


@pytest.mark.parametrize("fault", ["killed", "cut off"])
def test_lost_host(fault):
    """A host that loses its power or its network in a broadcast.

    Outcome: mpiexec ends the job within its --timeout; nothing of ours is left on the other hosts.
    """
    with cluster(make_spec(3, rate="400mbit")) as hosts:
        line = hosts.mpiexec_line(["--timeout", str(TIME_LIMIT_S), *NOTICE_SOON, *PROGRAM, "9", "SIGKILL", "never"])
        with started(line, hosts.environment(), "sharing again") as job:
            {"killed": hosts.kill, "cut off": hosts.disconnect}[fault]("h3")
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


@pytest.mark.parametrize("victim", [0, 5], ids=["root", "another rank"])
def test_killed_rank(make, victim):
    """SIGKILL of a rank on one of several hosts during a share.

    Outcome: all ranks end at once, mpiexec mostly too; nothing of ours is left on any host.
    """
    hosts = make(3)
    line = hosts.mpiexec_line(["--timeout", str(6 * TIME_LIMIT_S), *PROGRAM, str(victim), "SIGKILL", "during"])
    with started(line, hosts.environment(), "sharing again") as job:
        wait_until(lambda: not ranks(hosts, hosts.spec.hosts), AT_ONCE_S)
        # Open MPI 5.0's mpiexec itself now and then misses that its last rank has ended.
        with suppress(subprocess.TimeoutExpired):
            job.wait(TIME_LIMIT_S)
        assert job.returncode != 0  # None if it was missed
    for host in hosts.spec.hosts:
        assert [file for file in hosts.shared_files(host) if not file.startswith(OF_THE_LAUNCHER)] == []


OWNER = """
import time
from tests.cluster.cluster import cluster
from tests.cluster.missing import missing
from tests.cluster.spec import make_spec
with cluster(make_spec(2, slurm=not missing(slurm=True))):
    print("up", flush=True)
    time.sleep(1000)
"""


def test_it_ends_when_its_owner_is_killed():
    """All else ends with the first process of the namespace: processes, links, mounts and files."""
    with started([sys.executable, "-c", OWNER], environment({}), "up") as owner:
        unshare = children_of(owner.pid)[0]
        watches = [os.pidfd_open(pid) for pid in (unshare, *children_of(unshare))]
    for watch in watches:
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
