"""Compiles kernels, which release Python's lock, and keeps their code for the next job if a folder can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """`function`, compiled at its first call with arguments of new types.

    numba keeps the code in NUMBA_CACHE_DIR if that is set, else beside our own files, or else in the user's folder.
    """
    try:
        return cast("_F", numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # none of these can be written, such as where homes are mounted read-only
        return cast("_F", numba.njit(nogil=True)(function))
