"""Branch coverage of the library, over the launches of `tests.run`, compared with the figure that is kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.blackbox.launch import ROOT

FOLDER = ROOT / "build" / "coverage"
KEPT = Path(__file__).parent / "coverage.json"
LARGEST_FALL = 0.5
"""In percentage points."""
NOT_MEASURED = ["mpich", "hdf5-mpi", "large-2", "large-3", "faults", "cluster"]
"""Launches with a Python that has no coverage, that take long, or whose processes are killed."""


def begin() -> None:
    """Removes what was measured before."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)


def settings(launch: str) -> dict[str, str]:
    """The environment in which each Python process of a launch measures itself, by coverage's own .pth file."""
    if launch in NOT_MEASURED:
        return {}
    return {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"), "COVERAGE_FILE": str(FOLDER / "data")}


def percent() -> float:
    """The branch coverage of all processes together, in percent."""
    environ = {**os.environ, "COVERAGE_FILE": str(FOLDER / "data")}
    report = FOLDER / "report.json"
    for command in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, env=environ, check=True)
    totals = json.loads(report.read_text())["totals"]
    return float(100 * totals["covered_branches"] / totals["num_branches"])


def compare() -> str:
    """A line with the branch coverage and the figure kept; it has the word "fell" where that fell too far."""
    found, kept = percent(), float(json.loads(KEPT.read_text())["branches, percent"])
    verdict = "fell below" if found < kept - LARGEST_FALL else "is to be compared with"
    return f"branch coverage: {found:.1f} %, which {verdict} {kept} % (tests/coverage.json)"
