"""Makes the hosts, inside the cluster's namespaces: names, links, addresses, /dev/shm, and an agent in place of ssh."""

import shlex
import subprocess
import sys
from pathlib import Path

from tests.cluster.spec import AGENT, HEAD, HOSTFILE, RUN, VENV, address_of
from tests.processes import wait_until

_AGENT = f"""\
#!/bin/sh
# agent [-options] HOST WORDS...: has a shell on HOST run the words, as ssh would. It keeps the folder and environment.
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
pid=$(cat "{RUN}/hosts/$host") || {{ echo "agent: no host $host" >&2; exit 255; }}
exec nsenter --target "$pid" --net --uts --mount --ipc -- \\
  sh -c 'cd "$0"; TMPDIR=/run/tmp; export TMPDIR; eval "$1"' "$PWD" "$*"
"""


def sh(command):
    """Runs a line of shell; its words on stderr become the error.

    Raises:
        RuntimeError: It failed.
    """
    ended = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{command}\n{ended.stderr.strip()}")


def make_switch(spec):
    """The cluster's own namespace: the bridge, the host "head" on it, common files on a private tmpfs."""
    sh(
        f"mount -t tmpfs -o mode=755 none /run && mkdir -p {RUN}/hosts /run/tmp && chmod 1777 /run/tmp && "
        f"hostname {HEAD} && ip link set lo up && ip link add br0 type bridge && ip link set br0 up && "
        f"ip address add {address_of(HEAD)}/24 dev br0"
    )
    sh(f"mkdir {VENV} && mount --bind {shlex.quote(sys.prefix)} {VENV}")
    Path(AGENT).write_text(_AGENT)
    Path(AGENT).chmod(0o755)
    Path(RUN, "hosts", HEAD).write_text("1")
    names = "".join(f"{address_of(host)} {host}\n" for host in [HEAD, *spec.hosts])
    Path(RUN, "etc-hosts").write_text(f"127.0.0.1 localhost\n{names}")
    sh(f"mount --bind {RUN}/etc-hosts /etc/hosts")
    slots = [f"{host} slots={count}\n" for host, count in zip(spec.hosts, spec.ranks, strict=True)]
    Path(HOSTFILE).write_text("".join(slots))


def make_host(spec, number):
    """One host: a process that holds its namespaces, a link to the bridge, its own /dev/shm and temporary folder."""
    host, shm = spec.hosts[number], spec.shm[number]
    holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "--ipc", "sleep", "infinity"])
    own, process = Path("/proc/self/ns/net").readlink(), Path(f"/proc/{holder.pid}")
    # Its namespaces are made when it has left ours.
    wait_until(lambda: (process / "ns/net").readlink() != own and (process / "comm").read_text() == "sleep\n", 10)
    Path(RUN, "hosts", host).write_text(str(holder.pid))
    inside = f"nsenter --target {holder.pid} --net --uts --mount --ipc --"
    sh(
        f"ip link add {host} type veth peer name eth0 netns {holder.pid} && ip link set {host} master br0 up && "
        f"{inside} sh -ec 'hostname {host}; mount -t tmpfs -o mode=1777,size={shm} none /dev/shm; "
        "mkdir -p /run/tmp; mount -t tmpfs -o mode=1777 none /run/tmp; "
        f"ip link set lo up; ip address add {address_of(host)}/24 dev eth0; ip link set eth0 up'"
    )
    if spec.rate:
        shape = f"root tbf rate {spec.rate} burst 256kb latency 50ms"
        sh(f"tc qdisc add dev {host} {shape} && {inside} tc qdisc add dev eth0 {shape}")
