"""Reads the kept results that documents quote, all of one code and one machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from benchmarks import keep

QUOTED = (
    "collectives",
    "files",
    "ground",
    "growth",
    "kernels",
    "messages",
    "messages-hosts",
    "nodes",
    "nodes-links",
    "pool",
    "profile",
    "share-2",
    "share-4",
    "table",
    "ways",
)
"""Names of the results."""

_ALIKE = ("code", "CPU", "cores", "memory, bytes", "kernel", "versions")
_NO_COMMIT = "a commit that was not kept"


@dataclass(frozen=True)
class Kept:
    """What the results say.

    Attributes:
        figures: By name.
        origin: In words: the commit, the date, the machine and the versions.
    """

    figures: dict[str, Any]
    origin: str


def read(names: tuple[str, ...] = QUOTED) -> Kept:
    """The results of these names.

    Raises:
        SystemExit: They are not all of one code and one machine, or the code is in no commit.
    """
    kept = {name: json.loads((keep.RESULTS / f"{name}.json").read_text()) for name in names}
    facts = {name: result.get("facts", {}) for name, result in kept.items()}
    first = facts[names[0]]
    for fact in _ALIKE:
        others = [name for name in names if facts[name].get(fact) != first.get(fact)]
        if others:
            raise SystemExit(
                f"{', '.join(others)}: {fact} differs from that of {names[0]}. A table has results of one code and one "
                "machine: measure all of them again, by make bench or by python -m benchmarks.run --only NAME"
            )
    if str(first.get("code")).endswith("and changes"):
        raise SystemExit("the results are of code that is in no commit: commit mpishare/ and measure again")
    figures = {name: result["figures"] for name, result in kept.items()}
    commits = sorted({facts[name]["commit"] for name in names if "commit" in facts[name]})
    ground = kept["nodes"]["ground"]  # whose ranks are not bound to a core each
    machine, versions = ground["nodes"][0]["machine"], ground["versions"]
    origin = [
        f"Measured at {' and '.join(f'commit `{commit}`' for commit in commits) or _NO_COMMIT}",
        *([f"on {first['date'].split()[0]}", first["CPU"]] if "date" in first else []),
        f"{machine['cores']} cores",
        f"Linux {machine['kernel']}",
        versions["MPI library"].split(",")[0],
        *(f"{fact} {versions[fact]}" for fact in ("mpi4py", "NumPy", "Python")),
    ]
    return Kept(figures, ", ".join(origin) + ". No table has figures of a machine with more cores.")
