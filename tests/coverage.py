"""Branch coverage of the library, over some launches of `tests.run`, compared with the figure that is kept."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.blackbox.launch import ROOT

FOLDER = Path(os.environ.get("COVERAGE_FOLDER", ROOT / "build" / "coverage"))
"""The launch `bare` runs launches in another folder, and adds what they measure here."""
KEPT = Path(__file__).parent / "coverage.json"
LARGEST_FALL = 0.5
"""In percentage points."""
MEASURED = ["unit", "memory-folder", "watched"]
"""Launches that together run nearly all lines. Measuring takes half as long again, so the others are left out."""


def begin():
    """Removes what was measured before, but for what another run of `tests.run` is adding to."""
    if "COVERAGE_FOLDER" not in os.environ:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)


def settings(launch):
    """The environment in which each Python process of a launch measures itself, by coverage's own .pth file."""
    if launch == "bare":
        return {"COVERAGE_FOLDER": str(FOLDER)}
    if launch not in MEASURED:
        return {}
    return {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"), "COVERAGE_FILE": str(FOLDER / "data")}


def percent():
    """The branch coverage of all measured processes together, in percent."""
    environ = {**os.environ, "COVERAGE_FILE": str(FOLDER / "data")}
    report = FOLDER / "report.json"
    for command in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, env=environ, check=True)
    totals = json.loads(report.read_text())["totals"]
    return float(100 * totals["covered_branches"] / totals["num_branches"])


def compare():
    """A line with the branch coverage and the figure kept; it has the word "fell" where that fell too far."""
    measured, kept = percent(), float(json.loads(KEPT.read_text())["branches, percent"])
    verdict = "fell from" if measured < kept - LARGEST_FALL else "was"
    return f"branch coverage {measured:.1f} %; it {verdict} {kept} % (tests/coverage.json)"
