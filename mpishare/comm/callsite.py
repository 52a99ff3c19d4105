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


def current_call() -> str:
    """The user's call that this thread is in, with its file and line."""
    name, where, _ = call_of(sys._getframe())
    return f"{name} at {where}"


def call_of(frame: FrameType) -> tuple[str, str, int]:
    """The user's call that led to a frame within this package: its name, its file and line, and a number for it."""
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    name: str = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from Python 3.11 on
    user = frame.f_back or frame
    return name, f"{user.f_code.co_filename}:{user.f_lineno}", id(frame)
