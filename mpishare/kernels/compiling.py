"""Compiles kernels, which release Python's lock, and keeps their code for the next job in a folder of this user."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """`function`, compiled at its first call with arguments of new types.

    numba keeps the code in NUMBA_CACHE_DIR if that is set, else beside our own files, or else in the user's folder. It
    loads pickles from there, so a folder to which others may write is not used: each process then compiles.
    """
    with suppress(RuntimeError):  # there is no folder, or none that can be written, as where homes are read-only
        if not numba.config.CACHE_DIR:
            Path.home()  # where that is unknown, numba would make a folder "~" in the working folder
        kept = numba.njit(nogil=True, cache=True)(function)
        if _is_private(Path(kept.stats.cache_path)):
            return cast("_F", kept)
    return cast("_F", numba.njit(nogil=True)(function))


def _is_private(folder: Path) -> bool:
    """Whether only this user and root can change the files of numba in `folder`, or put another folder in its place.

    Source:
        safe_path of OpenSSH (misc.c), which looks at the file and at all folders above it. Here one above may be open
        to all if it is sticky, as /tmp is: others can neither rename nor remove what is in it.
    """
    if not folder.is_absolute():  # another folder, as soon as the program changes its working folder
        return False
    own, real = folder.stat(), folder.resolve()
    paths = {*real.parents, folder, *folder.parents, *folder.glob("*.nb?")}
    return own.st_uid == os.geteuid() and not _others_write(own) and all(_is_safe(path.lstat()) for path in paths)


def _is_safe(status: os.stat_result) -> bool:
    is_sticky_folder = stat.S_ISDIR(status.st_mode) and bool(status.st_mode & stat.S_ISVTX)
    return status.st_uid in (0, os.geteuid()) and (is_sticky_folder or not _others_write(status))


def _others_write(status: os.stat_result) -> bool:
    return not stat.S_ISLNK(status.st_mode) and bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
