"""The formats that arrays are saved in: which suffix stands for which, which dtypes it has, where the bytes go."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.hdf5_write import METADATA_BYTES, check_name, lay_out, stored_type
from mpishare.files.npy import header_of

_NPY = ".npy"
_HDF5 = (".h5", ".hdf5", ".hdf", ".he5")


class Npy:
    """A .npy file, which has one array."""

    dataset = None

    def stored(self, spec: Spec) -> Spec:
        """The array as it is in the file: as in memory.

        Raises:
            SpecError: The format has no name for its dtype.
        """
        header_of(spec)
        return spec

    def lay_out(self, new: AtomicFile, spec: Spec) -> int:
        """Writes the header; returns the offset of the array, in bytes."""
        content = header_of(spec)
        new.check_room(len(content) + spec.nbytes)
        write_exactly(new.fd, 0, memoryview(content))
        return len(content)


class Hdf5:
    """A dataset in an HDF5 file, which may have others."""

    def __init__(self, dataset: str) -> None:
        self.dataset = dataset

    def stored(self, spec: Spec) -> Spec:
        """The array as it is in the file: in C order, the only one in HDF5.

        Raises:
            SpecError: HDF5 has no type for its dtype.
        """
        stored_type(spec)
        return replace(spec, order="C")

    def lay_out(self, new: AtomicFile, spec: Spec) -> int:
        """Makes the dataset in a copy of the old file; returns the offset of the array, in bytes."""
        old_bytes = new.old.st_size if new.old is not None else 0
        new.check_room(old_bytes + spec.nbytes + METADATA_BYTES)
        if old_bytes:
            new.copy_old()
        return lay_out(new.fd, {self.dataset: spec}, adds=old_bytes > 0)[self.dataset]


Format: TypeAlias = Npy | Hdf5


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The path of a file or a folder to make.

    Raises:
        ArgumentError: It is not a path.
    """
    try:
        target = Path(path)
    except TypeError as error:
        raise ArgumentError(f"path {path!r} is not a path: {error}") from error
    if "\0" in str(target):
        raise ArgumentError(f"path {str(target)!r} has a null byte in it.")
    return target


def choose_format(file: Path, dataset: str | None) -> Format:
    """The format that the suffix of `file` stands for.

    Raises:
        ArgumentError: The suffix is unknown; or `dataset` is missing, or given for .npy.
    """
    if file.suffix == _NPY:
        if dataset is not None:
            raise ArgumentError(f"{file} is a .npy file, which holds one array without a name; dataset is {dataset!r}.")
        return Npy()
    if file.suffix in _HDF5:
        if dataset is None:
            raise ArgumentError(f"{file} is an HDF5 file: name the dataset, as in save(path, array, 'grid').")
        return Hdf5(check_name(dataset))
    raise ArgumentError(f"{file} has suffix {file.suffix!r}. Use {_NPY}, or one of {', '.join(_HDF5)} for HDF5.")
