"""Classes of other libraries that would pickle or copy their arrays: how to pickle them around views instead.

Only for a class whose own pickling cannot be guided by its arrays. Nothing is imported here before its library is.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copyreg import __newobj__  # type: ignore[attr-defined]
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import address_of
from mpishare.errors import SpecError
from mpishare.objects.unshared import LARGE_BYTES, Copied, UnsharedPart

Reduce: TypeAlias = Callable[[Any], Any]
"""How to pickle an object: as `__reduce_ex__` says, NotImplemented for its own way; or that in `Copied`."""


def reducers() -> Sequence[tuple[type, Reduce]]:
    """Classes of libraries that are imported, and how to pickle their objects and objects of derived classes."""
    if sys.modules.keys().isdisjoint(_MODULES):
        return ()
    classes = ((getattr(sys.modules.get(module), name, None), reduce) for module, name, reduce in _TABLE)
    return [(kind, reduce) for kind, reduce in classes if kind is not None]


def _reduce_storage(storage: Any) -> Any:
    """The memory of PyTorch's tensors on the CPU, which several may share.

    As from PyTorch's own pickle of it, it comes back within a typed storage: there tensors of newer dtypes, such as
    float8, look for it.
    """
    import torch

    if storage.device.type != "cpu":
        return NotImplemented
    return _make_storage, (torch.empty(0, dtype=torch.uint8).set_(storage).numpy(),)


def _make_storage(content: NDArray[np.uint8]) -> Any:
    import torch

    storage: Any = torch.UntypedStorage(0)
    if content.nbytes:
        # PyTorch has no read-only tensors, and warns of read-only arrays. So it gets the memory without that flag.
        memory = (ctypes.c_ubyte * content.nbytes).from_address(address_of(content))
        memory.keeps = content  # type: ignore[attr-defined]
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)


def _reduce_typed_storage(storage: Any) -> Any:
    """What tensors pickle: a storage and the dtype."""
    return _make_typed_storage, (type(storage), storage._untyped_storage, storage.dtype)


def _make_typed_storage(kind: Any, storage: Any, dtype: Any) -> Any:
    untyped = getattr(storage, "_untyped_storage", storage)  # of a GPU it comes from PyTorch's pickle
    return kind(wrap_storage=untyped, dtype=dtype, _internal=True)


def _reduce_jax_array(array: Any) -> Any:
    """An array of JAX on the CPU. JAX never writes to an array, and makes one around memory that no one else changes.

    JAX copies items that it keeps in another form than NumPy does, such as integers of 4 bits. Keys of random numbers
    have no form in NumPy.
    """
    from jax import dtypes

    devices = array.devices()
    if dtypes.issubdtype(array.dtype, dtypes.extended):
        return NotImplemented
    if array.weak_type or len(devices) > 1 or devices.pop().platform != "cpu":
        return _make_jax_array, (array.dtype, *array.__reduce__()[:2])
    return _make_jax_array, (array.dtype, _alias_in_jax, (np.asarray(array),))


def _alias_in_jax(items: NDArray[Any]) -> Any:
    import jax

    return jax.device_put(items, may_alias=True)


def _make_jax_array(dtype: np.dtype[Any], make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The array that `make` makes, where this rank has its dtype."""
    made = make(*args)
    if made.dtype != dtype:
        cure = "Set jax_enable_x64 on all ranks or on none."
        raise SpecError(f"JAX makes an array of dtype {made.dtype} of one of {dtype} on this rank. {cure}")
    return made


def _reduce_table(table: Any) -> Any:
    """A table of astropy, whose own `__setstate__` copies its columns, and `__getstate__` those with units.

    One with indices is copied, as astropy copies an index only with its column.
    """
    from astropy.table import Table

    kind = type(table)
    if (kind.__getstate__, kind.__setstate__) != (Table.__getstate__, Table.__setstate__):
        return NotImplemented
    if table.indices:
        nbytes = sum(getattr(column, "nbytes", 0) for column in table.columns.values())
        return Copied(UnsharedPart(f"a {kind.__name__} with an index", nbytes, "its remove_indices(…) before"))
    return __newobj__, (kind,), (dict(table.columns), table.meta), None, None, _set_columns


def _set_columns(table: Any, state: tuple[dict[str, Any], Any]) -> None:
    columns, meta = state
    table.__init__(columns, meta=meta, copy=False)


def _reduce_column_info(info: Any) -> Any:
    """What a column of astropy knows beside its items, but for its table, to which it has a weak reference."""
    make, args, state, *rest = info.__reduce_ex__(5)
    attributes = state and {name: value for name, value in state.items() if name != "parent_table"}
    return make, args, attributes, *rest


def _read_variable_columns(records: Any) -> Any:
    """Reads columns of variable length, whose rows lie behind the items of FITS records, where no view reaches."""
    for column in records.columns:
        if column.format.format in ("P", "Q"):
            records.field(column.name)
    return NotImplemented


def _reduce_frame(frame: Any) -> Any:
    """A frame of polars as its columns, whose own `__getstate__` copies them."""
    return (type(frame), (frame.get_columns(),)) if frame.width else NotImplemented


_FIRST_POLARS = (1, 38)
"""Earlier versions store items into memory that is not their own. On read-only pages that ends by SIGSEGV."""


def _reduce_series(series: Any) -> Any:
    """A column of polars as an array of Arrow, where polars makes of that a column of the same dtype again.

    It copies the categories with their numbers.
    """
    from polars import Object, Series

    if series.dtype == Object:  # polars refuses it
        return NotImplemented
    name = f"column {series.name!r} of dtype {series.dtype.base_type()}"
    part = UnsharedPart(name, series.estimated_size(), "another dtype, such as numbers or polars.String")
    try:
        from polars import CompatLevel, __version__
        from pyarrow import string_view  # noqa: F401 - older ones cannot hold polars' strings
    except ImportError:
        return Copied(part._replace(cure="it with PyArrow, 16 or later"))
    if tuple(map(int, __version__.split(".")[:2])) < _FIRST_POLARS:
        return Copied(part._replace(cure="polars, 1.38 or later"))
    with suppress(ValueError):  # what PyArrow does not know, such as 128-bit integers
        args = series.name, series.to_arrow(compat_level=CompatLevel.newest())
        if Series(*args).dtype == series.dtype and not any(name in str(series.dtype) for name in _CATEGORIES):
            return Series, args
    return Copied(part)


_CATEGORIES = ("Categorical", "Enum")
"""Dtypes of polars, also within others, which polars copies."""


def _reduce_variable(variable: Any) -> Any:
    """A variable of xarray, which pickles the name of its file, or a graph of dask, until it is loaded."""
    if getattr(variable, "_in_memory", True) or variable.nbytes < LARGE_BYTES:
        return NotImplemented
    name = f"a variable of xarray with dimensions {variable.dims}, which is not loaded yet: each rank loads its own"
    return Copied(UnsharedPart(name, variable.nbytes, "its load() before"))


_TABLE: list[tuple[str, str, Reduce]] = [
    ("astropy.io.fits", "FITS_rec", _read_variable_columns),
    ("astropy.table", "Table", _reduce_table),
    ("astropy.utils.data_info", "BaseColumnInfo", _reduce_column_info),
    ("jax", "Array", _reduce_jax_array),
    ("polars", "DataFrame", _reduce_frame),
    ("polars", "Series", _reduce_series),
    ("xarray", "Variable", _reduce_variable),
    ("torch", "UntypedStorage", _reduce_storage),
    ("torch", "TypedStorage", _reduce_typed_storage),
]
"""A module, a class in it, and how to pickle its objects."""

_MODULES = {module for module, _, _ in _TABLE}
