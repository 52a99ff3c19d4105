"""cgroups: limits and what is left of them, read from files that the tests write."""

from pathlib import Path

import pytest

from mpishare.host.cgroups import memory_left, memory_limit

V1, V2 = "5:cpu,cpuacct:/x\n4:memory:/a/b\n", "0::/a/b/c\n"
STAT_V1 = "cache 3000\ninactive_file 1\ntotal_inactive_file 2000"
FILES_V1 = {"limit_in_bytes": 7000, "usage_in_bytes": 4000, "stat": STAT_V1}
CASES: dict[str, tuple[str, dict[str, object], int | None, int | None]] = {
    "the smallest of all levels": (V2, {"a/b/c/max": "max", "a/b/max": 5000, "a/max": 9000}, 5000, 5000),
    "the least left": (V2, {"a/b/max": 9000, "a/b/current": 1000, "a/max": 10000, "a/current": 7000}, 9000, 3000),
    "pages of files": (V2, {"a/max": 10000, "a/current": 7000, "a/stat": "anon 4000\ninactive_file 2500"}, 10000, 5500),
    "more used than allowed": (V2, {"a/max": 10000, "a/current": 20000}, 10000, 0),
    "no limit in version 1": (V1, {"memory/a/b/limit_in_bytes": 9223372036854771712}, None, None),
    "version 1": (V1, {f"memory/a/{name}": content for name, content in FILES_V1.items()}, 7000, 5000),
    "no control groups": ("", {}, None, None),
}
"""The groups of a process, the files of these and their texts, the limit and what is left of it."""


@pytest.mark.parametrize("name", CASES)
def test_limit_and_bytes_left(tmp_path, name):
    groups, files, limit, left = CASES[name]
    (tmp_path / "proc").write_text(groups)
    for path, text in files.items():
        file = (tmp_path / path).with_name(f"memory.{Path(path).name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    assert memory_limit(tmp_path / "proc", tmp_path) == limit
    assert memory_left(tmp_path / "proc", tmp_path) == left
