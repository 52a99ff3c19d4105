"""The cluster itself: hosts that are apart, links of a speed, and nothing left when its owner is killed."""

import json
import os
import select
import sys

from tests.blackbox.launch import environment, started
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
    hosts.exec("h1", ["sh", "-c", "exit 7"], status=7)
    hosts.exec("h9", ["true"], status=255)


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
    with started(line, hosts.environment(), "ready") as server:
        hosts.exec("h1", [sys.executable, "-c", SEND])
        rate = float(server.communicate()[0])
    assert rate < 1.1 * 50e6
    counts = json.loads(hosts.exec("h2", ["ip", "-json", "-statistics", "link", "show", "eth0"]).stdout)[0]["stats64"]
    assert 16 << 20 < counts["rx"]["bytes"] < 1.1 * (16 << 20)
    assert counts["tx"]["bytes"] < 1 << 20
    hosts.cut("h2")
    assert "timed out" in hosts.exec("h1", [sys.executable, "-c", SEND], status=1).stderr


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
    with started([sys.executable, "-c", OWNER], environment({}), "up") as owner:
        unshare = children_of(owner.pid)[0]
        watches = [os.pidfd_open(pid) for pid in (unshare, *children_of(unshare))]
    for watch in watches:
        assert select.select([watch], [], [], 60)[0]
        os.close(watch)
