"""The cluster itself: hosts that are apart, links of a speed, and nothing left when its owner is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from tests.cluster.cluster import ROOT
from tests.cluster.conftest import Make
from tests.processes import children_of


def test_hosts_are_apart(make: Make) -> None:
    hosts = make(3, shm="1g,64m,256m")
    for host, kib in (("h1", 1 << 20), ("h2", 64 << 10), ("h3", 256 << 10)):
        assert hosts.exec(host, ["hostname"]).stdout == f"{host}\n"
        assert str(kib) in hosts.exec(host, ["df", "-k", "/dev/shm"]).stdout
        hosts.exec(host, ["touch", f"/dev/shm/of-{host}"])
        assert hosts.exec(host, ["ls", "/dev/shm"]).stdout == f"of-{host}\n"
        hosts.exec(host, ["rm", f"/dev/shm/of-{host}"])
    args = ["a b", "$HOME", "it's", '"', "*", ""]
    ended = hosts.exec("h1", [sys.executable, "-c", "import sys; print(sys.argv[1:])", *args])
    assert ended.stdout == f"{args}\n"
    assert hosts.exec("h1", ["sh", "-c", "exit 7"]).returncode == 7
    assert hosts.exec("h9", ["true"]).returncode == 255


SERVE = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 7777)); print("ready", flush=True)
link = server.accept()[0]; start = time.monotonic(); count = 0
while chunk := link.recv(1 << 20): count += len(chunk)
print(count / (time.monotonic() - start))
"""
SEND = "import socket; link = socket.create_connection(('h2', 7777), 5); link.sendall(bytes(16 << 20))"


def test_links_hold_their_rate_until_they_are_cut(make: Make) -> None:
    hosts = make(2, rate="399mbit")  # its own, as it is cut
    line = hosts.line("h2", [sys.executable, "-c", SERVE])
    with subprocess.Popen(line, env=hosts.environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        assert hosts.exec("h1", [sys.executable, "-c", SEND]).returncode == 0
        rate = float(server.stdout.readline())
    assert rate < 1.1 * 50e6
    received, sent = hosts.counters()["h2"]
    assert 16 << 20 < received < 1.1 * (16 << 20)
    assert sent < 1 << 20
    hosts.cut("h2")
    assert "timed out" in hosts.exec("h1", [sys.executable, "-c", SEND]).stderr


OWNER = """
import os, time
from tests.cluster.cluster import cluster
from tests.cluster.spec import make_spec
with cluster(make_spec(2, slurm=os.geteuid() == 0)):
    print("up", flush=True)
    time.sleep(1000)
"""


def test_it_ends_when_its_owner_is_killed() -> None:
    """All else ends with the first process of the namespace: processes, links, mounts and files."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        unshare = children_of(owner.pid)[0]
        watches = [os.pidfd_open(pid) for pid in (unshare, *children_of(unshare))]
    finally:
        owner.kill()
        owner.communicate()
    for watch in watches:
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
