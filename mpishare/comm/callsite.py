"""Where in the user's code mpishare was called, for errors and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def call_site() -> str:
    """The file and line of the user's call."""
    frame = user_frame()[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(message: str) -> None:
    """Gives a `RuntimeWarning` that points to the user's call."""
    warnings.warn(message, RuntimeWarning, stacklevel=user_frame()[1])


def user_frame(depth: int = 1) -> tuple[FrameType, int]:
    """The first frame outside of this package at `depth` or above, and its depth, both seen from the caller."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, depth = frame.f_back, depth + 1
    return frame, depth
