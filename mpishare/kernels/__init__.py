"""Compiled work on node-shared arrays that NumPy cannot do in place. Needs numba, and is imported only by its user."""

from __future__ import annotations

try:
    import numba  # noqa: F401 - so that what is missing is named before any part of it is asked for
except ModuleNotFoundError as error:  # other errors are numba's own to tell, such as of a NumPy that is too new
    raise ImportError("mpishare.kernels needs numba, which is not installed: pip install 'mpishare[numba]'") from error

from mpishare.kernels.atomics import add_at, atomic_add
from mpishare.kernels.node_parts import checksum, fill

__all__ = ["add_at", "atomic_add", "checksum", "fill"]
