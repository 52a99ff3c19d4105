"""Files of /proc and /sys, in which the kernel tells of itself."""

from __future__ import annotations

from pathlib import Path


def text_of(file: Path | str) -> str:
    """What a file of the kernel says; nothing where there is no such file, or it is not for us to read."""
    try:
        return Path(file).read_text(errors="surrogateescape")
    except OSError:
        return ""
