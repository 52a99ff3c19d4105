"""Compiled work on node-shared arrays that NumPy cannot do in place. Needs numba.

It answers how several ranks add to one array without losing an addition. Only users may call it, by
`from mpishare import kernels`. The rest of mpishare must never import it, since numba is optional.
"""

from __future__ import annotations

try:
    import numba  # noqa: F401 - the error names numba, not a part of it
except ModuleNotFoundError as error:  # not ImportError: numba says itself that NumPy is too new
    raise ImportError("mpishare.kernels needs numba, which is not installed: pip install numba") from error

from mpishare.kernels.atomics import add_at, atomic_add

__all__ = ["add_at", "atomic_add"]
