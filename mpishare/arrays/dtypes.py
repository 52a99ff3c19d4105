"""Which dtypes are nothing but bytes of a fixed size, and how one is told to another rank as plain data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from mpishare.errors import SpecError

# What dtype.str gives for the dtypes that can be shared. numpy.dtype itself takes far more, and evaluates some of it.
_DTYPE_STR = re.compile(r"[<>|][biufcSUVmM]\d{0,10}(\[\d{0,10}[a-zA-Zμ]+\])?")


BUILT_IN = 1
"""dtype.isbuiltin of NumPy's own numbers in this machine's byte order."""


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuses what is more than bytes: objects, pointers, and dtypes whose meaning their description does not carry.

    Raises:
        SpecError: It names the column, and what to use instead.
    """
    if dtype.hasobject:
        raise SpecError(f"dtype {dtype} cannot be shared: {_objects_in(dtype)}")
    if dtype.isbuiltin == BUILT_IN:
        return
    try:
        rebuilt = rebuild(describe(dtype))
    except (TypeError, ValueError) as error:
        raise SpecError(f"dtype {dtype} cannot be shared: NumPy cannot make it again: {error}") from error
    if rebuilt != dtype or rebuilt.fields != dtype.fields:
        raise SpecError(
            f"dtype {dtype} cannot be shared: it is defined outside NumPy, and its bytes would arrive as {rebuilt}. "
            f"Share its bytes, e.g. .view('V{dtype.itemsize}'), and view them back."
        )


def _objects_in(dtype: np.dtype[Any]) -> str:
    """Says where the objects are and what to use instead."""
    for name in dtype.names or ():
        if dtype[name].hasobject:
            return f"column {name!r} holds Python objects. Use a fixed width for it, e.g. .astype('S8')."
    if dtype.kind == "T":
        return "its strings live outside the array. Use a fixed width, e.g. .astype('U32')."
    return "it holds Python objects. Use a fixed width, e.g. .astype('S8') or .astype('f8')."


def describe(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data that JSON carries: a string, [base, shape], or a dict of columns with their offsets."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base), list(shape)]
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    columns = [dtype.fields[name] for name in dtype.names]
    if any(len(column) > 2 and not isinstance(column[2], str) for column in columns):
        raise TypeError("a title of a column is not a text")
    return {
        "names": list(dtype.names),
        "formats": [describe(column[0]) for column in columns],
        "offsets": [column[1] for column in columns],
        "titles": [column[2] if len(column) > 2 else None for column in columns],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
        "record": dtype.type is np.record,
    }


def rebuild(told: Any) -> np.dtype[Any]:
    """The dtype that `describe` told of.

    Raises:
        ValueError, TypeError, KeyError: It is no such description.
    """
    if isinstance(told, str):
        if not _DTYPE_STR.fullmatch(told):
            raise ValueError(f"{told!r} is no dtype of a fixed size")
        return np.dtype(told)
    if isinstance(told, list):
        base, shape = told
        return np.dtype((rebuild(base), tuple(shape)))
    columns = {key: told[key] for key in ("names", "offsets", "itemsize")}
    columns["formats"] = [rebuild(column) for column in told["formats"]]
    if any(told["titles"]):
        columns["titles"] = told["titles"]
    dtype: np.dtype[Any] = np.dtype(columns, align=told["aligned"])  # type: ignore[call-overload]
    return np.dtype((np.record, dtype)) if told["record"] else dtype
