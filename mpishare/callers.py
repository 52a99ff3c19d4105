"""Where in the user's code this package was called."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

__all__ = ["place", "warn"]

_PACKAGE = str(Path(__file__).parent) + os.sep


def place() -> str:
    """The file and line of the caller."""
    frame = _found()[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(words: str) -> None:
    """A `RuntimeWarning` that points to the caller."""
    warnings.warn(words, RuntimeWarning, stacklevel=_found()[1])


def _found() -> tuple[FrameType, int]:
    """The first frame outside of this package, and how many lie before it from that of `place` or `warn` on."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    return frame, depth
