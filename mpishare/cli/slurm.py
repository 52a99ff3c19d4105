"""How Slurm counts the shared memory of the job that this process belongs to."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

_RESIDENT_SUM = "jobacct_gather/linux"
"""The value of JobAcctGatherType with which Slurm adds the resident memory of all tasks on a node."""

_COUNTED_ONCE = {"usepss", "noshared"}
"""The values of JobAcctGatherParams, in lower case, with which it does not count an array once per rank."""

_WARNING = (
    "Slurm counts a shared array once per rank here, and may end the job by that sum: "
    'see "Memory that Slurm counts" in the manual.'
)


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
