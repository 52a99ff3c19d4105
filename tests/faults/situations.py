"""The situations in which the ranks of a host share a kernel, but not all that a plain job has."""

import json
import shlex
import sys
from typing import Any, NamedTuple

from tests.blackbox.launch import AS_ROOT, other_python, run

_PROGRAMS = "tests.faults.programs"
_SHM = "mount -t tmpfs -o size={} none /dev/shm || exit; "
_RUN = '"$@"; status=$?; find /dev/shm -mindepth 1; exit $status'
_LIST = 'find /dev/shm -mindepth 1 -printf " %f"; echo'
_KILL = (
    f'for call in {{calls}}; do "$@" $call >&2; printf $?; {_LIST}; done; '
    f"sleep 1.1; {{python}} -m mpishare clean --yes >&2; {_LIST}"
)
_USER = ["unshare", "--user", "--map-current-user"]
_EVERY_SECOND = f'[ $((OMPI_COMM_WORLD_RANK % 2)) = 0 ] || set -- {shlex.join(_USER)} "$@"; exec "$@"'
WITHOUT_ADVICE = (sys.executable, "-m", f"{_PROGRAMS}.without_advice")
_NO_MEMFD = (
    "import os, runpy, sys; del os.memfd_create, sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__')"
)
_FOLDERS = {f"OMPI_MCA_{component}_backing_directory": "/dev/shm" for component in ("btl_sm", "osc_sm")}


class Situation(NamedTuple):
    """How a job is launched.

    Attributes:
        shm: Size of its own /dev/shm.
        job: What the command line of the job begins with.
        rank: What the command line of each rank begins with.
        python: The arguments of Python, before a module and its arguments.
        environ: What is added to the environment.
        is_mpich: Whether it runs on MPICH; else on Open MPI.
        kills: System calls that make the first memory of a node, of which MPI leaves a file.
        backend: That which it takes of itself.
    """

    shm: str = "50%"
    job: tuple[str, ...] = ()
    rank: tuple[str, ...] = ()
    python: tuple[str, ...] = ("-m",)
    environ: tuple[tuple[str, str], ...] = ()
    is_mpich: bool = False
    kills: tuple[str, ...] = ("ftruncate", "unlink")
    backend: str = "window"

    def run(self) -> tuple[dict[str, Any], list[str]]:
        """Runs the program in it, on 4 ranks.

        Returns:
            What the program printed, and the files that the job left in /dev/shm.
        """
        facts, *left = self._run(_RUN, "situation", 4).splitlines()
        return json.loads(facts), left

    def kill(self) -> list[list[str]]:
        """Runs a job of 2 ranks for each of `kills`, of which a rank gets SIGKILL at this system call.

        Returns:
            For each job its exit status, and the files that were then in /dev/shm. Last those after `mpishare clean`,
            which leaves files that are younger than a second.
        """
        script = _KILL.format(calls=" ".join(self.kills), python=shlex.quote(self._interpreter))
        # MPICH's launcher now and then misses that a rank in a PID namespace has ended.
        situation = self._replace(environ=(*self.environ, ("MPIEXEC_TIMEOUT", "20")))
        return [line.split() for line in situation._run(script, "killed", 2).split("\n")[:-1]]

    @property
    def _interpreter(self) -> str:
        return other_python("mpich") if self.is_mpich else sys.executable

    def _run(self, script: str, program: str, size: int) -> str:
        """What the shell script prints, whose "$@" is a job of so many ranks."""
        host = ["unshare", *AS_ROOT, "--mount", "sh", "-c", _SHM.format(self.shm) + script, "sh"]
        rank = [*self.rank, self._interpreter, "-m", "mpi4py", *self.python, f"{_PROGRAMS}.{program}"]
        job = [*host, *self.job, self._interpreter, "-m", "mpishare", "run", "-n", str(size), "--", *rank]
        return str(run(job, {**_FOLDERS, **dict(self.environ)}, limit_s=100).stdout)


PLAIN, FILE = "plain", "memmap in memory"
PLAIN_MPICH = Situation(is_mpich=True, kills=("write", "unlink"))
SITUATIONS = {
    PLAIN: Situation(),
    "a user namespace per rank": Situation(rank=(*_USER,)),
    "a user namespace for every second rank": Situation(rank=("sh", "-c", _EVERY_SECOND, "sh")),
    # Open MPI 5.0.11 dies where ranks have PID namespaces of their own, and so does MPICH 5.0.2 if it uses CMA itself.
    "a PID namespace per rank": PLAIN_MPICH._replace(
        rank=("unshare", *AS_ROOT, "--pid", "--fork", "--kill-child", "--mount-proc"),
        environ=(("MPIR_CVAR_CH4_CMA_ENABLE", "0"),),
    ),
    "a Python without os.memfd_create": Situation(python=("-c", _NO_MEMFD)),
    "an MPI that finds each rank alone": Situation(
        environ=(("MPIR_CVAR_NOLOCAL", "1"),), is_mpich=True, kills=("ftruncate",), backend=FILE
    ),
    "a /dev/shm of 64 MiB": Situation(shm="64m", backend=FILE),
    "a kernel that refuses all advice on memory": Situation(job=WITHOUT_ADVICE, kills=("fallocate",), backend=FILE),
}
