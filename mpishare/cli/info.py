"""`mpishare info`: versions, placement and memory of a job, alone or under mpiexec or srun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import mpishare as ms
from mpishare.cli import Parser

_RESIDENT_SUM = r"(?m)^JobAcctGatherType\s*= *jobacct_gather/linux *$"
"""The setting with which Slurm adds the resident memory of all tasks on a node."""

_COUNTED_ONCE = r"(?mi)^JobAcctGatherParams\s*=.*\b(usepss|noshared)\b"
"""The settings with which it does not count an array once per rank."""

_WARNING = (
    "Slurm counts a shared array once per rank here, and may end the job by that sum: "
    'see "Memory that Slurm counts" in the manual.'
)


def main(argv: list[str]) -> int:
    """Prints the facts on rank 0; a warning about them on stderr. Returns 1 if ranks of a node share no memory."""
    parser = Parser(
        prog="mpishare info",
        description="Versions of MPI, mpi4py and numpy; hosts, ranks and placement; the memory of each node and which "
        "backends fit there. Start it as the job would be started, e.g. mpiexec -n 4 mpishare info.",
    )
    parser.add_argument("--verbose", action="store_true", help="print all of it, as for a report of a problem")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(argv)
    os.environ.update(additions(os.environ))
    facts = ms.info(probe=True)
    if ms.topology().rank == 0:
        text = str(facts) if options.verbose else facts.summary
        print(json.dumps(facts.as_dict(), indent=2) if options.json else text, flush=True)
        has_sharers = any(len(node.ranks) > 1 for node in facts.nodes)
        if has_sharers and (warning := accounting_warning()):
            print(f"mpishare info: warning: {warning}", file=sys.stderr)
    return int(bool(facts.unshared))


_BTL = "OMPI_MCA_btl"
"""The components of Open MPI that carry messages, or, after a "^", the components that do not."""


def additions(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings with which Open MPI makes no file for messages within the host, where no launcher would remove it.

    Open MPI 5.0.11 itself does not.
    """
    names = environ.get(_BTL) or "^"
    if not names.startswith("^") or any(name.startswith("PMI") for name in environ):
        return {}
    return {_BTL: f"{names},sm,vader".replace("^,", "^")}


def accounting_warning(environ: Mapping[str, str] = os.environ, *, limit_s: float = 2) -> str | None:
    """The warning where Slurm counts the shared memory of this job once per rank; None elsewhere.

    None also where scontrol is missing, fails, or takes longer than `limit_s`.

    Source:
        slurm.conf(5), JobAcctGatherType and JobAcctGatherParams.
    """
    command, null = ["scontrol", "show", "config"], subprocess.DEVNULL
    if "SLURM_JOB_ID" not in environ:
        return None
    try:  # the Slurm that the user's PATH names
        printed = subprocess.check_output(command, stdin=null, stderr=null, timeout=limit_s)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    config = printed.decode(errors="replace")
    is_counted_per_rank = re.search(_RESIDENT_SUM, config) and not re.search(_COUNTED_ONCE, config)
    return _WARNING if is_counted_per_rank else None
