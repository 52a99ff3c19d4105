"""Collects how the tests marked `fault` came out, for the table in CONTRIBUTING.md."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

RESULTS = Path(__file__).parent.parent / "build" / "faults"

_rows: dict[str, dict[str, object]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Notes how each test marked `fault(what, outcome)` came out, and how long it took."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    mark = item.get_closest_marker("fault")
    if report.when == "call" and mark is not None:
        row = _rows.setdefault(mark.args[0], {"outcome": mark.args[1], "passed": 0, "failed": 0, "longest": 0.0})
        row["passed" if report.passed else "failed"] += 1  # type: ignore[operator]
        row["longest"] = max(row["longest"], report.duration)  # type: ignore[call-overload]
    return report  # type: ignore[return-value]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keeps what was found for `python -m tests.faults.table`."""
    if _rows:
        RESULTS.mkdir(parents=True, exist_ok=True)
        name = "-".join(Path(word).name for word in session.config.args)
        (RESULTS / f"{name}.json").write_text(json.dumps(_rows, indent=2, ensure_ascii=False) + "\n")


@pytest.fixture
def tmpdir_watched(tmp_path: Path) -> Iterator[Path]:
    """A folder for TMPDIR that must be empty in the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder
    assert list(folder.rglob("*")) == []
