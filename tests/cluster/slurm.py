"""Starts a real Slurm inside the cluster: munged, slurmctld on the head, a slurmd on each host."""

import os
import subprocess
from pathlib import Path

from tests.cluster.spec import AGENT, HEAD, RUN, address_of
from tests.processes import wait_until

ETC = f"{RUN}/slurm"
CONFIG = f"{ETC}/slurm.conf"
_SOCKET = f"{RUN}/munge/socket"
_NODE_MEMORY_MIB = 4096  # reported by each host, so that --mem has an effect


def config(spec):
    """slurm.conf: everything in the cluster's own folder, one CPU a slot, answers within seconds.

    cred_expire is also how long a job that was requeued waits before it starts again.
    """
    nodes = "".join(
        f"NodeName={host} NodeAddr={address_of(host)} CPUs={count} RealMemory={_NODE_MEMORY_MIB} State=UNKNOWN\n"
        for host, count in zip(spec.hosts, spec.ranks, strict=True)
    )
    return f"""\
ClusterName=cluster
SlurmctldHost={HEAD}({address_of(HEAD)})
SlurmUser=root
AuthInfo=socket={_SOCKET},cred_expire=5
StateSaveLocation={ETC}/state
SlurmdSpoolDir={ETC}/spool-%n
SlurmctldPidFile={ETC}/slurmctld.pid
SlurmdPidFile={ETC}/slurmd-%n.pid
SlurmctldLogFile={ETC}/slurmctld.log
SlurmdLogFile={ETC}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=512
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=3
MessageTimeout=20
SlurmdTimeout=30
MailProg=/bin/true
{nodes}PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def start(spec):
    """Starts the daemons and waits until every host is idle.

    Raises:
        AssertionError: A daemon did not start; with the end of its log.
    """
    Path(ETC, "state").mkdir(parents=True)
    Path(CONFIG).write_text(config(spec))
    Path(ETC, "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    Path(ETC, "mpi.conf").write_text("PMIxCliTmpDirBase=/run/tmp\n")
    _start_munged()
    os.environ["SLURM_CONF"] = CONFIG
    _start("slurmctld", "-D")
    for host in spec.hosts:
        _start(AGENT, host, f"exec slurmd -D -N {host}")
    wait_until(lambda: _idle_hosts() == len(spec.hosts), 120, _logs)


def _start(*command):
    """Starts a daemon, which writes a log of its own."""
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _start_munged():
    """Munged with a key of its own, so that no other cluster's credentials count here."""
    folder = Path(RUN, "munge")
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{name}-file={folder}/{name}" for name in ("log", "pid", "seed", "key")]
    _start("munged", "--foreground", "--force", f"--socket={_SOCKET}", *files)


def _idle_hosts():
    """How many hosts Slurm says are idle."""
    line = ["sinfo", "--noheader", "--Node", "--format=%T"]
    return subprocess.run(line, capture_output=True, text=True, timeout=20).stdout.split().count("idle")


def _logs():
    """The ends of the daemons' logs."""
    return "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in Path(ETC).glob("*.log"))
