"""What people are told: where in their code mpishare was called, for errors and warnings, and lines of the log."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""How the names of this package's files begin."""

_NOT_OF_USERS = (PACKAGE, contextlib.__file__)
"""The same of the files whose frames may stand between a frame of this package and the user's."""


def call_site() -> str:
    """The file and line of the user's call."""
    return call_of(sys._getframe())[1]


Place = tuple[CodeType, int]
"""Some code, and an instruction in it."""


def place_of_call(depth: int) -> Place:
    """The user's code that called, and the instruction in it: all that `text_of_place` needs.

    Args:
        depth: How many frames up to look first, from this one.
    """
    user = _frames(sys._getframe(depth))[1]
    return user.f_code, user.f_lasti


def text_of_place(code: CodeType, instruction: int) -> str:
    """The file and line of what `place_of_call` returned."""
    lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
    return f"{code.co_filename}:{next(lines, None) or code.co_firstlineno}"


def warn(message: str) -> None:
    """Gives a `RuntimeWarning` that points to the user's call."""
    user = _frames(sys._getframe())[1]
    registry = user.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, RuntimeWarning, user.f_code.co_filename, user.f_lineno, registry=registry)


def log(line: str) -> None:
    """Logs a warning as "mpishare", by Python's logging. Where the program has set up none, it is a line on stderr."""
    from logging import getLogger

    logger = getLogger("mpishare")
    logger.warning("%s", line if logger.hasHandlers() else f"mpishare: {line}")


def current_call() -> str:
    """The user's call that this thread is in, with its file and line."""
    name, where, _ = call_of(sys._getframe())
    return f"{name} at {where}"


def call_of(frame: FrameType) -> tuple[str, str, int]:
    """The user's call that led to a frame within this package: its name, its file and line, and a number for it."""
    call, user = _frames(frame)
    name: str = getattr(call.f_code, "co_qualname", call.f_code.co_name)  # from Python 3.11 on
    return name, f"{user.f_code.co_filename}:{user.f_lineno}", id(call)


def _frames(frame: FrameType) -> tuple[FrameType, FrameType]:
    """The outermost frame of this package that led to a frame, and the user's, which called it.

    Between two frames of this package may stand a context manager made of a generator. The frames of another thread
    lose their `f_back` when it returns, so each is read once.
    """
    call = user = frame
    back = user.f_back
    while back is not None and user.f_code.co_filename.startswith(_NOT_OF_USERS):
        call = user if user.f_code.co_filename.startswith(PACKAGE) else call
        user, back = back, back.f_back
    return call, user
