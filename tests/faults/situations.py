"""The situations in which the ranks of a host share a kernel, but not all that a plain job has; a job of 4 in each."""

import json
import os
import shlex
import sys
from typing import Any, NamedTuple

from tests.blackbox.launch import MPICH, run

_PROGRAM = "tests.faults.programs.situation"
_AS_ROOT = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
_SHM = 'mount -t tmpfs -o size={} none /dev/shm || exit; "$@"; status=$?; find /dev/shm -mindepth 1; exit $status'
_USER = ["unshare", "--user", "--map-current-user"]
_EVERY_SECOND = f'[ $((OMPI_COMM_WORLD_RANK % 2)) = 0 ] || set -- {shlex.join(_USER)} "$@"; exec "$@"'
_OLD_KERNEL = "strace -f -qq --seccomp-bpf -o /dev/null -e trace=madvise -e inject=madvise:error=EINVAL"
_NO_MEMFD = f"import os, runpy; del os.memfd_create; runpy.run_module({_PROGRAM!r}, run_name='__main__')"
_FOLDERS = {f"OMPI_MCA_{component}_backing_directory": "/dev/shm" for component in ("btl_sm", "osc_sm")}


class Situation(NamedTuple):
    """How a job of 4 ranks is launched.

    Attributes:
        shm: Size of its own /dev/shm.
        job: What the command line of the job begins with.
        rank: What the command line of each rank begins with.
        program: The arguments of Python.
        environ: What is added to the environment.
        is_mpich: Whether it runs on MPICH; else on Open MPI.
    """

    shm: str = "50%"
    job: tuple[str, ...] = ()
    rank: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", _PROGRAM)
    environ: tuple[tuple[str, str], ...] = ()
    is_mpich: bool = False

    def run(self, *args: str) -> tuple[dict[str, Any], list[str]]:
        """Runs the program in it.

        Returns:
            What the program printed, and the files that the job left in /dev/shm.
        """
        python = str(MPICH if self.is_mpich else sys.executable)
        host = ["unshare", *_AS_ROOT, "--mount", "sh", "-c", _SHM.format(self.shm), "sh"]
        rank = [*self.rank, python, "-m", "mpi4py", *self.program, *args]
        job = [*host, *self.job, python, "-m", "mpishare", "run", "-n", "4", "--", *rank]
        facts, *left = run(job, {**_FOLDERS, **dict(self.environ)}, limit_s=100).stdout.splitlines()
        return json.loads(facts), left


PLAIN = "plain"
PLAIN_MPICH = Situation(is_mpich=True)
SITUATIONS = {
    PLAIN: Situation(),
    "a user namespace per rank": Situation(rank=(*_USER,)),
    "a user namespace for every second rank": Situation(rank=("sh", "-c", _EVERY_SECOND, "sh")),
    # Open MPI 5.0.11 dies where ranks have PID namespaces of their own, and so does MPICH 5.0.2 if it uses CMA itself.
    "a PID namespace per rank": Situation(
        rank=("unshare", *_AS_ROOT, "--pid", "--fork", "--mount-proc"),
        environ=(("MPIR_CVAR_CH4_CMA_ENABLE", "0"),),
        is_mpich=True,
    ),
    "a Python without os.memfd_create": Situation(program=("-c", _NO_MEMFD)),
    "an MPI that finds each rank alone": Situation(environ=(("MPIR_CVAR_NOLOCAL", "1"),), is_mpich=True),
    "a /dev/shm of 64 MiB": Situation(shm="64m"),
    "a kernel that refuses all advice on memory": Situation(job=(*shlex.split(_OLD_KERNEL),)),
}
