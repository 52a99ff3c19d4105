"""Saves arrays to a file, whole or not at all."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.comm import mpi
from mpishare.comm.agreement import NO_PAYLOAD, agree
from mpishare.comm.callsite import warn
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, checked_path
from mpishare.files.atomic_file import AtomicFile, write_exactly
from mpishare.files.errors import file_errors
from mpishare.files.hdf5_write import lay_out, stored_type
from mpishare.files.npy import header_of
from mpishare.files.replace_file import ROOT, Blocks, Replacement
from mpishare.progress_bar import check_tqdm
from mpishare.transfer.rows import describe_rows, rows_of, told_rows

_NPY = ".npy"
_NPY_NAME = ""
"""The name that stands for the array of a .npy file, which has none."""

_HDF5 = (".h5", ".hdf5", ".hdf", ".he5")


@dataclass(frozen=True)
class Saved:
    """What `save` did with an array.

    Attributes:
        path: The file.
        dataset: The dataset in it, None in a .npy file.
        shape: The shape of the array in the file.
        nbytes: Its bytes.
        way: How they were written. "root": by rank 0. "node": by all ranks, which are on one node. "hosts": by all
            ranks, on a file system that lets several hosts write to one file at the same time. "streams": by the ranks
            of rank 0's node, to which the others sent theirs.
    """

    path: Path
    dataset: str | None
    shape: tuple[int, ...]
    nbytes: int
    way: str


def save(
    path: str | os.PathLike[str],
    array: NDArray[Any] | Mapping[str, NDArray[Any] | None] | None,
    dataset: str | None = None,
    *,
    distributed: bool | Collection[str] = False,
    progress: bool = False,
    comm: mpi.Comm | None = None,
) -> Any:
    """Saves an array that all ranks have, or the rows of each rank, as .npy or in HDF5; or several arrays in HDF5.

    The bytes go to a new file in the same folder, which takes the name of the old one when it is on the disk. So a
    reader, at any time and also after a crash, sees the old file or the new one. The first save of a later job removes
    what a killed one left in the folder. No rank holds a second copy of an array. A file that is replaced passes on
    its group, permissions, ACL and extended attributes, as far as this user may set them. Symbolic links to it are
    followed; hard links keep the old file, and a warning says so.

    Args:
        path: The file. Its suffix chooses the format: .npy; or .h5, .hdf5, .hdf, .he5, which need h5py.
        array: Without `distributed`, the array of rank 0; other ranks' is ignored, with a warning if its shape is
            another. With it, the rows of each rank, none or more; they are stacked in rank order. For an HDF5 file also
            a dict of arrays by the names of their datasets, the same names on all ranks: all are saved, or none.
        dataset: The name of the dataset of one array in an HDF5 file, with slashes between groups. A contiguous dataset
            of that name, shape and dtype is filled anew. Any other is replaced by a contiguous one, which takes its
            attributes and all its names (hard links). The file's other contents are copied, which takes time and room
            for all of them, once a call.
        distributed: Whether each rank has rows of its own; of several arrays also the names of those.
        progress: Whether rank 0 shows bytes, rate and remaining time; see `mpishare.map`. Needs tqdm.
        comm: The ranks; MPI_COMM_WORLD when None.

    Returns:
        A `Saved`: what is in the file, and how it was written, which follows from the nodes and the file system. For a
        dict of arrays a dict of these, by the same names.

    Raises:
        SpecError: An array holds Python objects, or the format has no name for its dtype. In HDF5 dates and times are
            opaque data, as h5py stores them.
        ArgumentError: The suffix is unknown; `dataset` is missing, given for .npy or for a dict, or is or has a group
            that is a link; names of a dict lead to one dataset, or `distributed` has a name that the dict has not; or
            a dataset that would be replaced has dimension scales, or is one.
        FileError: The file cannot be written: no such folder, no permission, no room, a folder of that name, not an
            HDF5 file, or another process writes to it. It has the `errno`. The old file is still there, unless the
            error says that the new one is and only its folder could not be synced.
        CapacityError: The file would lie in memory, on tmpfs or ramfs, and does not fit. The old one is still there.
        StallError: A rank, or its disk, took longer than MPISHARE_TIMEOUT. The old file is still there, unless the
            error says that the new one takes its name.
        BackendError: h5py or tqdm is needed and not installed.
        MismatchError: The ranks gave different arguments, or rows of different dtype or shape.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        T. S. Pillai et al., "All file systems are not created equal", OSDI 2014; NumPy Enhancement Proposal 1.

    Example:
        >>> import mpishare as ms, numpy as np, os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "rows.npy")
        ...     saved = ms.save(file, np.arange(6.0).reshape(2, 3), distributed=True)
        ...     np.load(file).tolist(), saved.way
        ([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 'node')
    """
    with collective("save", comm) as call:
        context = call.context
        is_root = context.topology.rank == ROOT
        file = Path(checked_path(path))
        arrays = _by_dataset(file, array, dataset)
        if isinstance(distributed, bool) or not isinstance(array, Mapping):
            rows = list(arrays) if distributed else []
        else:
            rows = [_checked_dataset(name) for name in names_in(distributed, array)]
        specs = specs_of(file, arrays, rows, is_root=is_root)
        if progress and is_root:
            check_tqdm()
        names = [name for name in arrays if name != _NPY_NAME]
        kinds = [f"{name}: {describe_rows(specs[name])}".removeprefix(": ") for name in rows]
        payload = call.agree(f"save({file}, {names or '…'}, distributed={kinds}, {progress=})", shapes_of(arrays, rows))
        warn_of_others(context, payload)
        dataset = names[0] if len(names) == 1 else None
        new = Replacement(context, file, arrays, specs, rows, _lay_out, dataset=dataset, progress=progress)
        way = new.run()
    saved = [Saved(file, name or None, array.spec.shape, array.spec.nbytes, way) for name, array in new.blocks.items()]
    return dict(zip(array, saved, strict=True)) if isinstance(array, Mapping) else saved[0]


def _by_dataset(file: Path, array: Any, dataset: str | None) -> dict[str, Any]:
    """The arrays by the names of their datasets, from the root of an HDF5 file on and without a slash at their ends.

    Raises:
        ArgumentError: The suffix is unknown; or a name is missing, given for .npy, given twice, or not one for h5py.
    """
    is_several = isinstance(array, Mapping)
    if file.suffix == _NPY:
        if dataset is not None or is_several:
            raise ArgumentError(f"{file} is a .npy file, which holds one array without a name. Leave the name out.")
        return {_NPY_NAME: array}
    if file.suffix not in _HDF5:
        raise ArgumentError(f"{file} has suffix {file.suffix!r}. Use {_NPY}, or one of {', '.join(_HDF5)} for HDF5.")
    if (dataset is None) != is_several:
        forms = "save(path, array, 'grid') or save(path, {'grid': array})"
        raise ArgumentError(f"{file} is an HDF5 file: name the dataset of each array once, as in {forms}.")
    arrays = {_checked_dataset(name): value for name, value in (array if is_several else {dataset: array}).items()}
    if is_several and len(arrays) < len(array):
        raise ArgumentError(f"{list(array)} has a name twice, as slashes at the ends of a name are left out.")
    return arrays


def _checked_dataset(name: object) -> str:
    parts = name.strip("/").split("/") if isinstance(name, str) else [""]
    if any(part in ("", ".") or "\0" in part for part in parts):
        raise ArgumentError(f"dataset {name!r} is not a name. Give one such as 'grid' or 'run/grid'.")
    return "/".join(parts)


def names_in(names: object, arrays: Mapping[str, object]) -> list[str]:
    """The argument `distributed` as a list in the order of `arrays`.

    Raises:
        ArgumentError: It is not a collection of names of arrays.
    """
    wanted = {None} if isinstance(names, str) or not isinstance(names, Iterable) else set(names)
    if not wanted <= arrays.keys():
        known = ", ".join(map(repr, arrays))
        raise ArgumentError(f"distributed is {names!r}; expected a collection of names from {known}.")
    return [name for name in arrays if name in wanted]


def shapes_of(arrays: Mapping[str, Any], distributed: Collection[str]) -> bytes:
    """The payload of the agreement before `warn_of_others`: a checksum of this rank's shapes, told as numbers of rows.

    So the bitwise OR of all ranks tells whether they differ. Nothing from a rank that has None for one.
    """
    shapes = [getattr(array, "shape", None) for name, array in arrays.items() if name not in distributed]
    if not shapes or None in shapes:
        return NO_PAYLOAD
    return told_rows(crc32(repr(shapes).encode()))


def warn_of_others(context: Context, payload: bytes) -> None:
    """Warns on the root if ranks gave different shapes, as those with rows of their own do.

    Collective:
        Over the communicator, as a program may make the warning an error.
    """
    bits, inverted = struct.unpack_from("<qq", payload)
    if bits & inverted:
        with agree(context.collective_comm):
            if context.topology.rank == ROOT:
                warn("the arrays of other ranks have other shapes and are not saved. Pass distributed= to save rows.")


def specs_of(
    path: Path, arrays: Mapping[str, Any], distributed: Collection[str], *, is_root: bool, any_dtype: bool = False
) -> dict[str, Spec]:
    """The specs of arrays in a file, by name: on the root of all, on other ranks of the distributed ones.

    Args:
        path: The file to name in errors.
        arrays: The arrays by the names of their datasets; by `_NPY_NAME` the array of a .npy file.
        distributed: The names of the arrays whose rows lie on all ranks.
        is_root: Whether this rank is the root.
        any_dtype: Whether an HDF5 file may hold an array as its bytes; see `hdf5_write.lay_out`.

    Raises:
        SpecError: An array cannot be shared, or on the root not stored.
        BackendError: On the root: h5py is not installed.
    """
    specs = {}
    for name in arrays if is_root else distributed:
        with file_errors(path, name or None):
            specs[name] = rows_of(arrays[name]) if name in distributed else Spec.of(arrays[name])
            if is_root and name:
                if not any_dtype:
                    stored_type(specs[name])
                specs[name] = replace(specs[name], order="C")  # the only one in HDF5
            elif is_root:
                header_of(specs[name])
    return specs


def _lay_out(new: AtomicFile, blocks: Blocks) -> Sequence[int]:
    """Writes the .npy header, or makes the datasets in a copy of the old file; returns the offsets of the arrays."""
    specs = {name: array.spec for name, array in blocks.items()}
    if _NPY_NAME in specs:
        content = header_of(specs[_NPY_NAME])
        write_exactly(new.fd, 0, memoryview(content))
        return [len(content)]
    adds = new.old is not None and new.old.st_size > 0
    if adds:
        new.copy_old()
    return lay_out(new.fd, new.path, specs, adds=adds)
