"""How kernels are compiled: to run without Python's lock, and kept for the next job where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """`function` as machine code, made at its first call with arguments of such types.

    numba keeps it beside our own files, or else in the user's folder, or in the one that NUMBA_CACHE_DIR names.
    """
    try:
        return cast("_F", numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # none of these can be written, as on nodes that mount homes read-only
        return cast("_F", numba.njit(nogil=True)(function))
