"""Which dtypes are bytes of a fixed size, and the description of a dtype as plain data."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpishare.errors import SpecError

_DTYPE_STR = re.compile(r"[<>|][biufcSUVmM]\d{0,10}(\[\d{0,10}[a-zA-Zμ]+\])?")
"""What dtype.str is for dtypes that can be shared. numpy.dtype itself accepts far more, and evaluates some of it."""

_NUMBER_KINDS = "biufc"

HAS_NUMPY_2 = int(np.__version__.split(".")[0]) >= 2

_BUILT_IN = 1
"""dtype.isbuiltin of NumPy's own numbers in this machine's byte order."""


_FIRST_FOREIGN = 256
"""NPY_USERDEF, the first dtype.num of dtypes that other libraries register."""


def is_native_number(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is a boolean or number of NumPy in this machine's byte order, which `dtype.str` describes.

    Of equal dtypes either all are or none is. `dtype.isbuiltin` differs: it is 0 for an unpickled one.
    """
    return dtype.kind in _NUMBER_KINDS and dtype.isnative and not is_foreign(dtype)


def is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is defined outside NumPy, such as bfloat16: NumPy gives it a number of its own, or none."""
    return not 0 <= dtype.num < _FIRST_FOREIGN


def has_gaps(dtype: np.dtype[Any]) -> bool:
    """Whether an item has bytes of no column. In a view of some columns, they are the other columns' bytes."""
    base = dtype.base
    if base.names is None:
        return False
    columns = [base[name] for name in base.names]
    return sum(column.itemsize for column in columns) != base.itemsize or any(map(has_gaps, columns))


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuses objects, pointers, and dtypes whose meaning their description does not carry.

    Raises:
        SpecError: It names the column, and what to use instead.
    """
    if dtype.hasobject:
        raise SpecError(f"dtype {dtype} cannot be shared: {_reason_of_objects(dtype)}")
    if dtype.isbuiltin == _BUILT_IN and not is_foreign(dtype):
        return
    try:
        rebuilt = rebuild(describe(dtype))
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecError(f"dtype {dtype} cannot be shared: NumPy cannot rebuild it: {error}") from error
    if rebuilt != dtype or rebuilt.fields != dtype.fields:
        raise SpecError(
            f"dtype {dtype} cannot be shared: the name of its type alone would make {rebuilt} of it. "
            f"Share its bytes, e.g. .view('V{dtype.itemsize}'), and view them back."
        )


def _reason_of_objects(dtype: np.dtype[Any]) -> str:
    """Where the objects are, and what to use instead."""
    for name in dtype.names or ():
        if dtype[name].hasobject:
            return f"column {name!r} holds Python objects. Use a fixed width for it, e.g. .astype('S')."
    if dtype.kind == "T":
        return "its strings live outside the array. Use a fixed width, e.g. .astype('U')."
    return "it holds Python objects. Use a fixed width, e.g. .astype('S') or .astype('f8')."


def describe(dtype: np.dtype[Any]) -> Any:
    """`dtype` as plain data that JSON carries.

    It is a string; or [base, shape]; or a dict of columns with their offsets; or, for a dtype that is defined outside
    NumPy, a dict of the module and the name of the type of its items.

    Raises:
        TypeError: The title of a column is not a string.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [describe(base), list(shape)]
    if is_foreign(dtype):
        return {"module": dtype.type.__module__, "name": dtype.type.__qualname__, "itemsize": dtype.itemsize}
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    columns = [dtype.fields[name] for name in dtype.names]
    if any(len(column) > 2 and not isinstance(column[2], str) for column in columns):
        raise TypeError("the title of a column is not a string")
    return {
        "names": list(dtype.names),
        "formats": [describe(column[0]) for column in columns],
        "offsets": [column[1] for column in columns],
        "titles": [column[2] if len(column) > 2 else None for column in columns],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
        "record": dtype.type is np.record,
    }


def rebuild(description: Any, module_of: Callable[[str], Any] = import_module) -> np.dtype[Any]:
    """The dtype that `describe` described. `module_of` gives the module of a type outside NumPy, by its name.

    Raises:
        SpecError: The module of its items cannot be imported on this rank.
        ValueError, TypeError, KeyError: It is not such a description.
    """
    if isinstance(description, str):
        if not _DTYPE_STR.fullmatch(description):
            raise ValueError(f"{description!r} is not a dtype of a fixed size")
        return np.dtype(description)
    if isinstance(description, list):
        base, shape = description
        return np.dtype((rebuild(base, module_of), tuple(shape)))
    if "module" in description:
        return _foreign_dtype(module_of, description["module"], description["name"])
    columns = {key: description[key] for key in ("names", "offsets", "titles", "itemsize")}
    columns["formats"] = [rebuild(column, module_of) for column in description["formats"]]
    dtype: np.dtype[Any] = np.dtype(columns, align=description["aligned"])  # type: ignore[call-overload]
    return np.dtype((np.record, dtype)) if description["record"] else dtype


def _foreign_dtype(module_of: Callable[[str], Any], module: str, name: str) -> np.dtype[Any]:
    """The dtype whose items have the type `name` of `module`."""
    try:
        kind = attrgetter(name)(module_of(module))
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"dtype {name} is of module {module}, which cannot be imported on this rank: {error}. "
            "Install it for all ranks."
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise ValueError(f"{module}.{name} is not a type of items of arrays")
    return np.dtype(kind)


def empty_array(dtype: DTypeLike | None) -> NDArray[Any]:
    """An array of no items as NumPy allocates it: 'S' and 'U' get a length, a subarray's lengths join the shape.

    Raises:
        SpecError: NumPy does not know the dtype.
    """
    try:
        return np.empty(0, dtype)
    except (TypeError, ValueError, SyntaxError) as error:  # numpy.dtype evaluates parts of a string
        raise SpecError(f"dtype {dtype!r} is not understood by NumPy: {error}") from error
