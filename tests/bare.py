"""`python -m tests.bare`: what README.md and CONTRIBUTING.md tell a newcomer, on a machine that has nothing installed.

A mount namespace hides Slurm, munge and MPI. There `make test` and each command of the two documents run, one after the
other as a reader would type them, in a copy of the project whose path has a space, with an empty environment. At the
same time an ordinary user types those of README.md in another copy, and runs tests on 3 ranks.
"""

import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.blackbox.launch import ROOT, copy_project
from tests.cluster.missing import missing

OF_USER = "mpi-3"
"""The launch of tests.run that the ordinary user runs, by the Python that `make test` has set up."""
HIDDEN = re.compile(
    r"(lib)?(mpi|ompi|orte|openmpi|open-|osh|prte|prun|mca_|pmix|munge|unmunge|slurm|hdf5_openmpi)"
    r"|s(acct|acctmgr|alloc|batch|control|info|queue|run)$"
)
"""Beginnings of the names of what is hidden."""
PLACES = ["*bin/*", "lib*/*", "lib*/*/*"]
"""Where in /usr and /usr/local it lies."""
PATH = "/usr/local/bin:/usr/bin:/bin"
ORDINARY = 65534
"""The user "nobody" of every Linux, and its group."""
SETTINGS = ("PIP_", "SSL_", "REQUESTS_", "UV_")
"""Beginnings of the settings that are passed on: how this machine reaches its package index."""
NOT_TYPED = {
    "make test": "is typed once, after those of README.md",
    "python -m tests.run": "runs a part of it",
    ".venv/bin/python -m tests.cluster": "needs Slurm",
    ".venv/bin/python -m tests.machines": "needs QEMU",
}
"""Beginnings of commands that do not run as they stand, and why."""


def reasons():
    """One reason a line why nothing can be hidden on this machine; none when it can."""
    if os.geteuid():
        return ["hiding what is installed needs root; run as root"]
    lacking = missing(slurm=False)
    if not lacking and "\toverlay\n" not in Path("/proc/filesystems").read_text():
        lacking.append("the kernel has no overlayfs; modprobe overlay")
    return lacking


def main():
    """Runs all in a mount namespace of its own, which takes its mounts with it; returns the exit status."""
    with TemporaryDirectory(prefix="bare machine ", dir="/var/tmp") as folder:
        line = ["unshare", "--mount", sys.executable, "-c", "from tests.bare import *; sys.exit(inside(sys.argv[1]))"]
        return subprocess.run([*line, folder], cwd=ROOT, check=False).returncode


def inside(folder):
    """Hides what is installed, and runs the commands as root and as an ordinary user; returns the exit status.

    Installing waits for disks and networks, and style and manual keep one core busy: so both run at once.
    """
    hide(Path(folder, "layers"))
    Path(folder).chmod(0o755)
    root, user = Path(folder, "root"), Path(folder, "user")
    for home in (root, user):
        copy_project(home / "project")
    run("chown", "-R", f"{ORDINARY}:{ORDINARY}", str(user))
    python = shlex.quote(f"{root}/project/.venv/bin/python")
    with ThreadPoolExecutor() as pool:
        of_user = [pool.submit(type_as_user, user, typed_in("README.md"))]
        statuses = [type_as_root(root, [*typed_in("README.md"), "make test"])]
        of_user.append(pool.submit(type_as_user, user, [f"{python} -m tests.run --only {OF_USER}"]))
        statuses.append(type_as_root(root, [*typed_in("CONTRIBUTING.md"), "make docs"]))
    for ended in [future.result() for future in of_user]:
        print(ended.stdout, flush=True)
        statuses.append(ended.returncode)
    statuses.append(type_as_root(root, ["make clean"]))
    return int(any(statuses))


def type_as_root(home, commands):
    """The exit status of the commands, which print as they go."""
    caches = {"UV_CACHE_DIR": Path.home() / ".cache/uv", "PIP_CACHE_DIR": Path.home() / ".cache/pip"}
    return subprocess.run(line_of(home, commands, caches), cwd=home / "project", check=False).returncode


def type_as_user(home, commands):
    """What came of the commands of an ordinary user."""
    line = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", *line_of(home, commands, {})]
    pipe, end = subprocess.PIPE, subprocess.STDOUT
    return subprocess.run(line, cwd=home / "project", stdout=pipe, stderr=end, text=True, check=False)


def line_of(home, commands, environ):
    """The command line that types these commands, with an environment that has nothing else."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    settings = {**environ, **passed, "HOME": home, "TMPDIR": home, "CI": "true", "PATH": PATH}
    return ["env", "-i", *(f"{name}={value}" for name, value in settings.items()), "bash", "-c", script_of(commands)]


def hide(layers):
    """Takes MPI and Slurm out of /usr, and out of the list of libraries in /etc, for this namespace.

    Raises:
        RuntimeError: Something of it is still there.
    """
    layers.mkdir()
    run("mount", "-t", "tmpfs", "none", str(layers))
    for folder in ("/usr", "/etc"):
        upper, work = layers / "upper" / folder[1:], layers / "work" / folder[1:]
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        run("mount", "-t", "overlay", "none", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)
    run("rm", "-rf", *installed())
    run("ldconfig")
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    if left := [*installed(), *(name for name in listed.split() if HIDDEN.match(name))]:
        raise RuntimeError(f"not hidden: {left}")


def installed():
    """What this machine has of what is hidden."""
    places = [path for usr in ("/usr", "/usr/local") for place in PLACES for path in Path(usr).glob(place)]
    return [str(path) for path in places if HIDDEN.match(path.name)]


def run(*command):
    """Runs a command, which must succeed."""
    subprocess.run(command, check=True)


def typed_in(name):
    """The commands of a document, but for those that are not typed here."""
    return [command for command in commands_of((ROOT / name).read_text()) if not command.startswith(tuple(NOT_TYPED))]


def script_of(commands):
    """Prints and runs each command, and prints those that fail at the end."""
    lines = [
        f"echo {shlex.quote(f'$ {command}')}\n{command} || failed+={shlex.quote(f'FAILED {command}')}$'\\n'"
        for command in commands
    ]
    return "\n".join(["failed=", *lines, 'echo "$failed"; test -z "$failed"'])


def commands_of(text):
    """The commands of a document's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


if __name__ == "__main__":
    raise SystemExit(main())
