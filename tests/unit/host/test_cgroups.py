"""cgroups: limits and what is left of them, read from files that the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpishare.host.cgroups import memory_left, memory_limit

V1, V2 = "5:cpu,cpuacct:/x\n4:memory:/docker/a\n", "0::/slurm/job7/step0\n"
CASES = {
    "the smallest of all levels": (
        V2,
        {"slurm/job7/step0/memory.max": "max", "slurm/job7/memory.max": "5000", "slurm/memory.max": "9000"},
        (5000, 5000),
    ),
    "the group with the least left": (
        V2,
        {
            "slurm/job7/memory.max": "9000",
            "slurm/job7/memory.current": "1000",
            "slurm/memory.max": "10000",
            "slurm/memory.current": "7000",
        },
        (9000, 3000),
    ),
    "file pages count as free": (
        V2,
        {
            "slurm/memory.max": "10000",
            "slurm/memory.current": "7000",
            "slurm/memory.stat": "anon 4000\ninactive_file 2500",
        },
        (10000, 5500),
    ),
    "more used than allowed": (V2, {"slurm/memory.max": "10000", "slurm/memory.current": "20000"}, (10000, 0)),
    "version 1 writes a huge number for no limit": (
        V1,
        {"memory/docker/a/memory.limit_in_bytes": "9223372036854771712"},
        (None, None),
    ),
    "version 1": (
        V1,
        {
            "memory/docker/memory.limit_in_bytes": "7000",
            "memory/docker/memory.usage_in_bytes": "4000",
            "memory/docker/memory.stat": "cache 3000\ninactive_file 1\ntotal_inactive_file 2000",
        },
        (7000, 5000),
    ),
    "no control groups": ("", {}, (None, None)),
}


@pytest.mark.parametrize(("groups", "files", "expected"), CASES.values(), ids=CASES)
def test_limit_and_bytes_left(
    tmp_path: Path, groups: str, files: dict[str, str], expected: tuple[int | None, int | None]
) -> None:
    proc = tmp_path / "proc"
    proc.write_text(groups)
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert (memory_limit(proc, tmp_path), memory_left(proc, tmp_path)) == expected
