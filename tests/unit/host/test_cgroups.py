"""cgroups: limits and what is left of them, read from files that the tests write."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpishare.host.cgroups import memory_left, memory_limit

V1, V2 = "5:cpu,cpuacct:/x\n4:memory:/a/b\n", "0::/a/b/c\n"
CASES = {
    "the smallest of all levels": (
        V2,
        ["a/b/c/memory.max max", "a/b/memory.max 5000", "a/memory.max 9000"],
        5000,
        5000,
    ),
    "the group with the least left": (
        V2,
        ["a/b/memory.max 9000", "a/b/memory.current 1000", "a/memory.max 10000", "a/memory.current 7000"],
        9000,
        3000,
    ),
    "file pages count as free": (
        V2,
        ["a/memory.max 10000", "a/memory.current 7000", "a/memory.stat anon 4000\ninactive_file 2500"],
        10000,
        5500,
    ),
    "more used than allowed": (V2, ["a/memory.max 10000", "a/memory.current 20000"], 10000, 0),
    "no limit in version 1": (V1, ["memory/a/b/memory.limit_in_bytes 9223372036854771712"], None, None),
    "version 1": (
        V1,
        [
            "memory/a/memory.limit_in_bytes 7000",
            "memory/a/memory.usage_in_bytes 4000",
            "memory/a/memory.stat cache 3000\ninactive_file 1\ntotal_inactive_file 2000",
        ],
        7000,
        5000,
    ),
    "no control groups": ("", [], None, None),
}


@pytest.mark.parametrize(("groups", "files", "limit", "left"), CASES.values(), ids=CASES)
def test_limit_and_bytes_left(tmp_path: Path, groups: str, files: list[str], limit: int | None, left: int) -> None:
    (tmp_path / "proc").write_text(groups)
    for name, text in (file.split(maxsplit=1) for file in files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert memory_limit(tmp_path / "proc", tmp_path) == limit
    assert memory_left(tmp_path / "proc", tmp_path) == left
