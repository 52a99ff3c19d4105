"""Fixtures of all tests that run programs."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmpdir_watched(tmp_path: Path) -> Iterator[Path]:
    """A folder for TMPDIR that must be empty in the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder
    assert list(folder.rglob("*")) == []
