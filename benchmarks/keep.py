"""What several benchmarks do: keep a result with what it was measured with, and ask for the memory held."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mpishare as ms

RESULTS = Path(os.environ.get("BENCHMARK_RESULTS") or Path(__file__).parent / "results")
"""Elsewhere for a trial whose figures are not to be kept."""

FACTS = "BENCHMARK_FACTS"
"""The variable in which `benchmarks.run` tells a script the commit, the machine, its limits and the command."""


def keep(name: str, figures: dict[str, Any], info: ms.Info | dict[str, Any] | None = None) -> None:
    """Writes `figures` to NAME.json among the results, with the facts, and with what the job says of its ranks."""
    kept = {"facts": _facts(), "figures": figures}
    if info is not None:
        kept["ground"] = info if isinstance(info, dict) else info.as_dict()
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")


def kept_figures(name: str) -> dict[str, Any]:
    """What NAME.json has, to be added to, if it is of the same code and commit; nothing otherwise."""
    file = RESULTS / f"{name}.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    is_same = all(kept.get("facts", {}).get(fact) == _facts().get(fact) for fact in ("code", "commit"))
    figures: dict[str, Any] = kept["figures"] if kept and is_same else {}
    return figures


def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(os.environ.get(FACTS, "{}"))
    return facts


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
