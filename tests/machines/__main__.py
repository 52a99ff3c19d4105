"""`python -m tests.machines`: the core of the tests on other kernels, or a line of shell, in machines of 4 domains."""

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from tests.blackbox.launch import ONE_THREAD, OPEN_MPI
from tests.machines.machine import SUITES, missing, run

RANKS = "python -m mpishare run -n"
PYTEST = "python -m pytest -q --color=no -p no:cacheprovider --tb=short"
PAGES = f"PRTE_MCA_hwloc_default_binding_policy=core {RANKS} 4 -m tests.machines.pages"
HUGE = "echo {} > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
IN_MPI = f"{RANKS} 3 {PYTEST} -m 'not large and not once'"
CORE = [
    *(f"{HUGE.format(policy)} && {PAGES}" for policy in ("always", "never")),
    f"{IN_MPI} tests/mpi/test_sharing.py tests/mpi/memory tests/mpi/transfer",
    f"{IN_MPI} tests/mpi/files/test_load.py tests/mpi/objects/test_handle.py tests/mpi/tasks/test_map.py",
    f"{PYTEST} -m first tests/faults/test_signals.py tests/faults/test_space.py",
]
ENVIRON = {
    **OPEN_MPI,
    **ONE_THREAD,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def main():
    """Returns how many machines failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=SUITES, help="a version of Linux; default: all of them")
    parser.add_argument("--domains", type=int, default=4, help="how many domains of memory, each with a core")
    parser.add_argument("--limit", type=int, default=900, help="seconds after which a machine is killed")
    parser.add_argument("command", nargs="?", help="a line of shell, run in the project's folder in place of the tests")
    options = parser.parse_args()
    if lacking := missing():
        parser.error(f"{', '.join(lacking)} not installed; make machine-packages brings it")
    lines = [options.command] if options.command else CORE
    command = (
        "(failed=0; "
        + " ".join(f"echo; echo {shlex.quote(line)}; {line} || failed=1;" for line in lines)
        + " exit $failed)"
    )
    outcomes = []
    for version in options.kernel or SUITES:
        begin = time.monotonic()
        status = run(version, command, ENVIRON, domains=options.domains, limit_s=options.limit)
        outcomes.append(status)
        outcome = "killed" if status is None else f"exit status {status}"
        print(f"== Linux {version}: {outcome}, {time.monotonic() - begin:.0f} s", flush=True)
    return sum(status != 0 for status in outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
