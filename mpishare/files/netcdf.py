"""netCDF files: version 4, which is HDF5 by the rules of netCDF, and version 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.files.errors import FOREIGN_ERRORS, file_errors, h5py, imported
from mpishare.files.hdf5_read import Hdf5File
from mpishare.files.sliced import LibraryFile
from mpishare.files.stored import Stored
from mpishare.host.procfs import reopening_path

# h5netcdf says which variables a file has, by which names, and how long their dimensions are. HDF5 reads the variables.
# These names of the format, from the netCDF documentation, "File Format Specifications", tell where a variable lies:

_NAMED_LIKE_A_DIMENSION = "_nc4_non_coord_"
"""What the dataset of a variable begins with if the variable has the name of a dimension, but is not its coordinate."""

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
"""What the attribute NAME of a dimension without a variable begins with."""

_OF_FILES = b"_NCProperties", b"_nc3_strict"
_OF_DIMENSIONS = "_Netcdf4Dimid"
"""Attributes that only the netCDF library writes: in each file since version 4.4.1, and in most older ones."""


class NetcdfFile(Hdf5File):
    """A netCDF-4 file."""

    @cached_property
    def _netcdf(self) -> Any:
        opened = imported("h5netcdf", "netCDF-4 files").File(self.handle)
        self.file.callback(opened.close)
        return opened

    def _group(self, path: str) -> Any:
        """h5netcdf's group of that path."""
        return self._netcdf[path] if path.strip("/") else self._netcdf

    @cached_property
    def _size_of(self) -> Callable[[Any], int]:
        """The length of a dimension. h5netcdf asks all variables for one, so each once."""
        return cache(attrgetter("size"))

    def _length(self, group: Any, dimension: str) -> int:
        """The length of a dimension that a group sees."""
        while dimension not in group.dimensions:
            group = group.parent
        return self._size_of(group.dimensions[dimension])

    def member(self, name: str) -> Any:
        """See `Hdf5File`: what has that name in netCDF."""
        group, _, last = name.rpartition("/")
        owner = self._netcdf
        for part in filter(None, group.split("/")):
            if part not in [*owner.groups]:  # of the mapping itself, `in` opens the group and hides its errors
                return None
            owner = owner.groups[part]
        if last and last not in [*owner.variables, *owner.groups]:
            return None
        hidden = f"{group}/{_NAMED_LIKE_A_DIMENSION}{last}"
        return super().member(hidden if self.handle.id.links.exists(hidden.encode()) else name)

    def names(self, name: str, group: Any) -> list[str]:
        """See `LibraryFile`: the variables and the groups."""
        return [*self._group(name).variables, *self._group(name).groups]

    def stored(self, name: str, array: Any) -> Stored:
        """See `Hdf5File`. A variable is as long as its unlimited dimensions, though the file may have fewer items."""
        stored = super().stored(name, array)
        if stored.reason or h5py.h5s.UNLIMITED not in array.get_space().get_simple_extent_dims(True):
            return stored
        try:
            group, _, last = name.rpartition("/")
            owner = self._group(group)
            shape = tuple(self._length(owner, dimension) for dimension in owner.variables[last].dimensions)
        except (*FOREIGN_ERRORS, AttributeError):  # a dataset of another program has no dimensions of netCDF
            return stored
        return replace(stored, spec=Spec.checked((*shape, *stored.shape[stored.ndim :]), stored.dtype))

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """See `LibraryFile`: without those that only the netCDF library uses."""
        values = self.plain_attributes(name, member, self._group(name).attrs, unread)
        return {key: _plain(key, value) for key, value in values.items()}

    def read_items(self, stored: Stored, ranges: Sequence[range], items: NDArray[Any]) -> None:
        """See `Hdf5File`. What the file lacks up to the length of a dimension are fill values."""
        with file_errors(self.file.path, stored.name, what="it"):
            dataset = self.member(str(stored.name))
            inside = [range(r.start, min(r.stop, end), r.step) for r, end in zip(ranges, dataset.shape, strict=True)]
            if list(map(len, inside)) != list(map(len, ranges)):
                items[tuple(slice(len(indices)) for indices in ranges)] = _fill_value(dataset, items.dtype)
        if all(inside):
            super().read_items(stored, inside, items)


def _fill_value(dataset: Any, dtype: np.dtype[Any]) -> Any:
    """The fill value of h5py's low-level dataset, as an item of a dtype."""
    value = h5py.Dataset(dataset).fillvalue
    if dtype.hasobject:
        return value
    if dataset.get_create_plist().fill_value_defined() != h5py.h5d.FILL_VALUE_USER_DEFINED:
        defaults = imported("h5netcdf.legacyapi", "netCDF-4 files").default_fillvals
        value = defaults.get(dataset.dtype.str[1:], value)
    return np.asarray(value, dataset.dtype).view(dtype)


def is_netcdf(handle: Any) -> bool:
    """Whether h5py's file was written by the netCDF library or h5netcdf.

    Files of versions before 4.4.1 do not say so, but most mark a dimension. Dimension scales of h5py have no such mark.
    """
    root = handle.id

    def is_marked(path: bytes, info: Any) -> bool | None:  # a result other than None ends the visit
        if info.type != h5py.h5o.TYPE_DATASET or not info.num_attrs:
            return None
        if not h5py.h5a.exists(root, b"CLASS", obj_name=path):  # no dimension, as most datasets
            return None
        attributes = h5py.Dataset(h5py.h5o.open(root, path)).attrs
        title = attributes.get("NAME")
        return _OF_DIMENSIONS in attributes or (isinstance(title, bytes) and title.startswith(_NO_VARIABLE)) or None

    try:
        return any(h5py.h5a.exists(root, name) for name in _OF_FILES) or bool(
            h5py.h5o.visit(root, is_marked, info=True)
        )
    except FOREIGN_ERRORS:  # a part of it is damaged
        return False


class Netcdf3File(LibraryFile):
    """A netCDF file of version 3, read by scipy, or netCDF4 if it is of the kind CDF-5."""

    @cached_property
    def _opened(self) -> Any:
        is_cdf5 = self.file.read_bytes(3, 1) == b"\5"
        with file_errors(self.file.path, None, what="netCDF 3"):
            if not is_cdf5:
                file = open(self.file.descriptor, "rb", closefd=False)  # noqa: SIM115 - of the file
                opened = imported("scipy.io", "netCDF 3 files").netcdf_file(file, mmap=True)
            else:
                netcdf4 = imported("netCDF4", "netCDF 3 files of the kind CDF-5")
                opened = netcdf4.Dataset(reopening_path(self.file.descriptor, self.file.path))
                opened.set_auto_maskandscale(False)
        self.file.callback(opened.close)
        return opened

    @cached_property
    def _names(self) -> dict[str, str]:
        """The name that the library gives each variable, by the one in the file."""
        return {_text(name): name for name in self._opened.variables}

    def member(self, name: str) -> Any:
        """See `LibraryFile`. An error must hold no array, or scipy warns that it cannot close the file."""
        if name not in self._names:
            return None if name else [*self._names]
        items = _items_of(self._opened.variables[self._names[name]])
        if items is None:
            raise ValueError("scipy loses its items, as it has an attribute named 'data'. Rename that attribute.")
        return items

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """The attributes of a file or a variable of scipy or netCDF4, as netCDF4 gives them."""
        owner = self._opened.variables[self._names[name]] if name else self._opened
        if _is_netcdf4(owner):
            return {key: owner.getncattr(key) for key in owner.ncattrs()}
        values = owner._attributes.items()  # as xarray asks scipy
        return {_text(key): _plain(_text(key), value) for key, value in values}

    def stored(self, name: str, array: Any) -> Stored:
        """See `LibraryFile`: with the order of bytes of the file, whichever library reads it."""
        stored = super().stored(name, array)
        stored = replace(stored, spec=replace(stored.spec, dtype=stored.dtype.newbyteorder(">")))
        return replace(stored, layout="contiguous", offset=_offset_of(array), chunks=None)


def _is_netcdf4(owner: Any) -> bool:
    """Whether a file or a variable is one of netCDF4. Its class says so: an attribute in the file may have any name."""
    return hasattr(type(owner), "ncattrs")


def _items_of(variable: Any) -> Any:
    """What is sliced of a variable: itself of netCDF4, its mapped array of scipy.

    None where an attribute took the place of that array: scipy sets each attribute on the variable, by its name.
    """
    if _is_netcdf4(variable):
        return variable
    return None if variable.data is variable._attributes.get("data") else variable.data


def _offset_of(data: Any) -> int | None:
    """Where the bytes of an array begin that scipy has mapped, with the file from its first byte on, if in one run."""
    if not isinstance(data, np.ndarray) or not data.flags.c_contiguous:
        return None
    file = data
    while isinstance(file.base, np.ndarray):
        file = file.base
    return data.ctypes.data - file.ctypes.data


def _plain(name: str, value: Any) -> Any:
    """The value of an attribute of h5netcdf or scipy as netCDF4 gives it: in this machine's byte order, text as str.

    The fill value of characters stays bytes.
    """
    if isinstance(value, bytes | str):
        encoded = value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
        return bytes(encoded) if isinstance(value, bytes) and name == "_FillValue" else encoded.decode(errors="replace")
    return value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.generic | np.ndarray) else value


def _text(name: str) -> str:
    """A name of scipy, which takes each byte for a character, or of netCDF4."""
    try:
        return name.encode("latin-1").decode()
    except UnicodeError:
        return name
