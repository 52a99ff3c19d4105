"""What several benchmarks do: keep a result with the machine and the versions, and ask for the memory held."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mpishare as ms

RESULTS = Path(os.environ.get("BENCHMARK_RESULTS") or Path(__file__).parent / "results")
"""Elsewhere for a trial whose figures are not to be kept."""


def keep(name: str, figures: dict[str, Any], info: ms.Info | dict[str, Any]) -> None:
    """Writes `figures` to NAME.json among the results."""
    kept = {"figures": figures, "ground": info if isinstance(info, dict) else info.as_dict()}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")


def pss_bytes(pid: int | str = "self") -> int:
    """Proportional set size of this process, or of another."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))


def peak_bytes(*, reset: bool = False) -> int:
    """The most that this process has held since the last reset.

    Source:
        proc(5), VmHWM of /proc/self/status and clear_refs.
    """
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
