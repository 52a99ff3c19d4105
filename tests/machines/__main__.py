"""`python -m tests.machines`: the core of the tests on other kernels, or a line of shell, in machines of 4 domains."""

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.blackbox.launch import ONE_THREAD, OPEN_MPI, ROOT, environment
from tests.machines.machine import AGENT, PORT, SUITES, missing, run

RANKS = "python -m mpishare run -n"
PYTEST = "pytest -q --color=no -p no:cacheprovider --tb=short -v"
PAGES = f"PRTE_MCA_hwloc_default_binding_policy=core {RANKS} 4 -m tests.machines.pages"
HUGE = "echo {} > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
# What a kernel can change: memory and its maps, what they read and write, other processes, a full memory, a kill.
SHARING = [
    "test_every_root_layout_and_size[3000001]",
    "test_again_and_again_from_arrays_that_change_afterwards",
    "test_a_neighbour_of_the_root_may_change_a_source_that_is_shared_once_it_has_returned",
    "test_writing_is_refused_and_cannot_be_switched_on",
    "test_a_view_on_one_rank_outlives_all_else",
    "test_a_private_view_has_the_same_bits_and_own_changes",
    "test_a_private_view_takes_memory_for_changed_pages_only",
]
FILES = ["test_a_map_reads_nothing_and_holds_one_descriptor", "test_a_private_view_of_a_map_leaves_the_file"]
HANDLE = [
    "test_a_child_reads_the_array_without_mpi_and_is_no_rank",
    "test_an_object_comes_with_all_its_arrays",
    "test_another_user_or_host_has_no_access",
    "test_handles_leave_no_descriptors",
]
TASKS = ["test_items_and_results_are_views_of_the_nodes_one_copy", "test_without"]
CHOSEN = {
    "test_sharing.py": SHARING,
    "transfer/test_node_fill.py": ["test_arrays_reach_every_node[-]", "test_arrays_reach_every_node[-private]"],
    "files/test_load.py": ["test_a_group_is_a_dict_of_arrays_in_one_segment", *FILES],
    "objects/test_handle.py": HANDLE,
    "tasks/test_map.py": TASKS,
}
IN_MPI = ["tests/mpi/memory", *(f"tests/mpi/{file}::{test}" for file, tests in CHOSEN.items() for test in tests)]
UNCHANGED = "few or unexpected or cannot_be_used or nobody_names or cached"
"""Tests of memory whose outcome no kernel changes."""
FAULTS = [
    "tests/faults/test_signals.py::test_killed_rank[2-SIGKILL-during]",
    "tests/faults/test_space.py::test_small_shared_memory",
]
CORE = [
    f"{RANKS} 3 python -m {PYTEST} --timeout=900 -k 'not ({UNCHANGED})' {shlex.join(IN_MPI)}",
    f"python -m {PYTEST} {shlex.join(FAULTS)}",
    *(f"{HUGE.format(policy)} && {PAGES}" for policy in ("always", "never")),
]
MPIEXEC = "mpiexec --leave-session-attached --host vm1:2,vm2:2"
TRANSFER = ["test_sharing.py::" + test for test in SHARING[:2]]
TRANSFER += [f"transfer/test_node_fill.py::test_arrays_reach_every_node[{chunk}-]" for chunk in ("", "100_000")]
JOINED = [
    f"until busybox nc -w 9 vm2 {PORT} < /dev/null; do sleep 1; done",
    f"{MPIEXEC} -n 2 --map-by node python -m mpi4py -m mpishare info",
    f"{MPIEXEC} -n 3 python -m mpi4py -m {PYTEST} --timeout=900 {shlex.join(f'tests/mpi/{test}' for test in TRANSFER)}",
]
"""Two machines, over TCP."""
ENVIRON = {
    **OPEN_MPI,
    "PRTE_MCA_plm_ssh_agent": AGENT,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    **ONE_THREAD,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]),
    "PYTHONDONTWRITEBYTECODE": "1",
}


def compile_tests():
    """Writes the bytecode of the tests, which takes each rank minutes in a machine and could not be kept there."""
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", *IN_MPI, *FAULTS]
    subprocess.run(line, cwd=ROOT, env=environment({}), stdout=subprocess.DEVNULL, check=True)


def main():
    """Returns how many machines failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument("--kernel", action="append", choices=SUITES, help="a version of Linux; default: all of them")
    parser.add_argument("--domains", type=int, default=4, help="how many domains of memory, each with a core")
    parser.add_argument("--joined", action="store_true", help="boot a second machine, vm2, on a network with the first")
    parser.add_argument("--limit", type=int, default=900, help="seconds after which a machine is killed")
    parser.add_argument("command", nargs="?", help="a line of shell, run in the project's folder in place of the tests")
    options = parser.parse_args()
    if lacking := missing():
        parser.error(f"{', '.join(lacking)} not installed; make machine-packages brings it")
    lines = [options.command] if options.command else JOINED if options.joined else CORE
    command = (
        "(failed=0; "
        + " ".join(f"echo; echo {shlex.quote(line)}; {line} || failed=1;" for line in lines)
        + " exit $failed)"
    )
    if not options.command:
        compile_tests()
    outcomes = []
    for version in options.kernel or SUITES:
        begin = time.monotonic()
        status = run(
            version,
            command,
            ENVIRON,
            domains=options.domains,
            is_joined=options.joined,
            limit_s=options.limit,
        )
        outcomes.append(status)
        outcome = "killed" if status is None else f"exit status {status}"
        print(f"== Linux {version}: {outcome}, {time.monotonic() - begin:.0f} s", flush=True)
    return sum(status != 0 for status in outcomes)


if __name__ == "__main__":
    raise SystemExit(main())
