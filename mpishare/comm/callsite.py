"""Where in the user's code mpishare was called, for errors and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""How the names of this package's files begin."""


def call_site() -> str:
    """The file and line of the user's call."""
    frame = _user_frame()[0]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn(message: str) -> None:
    """Gives a `RuntimeWarning` that points to the user's call."""
    warnings.warn(message, RuntimeWarning, stacklevel=_user_frame()[1])


def _user_frame() -> tuple[FrameType, int]:
    """The first frame outside of this package, and its depth seen from `call_site` or `warn`."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, depth = frame.f_back, depth + 1
    return frame, depth
