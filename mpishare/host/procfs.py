"""Reads files of /proc and /sys, in which the kernel describes this host."""

from __future__ import annotations

from pathlib import Path


def text_of(file: Path | str) -> str:
    """The text of a kernel file; "" if it does not exist or may not be read."""
    try:
        return Path(file).read_text(errors="surrogateescape")
    except OSError:
        return ""


def number_of(file: Path | str) -> int | None:
    """The number in a kernel file that holds nothing else; None if there is none."""
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def table_of(file: Path | str) -> dict[str, int]:
    """The numbers of a kernel file with a name and a number in each line, by name, such as /proc/meminfo."""
    rows = (line.split() for line in text_of(file).splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows}
