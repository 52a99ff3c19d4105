"""Room for arrays in an HDF5 file: datasets that lie in one run, whose bytes anyone may write at their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError, BackendError, SpecError
from mpishare.files.write_buffer import WriteBuffer


def check_h5py() -> Any:
    """The module.

    Raises:
        BackendError: It is not installed.
    """
    try:
        import h5py
    except ImportError as error:
        raise BackendError("HDF5 needs h5py, which is not installed: pip install h5py") from error
    return h5py


def has_mpio() -> bool:
    """Whether h5py is of a build that writes through MPI."""
    return bool(check_h5py().get_config().mpi)


def check_name(dataset: object) -> str:
    """The name of a dataset, from the root of the file on.

    Raises:
        ArgumentError: It is none.
    """
    parts = dataset.strip("/").split("/") if isinstance(dataset, str) else [""]
    if any(part in ("", ".") or "\0" in part for part in parts):
        raise ArgumentError(f"dataset {dataset!r} is no name. Give one such as 'grid' or 'run/grid'.")
    return "/".join(parts)


def check_stored(spec: Spec) -> None:
    """Returns when the bytes of such an array are those of a dataset that h5py reads as the same.

    Raises:
        SpecError: They are not.
    """
    _type_of(spec)


def lay_out(
    fd: int,
    specs: Mapping[str, Spec],
    *,
    adds: bool = False,
    small: Mapping[str, NDArray[Any]] | None = None,
    user_bytes: int = 0,
) -> dict[str, int]:
    """Makes datasets in a file, whatever had their names before.

    Args:
        fd: The open file; it is made anew, or else added to.
        specs: What the datasets are to hold.
        adds: Whether the file has others, which stay.
        small: Datasets with what they hold.
        user_bytes: How much room to leave at the beginning of a new file, 0 or a power of two from 512 on.

    Returns:
        Where the bytes of each dataset of `specs` begin in the file; 0 where there are none.

    Raises:
        OSError: The file is none of HDF5, or cannot be written.
        SpecError: A dtype cannot be stored.
        ArgumentError: A name is that of a group.
    """
    h5py = check_h5py()
    overlay = WriteBuffer(fd)
    created = {} if adds else {"userblock_size": user_bytes}
    with _told_by_hdf5(), h5py.File(overlay, "r+" if adds else "w", **created) as made:
        places = {name: _made(h5py, made, name, spec).get_offset() or 0 for name, spec in specs.items()}
        for name, content in (small or {}).items():
            made.create_dataset(name, data=content, track_times=False)
    overlay.apply()
    return places


def _made(h5py: Any, file: Any, name: str, spec: Spec) -> Any:
    """A dataset whose bytes have their place at once and are not written by HDF5."""
    _check_groups(h5py, file, name)
    if name in file:
        if not isinstance(file[name], h5py.Dataset):
            raise ArgumentError(f"{name!r} is a group, so that no dataset can have the name.")
        del file[name]
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_layout(h5py.h5d.CONTIGUOUS)
    how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    space = h5py.h5s.create_simple(spec.shape) if spec.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.h5d.create(file.id, name.encode(), _type_of(spec), space, how, links)


def _check_groups(h5py: Any, file: Any, name: str) -> None:
    """Returns when the groups that the dataset is to be in are of this file, as its bytes will be.

    Raises:
        ArgumentError: One is behind a link to another file.
    """
    for end in (at for at, letter in enumerate(name) if letter == "/"):
        group = name[:end]
        link = file.get(group, getlink=True)
        if link is None:
            return
        if isinstance(link, h5py.ExternalLink) or _is_elsewhere(file, group):
            raise ArgumentError(f"{group!r} leads to another file, so that no dataset of this one can be in it.")


def _is_elsewhere(file: Any, group: str) -> bool:
    """Whether a link leads out of the file; HDF5 may find nothing there, and 1.10 says so by an error."""
    try:
        return group in file and file[group].file.filename != file.filename
    except KeyError:
        return True


def _type_of(spec: Spec) -> Any:
    """HDF5's own name for the dtype, where it means the same bytes."""
    try:
        found = check_h5py().h5t.py_create(spec.dtype, logical=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"dtype {spec.dtype} cannot be stored in HDF5: {error}. {_cure(spec)}") from error
    if found.get_size() != spec.dtype.itemsize or found.dtype != spec.dtype:
        raise SpecError(
            f"dtype {spec.dtype} cannot be stored in HDF5: it would come back as {found.dtype}. {_cure(spec)}"
        )
    return found


def _cure(spec: Spec) -> str:
    cures = {"U": "Use bytes, e.g. numpy.char.encode(…).", "M": "Use .view('i8').", "m": "Use .view('i8')."}
    return cures.get(spec.dtype.kind, f"Use its bytes, e.g. .view('V{spec.dtype.itemsize}').")


@contextmanager
def _told_by_hdf5() -> Iterator[None]:
    """Has what h5py raises where the file cannot be written be an error of the system."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, ArgumentError | SpecError):
            raise
        raise OSError(f"HDF5: {error}") from error
