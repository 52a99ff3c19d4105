"""The cluster itself: hosts that are apart, commands that work, and nothing left however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from tests.cluster.cluster import ROOT, ClusterError, find, running, start
from tests.cluster.conftest import SESSION, Make, leaves_nothing
from tests.cluster.spec import make_spec

COMMAND = [sys.executable, "-m", "tests.cluster"]
NAME = f"{SESSION}-command"


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m tests.cluster` on a cluster of the test's own."""
    line = [*COMMAND, "--name", NAME, *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_hosts_are_apart(make: Make) -> None:
    one = make(3, shm="64m,128m,256m")
    for host, kib in (("h1", 64 << 10), ("h2", 128 << 10), ("h3", 256 << 10)):
        assert one.exec(host, ["hostname"]).stdout == f"{host}\n"
        assert str(kib) in one.exec(host, ["df", "-k", "/dev/shm"]).stdout
        one.exec(host, ["touch", f"/dev/shm/of-{host}"])
        assert one.exec(host, ["ls", "/dev/shm"]).stdout == f"of-{host}\n"
    namespaces = [one.exec(host, ["readlink", "/proc/self/ns/net"]).stdout for host in ("h1", "h2", "h3", "head")]
    assert len(set(namespaces)) == 4


def test_words_arrive_as_they_are(make: Make) -> None:
    one = make(1, name="words")
    words = ["a b", "$HOME", "it's", '"', "*", ""]
    ended = one.exec("h1", [sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
    assert ended.stdout == f"{words}\n"
    assert one.exec("h1", ["pwd"]).stdout.strip() == os.getcwd()  # noqa: PTH109 - what the shell would say
    assert one.exec("h1", ["sh", "-c", "exit 7"]).returncode == 7
    assert one.exec("h9", ["true"]).returncode == 255


SERVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 7777)); print("ready", flush=True)
link = server.accept()[0]; start = time.monotonic(); count = 0
while chunk := link.recv(1 << 20): count += len(chunk)
print(count / (time.monotonic() - start))
"""
SEND = "import socket; link = socket.create_connection(('h2', 7777), 5); link.sendall(bytes(16 << 20))"


def test_links_hold_their_rate(make: Make) -> None:
    one = make(2, rate="400mbit", name="rate")
    words = one.words("h2", [sys.executable, "-c", SERVE])
    with subprocess.Popen(words, env=one.environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert one.exec("h1", [sys.executable, "-c", SEND]).returncode == 0
        rate = float(server.stdout.readline())
    assert rate < 1.1 * 50e6
    received, sent = one.counters()["h2"]
    assert 16 << 20 < received < 1.1 * (16 << 20)
    assert sent < 1 << 20
    one.cut("h2")
    assert "timed out" in one.exec("h1", [sys.executable, "-c", SEND]).stderr


def test_two_clusters_at_once(make: Make) -> None:
    first, second = make(2, name="first"), make(2, name="second")
    assert first.exec("h1", ["hostname"]).stdout == second.exec("h1", ["hostname"]).stdout == "h1\n"
    first.exec("h2", ["touch", "/dev/shm/here"])
    assert second.exec("h2", ["ls", "/dev/shm"]).stdout == ""
    with pytest.raises(ClusterError, match="is up already"):
        start(first.spec)


def test_from_the_command_line() -> None:
    with leaves_nothing():
        ended = command("up", "--hosts", "2", "--ranks-per-host", "2,1", "--shm", "64m")
        try:
            assert "h1, h2 and head" in ended.stdout
            assert f"{NAME}: 2 hosts, ranks (2, 1)" in command("status").stdout
            assert command("exec", "h2", "hostname").stdout == "h2\n"
            hello = "from mpi4py import MPI; print(MPI.Get_processor_name())"
            told = command("mpiexec", "-n", "3", sys.executable, "-c", hello).stdout.replace("\0", "").split()
            assert sorted(told) == ["h1", "h1", "h2"]
            assert command("kill", "h2").returncode == 0
        finally:
            assert command("down").returncode == 0
        assert "no cluster named" in command("down").stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["up", "--hosts", "0"], "1 to 200 hosts"),
        (["up", "--shm", "much"], "has a size"),
        (["up", "--rate", "fast"], "has a rate"),
        (["up", "--ranks-per-host", "1,2"], "2 values for 3 hosts"),
        (["exec", "h1", "true"], "no cluster named"),
    ],
)
def test_bad_words(words: list[str], told: str) -> None:
    ended = command(*words)
    assert ended.returncode == 1
    assert told in ended.stderr


def test_a_host_that_is_not_there(make: Make) -> None:
    make(1, name="command")
    assert "no host h7; there are h1 and head" in command("exec", "h7", "true").stderr
    assert "no host h7" in command("cut", "h7").stderr


OWNED = f"{SESSION}-owned"
OWNER = """
import os, signal, sys, time
from tests.cluster.cluster import cluster
from tests.cluster.spec import make_spec
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
with cluster(make_spec(2, name=sys.argv[1], slurm=os.geteuid() == 0)):
    print("up", flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_owner_however_that_ends(number: signal.Signals) -> None:
    with leaves_nothing():
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, OWNED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"up\n"
            first = os.pidfd_open(find(OWNED).pid)
            owner.send_signal(number)
            owner.communicate(timeout=30)
        finally:
            owner.kill()
        assert select.select([first], [], [], 30)[0]
        os.close(first)
        _wait_until_gone(OWNED)


def test_it_ends_when_its_first_process_is_killed() -> None:
    with leaves_nothing():
        one, process = start(make_spec(2, name=f"{SESSION}-first-process"))
        os.kill(one.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert not [other for other in running() if other.spec == one.spec]


def _wait_until_gone(name: str) -> None:
    """Waits until no process tells of the cluster: its starter is collected by whoever inherits it."""
    deadline = time.monotonic() + 10
    while any(one.spec.name == name for one in running()):
        assert time.monotonic() < deadline
        os.sched_yield()
