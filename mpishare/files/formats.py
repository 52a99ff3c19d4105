"""The formats that arrays are saved in: which suffix means which, what it can hold, and where the bytes go."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError
from mpishare.files.atomic_file import AtomicFile
from mpishare.files.hdf5_write import check_name, check_stored, lay_out
from mpishare.files.npy import header_of
from mpishare.files.parallel_write import put

_NPY = ".npy"
_HDF5 = (".h5", ".hdf5", ".hdf", ".he5")

METADATA_BYTES = 1 << 20
"""Room that is wanted besides that of the arrays, so that HDF5 does not fail in the midst of its own bytes."""


class Format(Protocol):
    """A place in a file for one array."""

    @property
    def dataset(self) -> str | None:
        """Its name in a file that has several."""
        ...

    def stored(self, spec: Spec) -> Spec:
        """How such an array lies in the file.

        Raises:
            SpecError: The format has no name for its dtype.
        """
        ...

    def lay_out(self, new: AtomicFile, spec: Spec) -> int:
        """Makes the place in a new file; returns where the bytes begin."""
        ...


class Npy:
    """The whole of a .npy file."""

    dataset: str | None = None

    def stored(self, spec: Spec) -> Spec:
        """As it does in memory."""
        header_of(spec)
        return spec

    def lay_out(self, new: AtomicFile, spec: Spec) -> int:
        """Writes the header."""
        before = header_of(spec)
        put(new.fd, 0, memoryview(before))
        return len(before)


class Hdf5:
    """A dataset in an HDF5 file, beside those that are there."""

    def __init__(self, dataset: str) -> None:
        self.dataset: str = dataset

    def stored(self, spec: Spec) -> Spec:
        """In C order, which is the only one that HDF5 knows."""
        check_stored(spec)
        return replace(spec, order="C")

    def lay_out(self, new: AtomicFile, spec: Spec) -> int:
        """Makes the dataset in a copy of the old file."""
        has_old = new.old is not None and new.old.st_size > 0
        if has_old:
            new.copy_old()
        new.check_room(spec.nbytes + METADATA_BYTES)
        return lay_out(new.fd, {self.dataset: spec}, adds=has_old)[self.dataset]


def chosen(path: str | os.PathLike[str], dataset: str | None) -> tuple[Path, Format]:
    """The file that `path` names, and the place in it.

    Raises:
        ArgumentError: The suffix is unknown, or `dataset` is missing, or there where it cannot be.
    """
    try:
        file = Path(path)
    except TypeError as error:
        raise ArgumentError(f"path {path!r} is no path: {error}") from error
    if "\0" in str(file):
        raise ArgumentError(f"path {str(file)!r} has a null byte in it.")
    if file.suffix == _NPY:
        if dataset is not None:
            raise ArgumentError(f"{file} is a .npy file, which holds one array without a name; dataset is {dataset!r}.")
        return file, Npy()
    if file.suffix in _HDF5:
        if dataset is None:
            raise ArgumentError(f"{file} is an HDF5 file: name the dataset, as in save(path, array, 'grid').")
        return file, Hdf5(check_name(dataset))
    raise ArgumentError(f"{file} has suffix {file.suffix!r}. Use {_NPY}, or one of {', '.join(_HDF5)} for HDF5.")
