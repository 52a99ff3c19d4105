"""A host that is lost in mid-broadcast ends the job within its time limit, with nothing of ours left elsewhere."""

import shlex
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.blackbox.launch import started
from tests.cluster.cluster import Cluster, cluster
from tests.cluster.conftest import Make
from tests.cluster.spec import make_spec
from tests.processes import wait_until

PROGRAM = [sys.executable, "-m", "tests.faults.programs.signalled"]
TIME_LIMIT_S = 10
OF_THE_LAUNCHER = ("/run/tmp/ompi.", "/run/tmp/prte.", "/run/tmp/pmix")

# By itself Open MPI's mpiexec notices a host that went silent after 300 s + 9 probes of 20 s, its time limit or not.
NOTICE_SOON = [
    *("--prtemca", "oob_tcp_keepalive_time", "1"),
    *("--prtemca", "oob_tcp_keepalive_intvl", "1"),
    *("--prtemca", "oob_tcp_keepalive_probes", "2"),
]


def lose(hosts: Cluster, host: str, fault: str) -> str:
    """Shares without end, loses `host` meanwhile, and waits for mpiexec to end; its last output."""
    unsignalled = [*PROGRAM, "9", "SIGKILL", "never"]
    line = hosts.mpiexec_line(["--timeout", str(TIME_LIMIT_S), *NOTICE_SOON, *unsignalled])
    with started(line, hosts.environment(), "sharing") as job:
        {"killed": hosts.kill, "cut off": hosts.cut}[fault](host)
        return job.communicate(timeout=6 * TIME_LIMIT_S)[0]


@pytest.mark.parametrize("fault", ["killed", "cut off"])
def test_lost_host(fault: str) -> None:
    """A host that loses its power or its network in a broadcast.

    Outcome: mpiexec ends the job within its --timeout; nothing of ours is left on the other hosts.
    """
    with cluster(make_spec(3, rate="400mbit")) as hosts:
        output = lose(hosts, "h3", fault)
        # The exit status says nothing: Open MPI 5.0's mpiexec returns 0 when it lost a daemon.
        assert "daemon" in output
        assert "h3" in output
        for host in ("h1", "h2"):
            assert hosts.shared_files(host) == []
        assert ranks(hosts, ["h1", "h2"]) == []


AT_ONCE_S = 20


def ranks(hosts: Cluster, names: list[str] | None = None) -> list[str]:
    """The ranks that live, on any host or on those of some names."""
    lines = [line for host in names or hosts.spec.hosts for line in hosts.processes(host)]
    return [line for line in lines if line.startswith(shlex.join(PROGRAM))]


def assert_nothing_left(hosts: Cluster) -> None:
    assert ranks(hosts) == []
    for host in hosts.spec.hosts:
        assert [file for file in hosts.shared_files(host) if not file.startswith(OF_THE_LAUNCHER)] == []


@pytest.mark.parametrize("victim", [0, 2, 5], ids=["root", "leader", "another rank"])
def test_killed_rank(make: Make, victim: int) -> None:
    """SIGKILL of a rank on one of several hosts during a share.

    Outcome: all ranks end at once, mpiexec mostly too; nothing of ours is left on any host.
    """
    hosts = make(3)
    line = hosts.mpiexec_line(["--timeout", str(6 * TIME_LIMIT_S), *PROGRAM, str(victim), "SIGKILL", "during"])
    with started(line, hosts.environment(), "sharing") as job:
        wait_until(lambda: not ranks(hosts), AT_ONCE_S)
        # Open MPI 5.0's mpiexec itself now and then misses that its last rank has ended.
        with suppress(subprocess.TimeoutExpired):
            job.wait(TIME_LIMIT_S)
        assert job.returncode != 0  # None if it was missed
    assert_nothing_left(hosts)


def test_stopped_rank(make: Make) -> None:
    """SIGSTOP of a rank on one of several hosts, with MPISHARE_TIMEOUT.

    Outcome: StallError on the others, which names the rank and its host.
    """
    hosts = make(3)
    environ = ["--timeout", str(6 * TIME_LIMIT_S), "-x", "MPISHARE_TIMEOUT=3"]
    ended = hosts.mpiexec([*environ, *PROGRAM, "4", "SIGSTOP", "before"], status="failure")
    assert "StallError: " in ended.stderr
    assert "rank 4 on host h3 is in no call of mpishare, or does not run" in ended.stderr
    assert_nothing_left(hosts)
