"""Keeps a result with the machine and the versions it was measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mpishare as ms

RESULTS = Path(__file__).parent / "results"


def keep(name: str, figures: dict[str, Any], info: ms.Info | dict[str, Any]) -> None:
    """Writes `figures` to results/NAME.json."""
    kept = {"figures": figures, "ground": info if isinstance(info, dict) else info.as_dict()}
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2) + "\n")
