"""`mpishare info`: versions, placement and memory of a job, alone or under mpiexec or srun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import mpishare as ms
from mpishare.cli.parser import Parser

_RESIDENT_SUM = "jobacct_gather/linux"
"""The value of JobAcctGatherType with which Slurm adds the resident memory of all tasks on a node."""

_COUNTED_ONCE = {"usepss", "noshared"}
"""The values of JobAcctGatherParams, in lower case, with which it does not count an array once per rank."""

_WARNING = (
    "Slurm counts a shared array once per rank here, and may end the job by that sum: "
    'see "Memory that Slurm counts" in the manual.'
)


def main(argv: list[str]) -> int:
    """Prints the facts once, on rank 0; a warning about them on stderr."""
    parser = Parser(
        prog="mpishare info",
        description="Versions of MPI, mpi4py and numpy; hosts, ranks and placement; the memory of each node and which "
        "backends fit there. Start it as the job would be started, e.g. mpiexec -n 4 mpishare info.",
    )
    parser.add_argument("--verbose", action="store_true", help="print all of it, as for a report of a problem")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args(argv)
    os.environ.update(additions(os.environ))
    facts = ms.info()
    if ms.topology().rank == 0:
        text = str(facts) if options.verbose else facts.summary
        print(json.dumps(facts.as_dict(), indent=2) if options.json else text, flush=True)
        has_sharers = any(len(node.ranks) > 1 for node in facts.nodes)
        if has_sharers and (warning := accounting_warning()):
            print(f"mpishare info: warning: {warning}", file=sys.stderr)
    return 0


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
    if "SLURM_JOB_ID" not in environ:
        return None
    config = _config(limit_s)
    params = set(config.get("JobAcctGatherParams", "").lower().split(","))
    is_counted_per_rank = config.get("JobAcctGatherType") == _RESIDENT_SUM and not params & _COUNTED_ONCE
    return _WARNING if is_counted_per_rank else None


def _config(limit_s: float) -> dict[str, str]:
    """Slurm's configuration, which every user may read; empty where scontrol does not print it."""
    command = ["scontrol", "show", "config"]
    try:
        output = subprocess.check_output(  # noqa: S603 - the Slurm that the user's PATH names
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(re.findall(r"^(\w+)\s*= *(.*?) *$", output.decode(errors="replace"), re.MULTILINE))
