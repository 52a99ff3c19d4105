"""The arguments of `Checkpoint` and `Snapshot`, checked before a file is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError
from mpishare.files.region import parse_region


def check_names(arrays: Mapping[str, object]) -> None:
    """Checks the arrays of a checkpoint.

    Raises:
        ArgumentError: `arrays` is not a mapping, or a name cannot be used.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"arrays is of type {type(arrays).__name__}; expected a dict of arrays by name.")
    for name in arrays:
        if not isinstance(name, str) or not name or name == "." or set("/\0") & set(name):
            raise ArgumentError(f"{name!r} is not a name for an array. Give a string without a slash, such as 'grid'.")


def target_rows(region: object, out: object, spec: Spec) -> tuple[int, NDArray[Any]]:
    """Where the bytes of the rows in `region` begin in an array of `spec`; and `out`, or a new array for them.

    Raises:
        ArgumentError: `region` is not a slice of rows, or they do not fit `out`.
    """
    if not isinstance(region, slice) or region.step not in (None, 1):
        raise ArgumentError(f"region is {region!r}. Give a slice without a step, such as partition(n).")
    rows = parse_region(region, spec.shape)[0][0].span(slice(None))
    wanted = Spec(spec.dtype, (len(rows), *spec.shape[1:]))
    start = rows.start * replace(spec, shape=spec.shape[1:]).nbytes
    if out is None:
        return start, wanted.view(np.empty(wanted.nbytes, np.uint8))
    if not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.c_contiguous:
        raise ArgumentError("out must be a numpy.ndarray that is C-contiguous and writable.")
    if not wanted.fits(out):
        raise ArgumentError(f"out has {out.shape}, {out.dtype}, but the rows have {wanted.shape}, {spec.dtype}.")
    return start, out
