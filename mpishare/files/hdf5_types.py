"""The types and the attributes of HDF5 objects as types of NumPy and Python, by h5py."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.errors import BackendError
from mpishare.files.errors import FOREIGN_ERRORS, imported, reason_of


class _H5py:
    """The module h5py, which is imported when the first of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        value = vars(self)[name] = getattr(imported("h5py", "HDF5 files"), name)
        return value


h5py: Any = _H5py()
"""h5py for all that read or write HDF5 files. Its use raises BackendError if it is not installed."""


def check_h5py() -> None:
    """Checks that h5py is installed, without importing it.

    Raises:
        BackendError: It is not.
    """
    if find_spec("h5py") is None:
        raise BackendError("HDF5 files need h5py, which is not installed: pip install h5py")


def readable(dtype: np.dtype[Any], column: str = "") -> tuple[np.dtype[Any] | None, list[str]]:
    """What h5py reads of a dtype into items of fixed size or strings; and why not the rest, by column.

    Args:
        dtype: That of h5py.
        column: The column that has it.
    """
    if not dtype.hasobject:
        return dtype, []
    if dtype.subdtype is not None:
        base, reasons = readable(dtype.base, column)
        return None if base is None else np.dtype((base, dtype.shape)), reasons
    if dtype.names is not None:
        columns = {name: readable(dtype[name], f"{column}.{name}" if column else name) for name in dtype.names}
        kept = [(name, inner) for name, (inner, _) in columns.items() if inner is not None]
        reasons = [reason for _, inner in columns.values() for reason in inner]
        return (np.dtype(kept) if reasons else dtype) if kept else None, reasons
    string = h5py.check_string_dtype(dtype)
    if string is not None and string.length is None:
        return dtype, []
    if h5py.check_ref_dtype(dtype) is not None:
        reason = "its items are references into the file, which mean nothing without it."
    else:
        reason = "its items are arrays of variable length. Store them in one array, and in another where each begins."
    return None, [f"column {column!r}: {reason}" if column else reason]


class ObjectNames:
    """The names of the objects that references lead to. HDF5 searches the whole file for each name; this does it once.

    Source:
        The HDF5 reference, H5Iget_name and H5Ovisit.
    """

    def __init__(self) -> None:
        self._names: dict[int, dict[int, str]] = {}  # by the number of the file, and the address of the object

    def of(self, reference: Any, member: Any) -> str | None:
        """The name of the object that `reference`, in an attribute of `member`, leads to; None if it leads nowhere."""
        try:
            target = h5py.h5r.dereference(reference, member.id)
        except (LookupError, ValueError, RuntimeError):  # which of them depends on what lies where the object was
            return None
        info = h5py.h5o.get_info(target)
        if info.fileno not in self._names:
            self._names[info.fileno] = _names_in(h5py.h5i.get_file_id(target))
        return self._names[info.fileno].get(info.addr)


def _names_in(file_id: Any) -> dict[int, str]:
    """The first name of each object of a file, by the address of the object."""
    names = {h5py.h5o.get_info(file_id).addr: "/"}

    def note(name: bytes, info: Any) -> None:  # a result other than None would end the visit
        names[info.addr] = "/" + name.decode(errors="surrogateescape")

    h5py.h5o.visit(file_id, note, info=True)
    return names


def attributes_of(
    member: Any, attributes: Mapping[str, Any], names: ObjectNames, left_out: list[str]
) -> dict[str, Any]:
    """The attributes of a dataset or a group, h5py's object. Those that cannot be read join `left_out`."""
    result = {}
    for name in attributes:
        try:
            result[name] = _plain(attributes[name], member, names)
        except FOREIGN_ERRORS as error:
            left_out.append(f"attribute {name!r} of {member.name!r}: {reason_of(error)}")
    return result


def _plain(value: Any, member: Any, names: ObjectNames) -> Any:
    """`value` without h5py's classes: the name for a reference, None for an empty attribute."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, h5py.Reference):
        return names.of(value, member) if value else None
    if isinstance(value, np.void) and value.dtype.hasobject:
        return tuple(_plain(value[name], member, names) for name in value.dtype.names or ())
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [_plain(item, member, names) for item in value]
    if isinstance(value, np.ndarray):
        return np.array(value, rebuild(describe(value.dtype)))
    return value
