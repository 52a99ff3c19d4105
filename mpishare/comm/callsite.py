"""Where in the user's code mpishare was called, for errors and warnings."""

from __future__ import annotations

import contextlib
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


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame is this package's, or stands between two of them: a context manager made of a generator."""
    return frame.f_code.co_filename.startswith((PACKAGE, contextlib.__file__))


def _user_frame() -> tuple[FrameType, int]:
    """The first frame outside of this package, and its depth seen from `call_site` or `warn`."""
    frame, depth = sys._getframe(1), 1
    while frame.f_back is not None and _is_ours(frame):
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def current_call() -> str:
    """The user's call that this thread is in, with its file and line."""
    name, where, _ = call_of(sys._getframe())
    return f"{name} at {where}"


def call_of(frame: FrameType) -> tuple[str, str, int]:
    """The user's call that led to a frame within this package: its name, its file and line, and a number for it."""
    call, user = frame, frame
    while user.f_back is not None and _is_ours(user):
        call = user if user.f_code.co_filename.startswith(PACKAGE) else call
        user = user.f_back
    name: str = getattr(call.f_code, "co_qualname", call.f_code.co_name)  # from Python 3.11 on
    return name, f"{user.f_code.co_filename}:{user.f_lineno}", id(call)
