"""The attributes of HDF5 objects as objects of NumPy and Python, by h5py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.files.errors import FOREIGN_ERRORS, reason_of
from mpishare.files.source import h5py


class _ObjectNames:
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


def attributes_of(members: Mapping[str, Any], left_out: list[str]) -> dict[str, dict[str, Any]]:
    """The attributes of datasets and groups.

    Args:
        members: The datasets and groups as h5py's objects. The result has their keys.
        left_out: The names of attributes that h5py cannot read join it, each with the reason.
    """
    names = _ObjectNames()
    return {key: _attributes(member, names, left_out) for key, member in members.items()}


def _attributes(member: Any, names: _ObjectNames, left_out: list[str]) -> dict[str, Any]:
    attributes, result = member.attrs, {}
    for name in attributes:
        try:
            result[name] = _plain(attributes[name], member, names)
        except FOREIGN_ERRORS as error:
            left_out.append(f"attribute {name!r} of {member.name!r}: {reason_of(error)}")
    return result


def _plain(value: Any, member: Any, names: _ObjectNames) -> Any:
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
