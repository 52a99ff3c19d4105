"""What this machine lacks for a cluster, and the command that brings it."""

import os
import shutil
import subprocess
from pathlib import Path

_HOSTS = ("ip", "tc", "nsenter", "unshare")
_SLURM = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
_CURE = "make cluster-packages brings it"
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # not on the PATH of an ordinary user
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])


def missing(*, slurm):
    """One reason a line; none when all is there."""
    lacking = _not_installed(_HOSTS)
    if not lacking and not _may_make_hosts():
        lacking.append("hosts need root, or a user allowed user namespaces; run as root")
    if slurm:
        lacking += _not_installed(_SLURM)
        if not list(Path("/usr/lib").glob("*/libpmix.so")):
            lacking.append(f"libpmix.so is not installed; {_CURE}")
        if os.geteuid():
            lacking.append("slurmd needs root; run as root")
    return lacking


def missing_strace():
    """One reason a line why system calls cannot be made to fail; none when they can."""
    return _not_installed(("strace",))


def missing_namespaces():
    """One reason a line why ranks of one host cannot have namespaces of their own; none when they can."""
    lacking = _not_installed(("unshare",))
    if not lacking and not (
        _may("--user", "--map-current-user") and _may("--mount", "--pid", "--fork", "--mount-proc")
    ):
        lacking.append("ranks with namespaces of their own need root and user namespaces; run as root")
    return lacking


def _not_installed(names):
    lacking = [name for name in names if shutil.which(name, path=_PATH) is None]
    return [f"{', '.join(lacking)} not installed; {_CURE}"] if lacking else []


def _may_make_hosts():
    """Whether the kernel lets us make the namespaces of a host."""
    return _may("--net", "--mount", "--pid", "--fork", "--mount-proc")


def _may(*options):
    """Whether a process may have namespaces of its own by these options of unshare."""
    user = [] if os.geteuid() == 0 or "--user" in options else ["--user", "--map-root-user"]
    return subprocess.run(["unshare", *user, *options, "true"], capture_output=True, check=False).returncode == 0
