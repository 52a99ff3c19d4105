"""What a file stores, and what of it a call loads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.region import View, parse_region
from mpishare.arrays.spec import Spec
from mpishare.errors import ArgumentError, FileError, checked_path, place_in
from mpishare.files.formats import reader_of
from mpishare.files.input_file import FormatReader, InputFile
from mpishare.files.sliced import path_of
from mpishare.files.stored import Listing, Stored, check_loadable, listed, names_in, stored_or_reason, with_widths
from mpishare.files.tiles import Selection, wanted

_NATIVE = "native"
"""What `load` takes for the dtype that an array has, in the byte order of this machine."""

_SHOWN_REASONS = 8
_STRINGS_AT_A_TIME = 1 << 16


def stored(path: str | os.PathLike[str], dataset: str | None = None) -> dict[str, Stored]:
    """Returns what a file stores, without reading it: dtype, shape, bytes and layout of each array.

    Args:
        path: A file, or a zarr folder, of a format that `load` takes.
        dataset: An array of the file, or a group of an HDF5 or a zarr file; None for the whole file.

    Returns:
        A `Stored` for each array, by the name of its dataset; by "" for the array of a `.npy` file. Strings of variable
        length count as one byte each, as their length is not known before they are read. A dataset that cannot be
        loaded, or a link that cannot be followed, has a `reason`. A dataset with several names has the same `Stored`
        under each, so that `{*stored(path).values()}` has each once.

    Raises:
        ArgumentError: `path` is not a path, or `dataset` is not a string.
        FileError: There is no such file or dataset, or it is damaged.
        BackendError: The library of its format is not installed.

    Collective:
        No, local.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.zeros((2, 3)))
        ...     grid = ms.stored(f"{folder}/grid.npy")[""]
        >>> grid.shape, grid.nbytes, grid.layout
        ((2, 3), 48, 'npy')
    """
    path, name = checked(path, dataset)
    with InputFile(path) as file:
        listing = reader_of(file).listing(name, attributes=False)
    if listing.root is None:
        return {array.name or "": array for array in listing.arrays}
    return {
        path_of(f"{listing.root}/{inner}"): listing.arrays[tree]
        for inner, tree in names_in(listing.tree, path)
        if not isinstance(tree, dict)
    }


def inspect_file(reader: FormatReader, name: str | None, region: Any, *, attributes: bool) -> Listing:
    """What a call loads.

    Args:
        reader: What reads the file.
        name: A dataset or a group; None for the whole file.
        region: An index into one array; None for all of it. Strings are as wide as the longest that it selects.
        attributes: Whether to read the attributes as well.

    Raises:
        FileError: There is no such file or dataset, or it is damaged.
        SpecError: The dataset cannot be loaded. Of a group it is left out, unless it has nothing else.
    """
    listing = reader.listing(name, attributes=attributes)
    if any(array.is_text and not array.reason for array in listing.arrays):
        with suppress(ArgumentError):  # which every rank finds by itself
            listing = _with_widths(reader, listing, region)
    if not listing.is_group or len(listing.arrays) == 1:
        check_loadable(reader.file.path, listing.arrays[0])
    elif listing.arrays and all(array.reason for array in listing.arrays):
        reasons = listed(islice(listing.left_out, _SHOWN_REASONS))
        raise FileError(reader.file.path, name, f"none of its {len(listing.arrays)} arrays can be loaded: {reasons}")
    return listing


def selections(
    listing: Listing, region: Any, dtype: np.dtype[Any] | str | None = None
) -> tuple[dict[int, Selection], View]:
    """What to read of each array, by its number; and what makes the result of the one array.

    Args:
        listing: The arrays.
        region: An index into one array; None for all of it.
        dtype: What `checked_dtype` returned; None converts nothing.

    Raises:
        ArgumentError: The region is not within the array; or an array cannot be converted without losing more than
            precision.
    """
    made: dict[int, Selection] = {}
    view: View = np.asarray
    for number, array in enumerate(listing.arrays):
        if not array.reason:
            axes, view = parse_region(() if region is None else region, array.shape[: array.ndim])
            other_dtype = _other_dtype(listing.path, array, dtype)
            made[number] = Selection(array, tuple(axes), other_dtype, array.spec.order)
    return made, view


def _with_widths(reader: Any, listing: Listing, region: Any) -> Listing:
    """The listing, with strings as wide as a load needs them."""
    arrays = list(listing.arrays)
    for number, selection in selections(listing, region)[0].items():
        if selection.stored.is_text:
            name, widened = str(selection.stored.name), partial(_as_wide_as_longest, reader, selection)
            arrays[number] = stored_or_reason(listing.path, name, "unknown", widened)
    return listing._replace(arrays=arrays)


def _as_wide_as_longest(reader: Any, selection: Selection) -> Stored:
    """The array with strings as wide as the longest of the selected ones, which are read to find it.

    Raises:
        FileError: They cannot be read.
    """
    stored, dtype = selection.stored, selection.stored.dtype
    widths: Iterable[int] = repeat(1)
    for strips in selection.cuts(_STRINGS_AT_A_TIME):
        items = wanted(reader.strings(stored, [strip.indices for strip in strips]), strips)
        longest = (max(map(len, strings.flat), default=0) for strings in _strings_in(items))
        dtype, widths = items.dtype, list(map(max, widths, longest))
    return replace(stored, spec=replace(stored.spec, dtype=with_widths(dtype, iter(widths)).base))


def _strings_in(items: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The strings of an array, or of each of its columns that has some."""
    if items.dtype.kind == "O":
        yield items
    for name in items.dtype.names or ():
        yield from _strings_in(items[name])


def checked_dtype(dtype: Any) -> np.dtype[Any] | str | None:
    """`dtype` as one of NumPy, or as "native", or None.

    Raises:
        SpecError: It is none of these, or has Python objects.
        ArgumentError: It is one of subarrays.
    """
    if dtype is None or (isinstance(dtype, str) and dtype == _NATIVE):
        return dtype
    spec = Spec.make((), dtype)
    if spec.shape:
        raise ArgumentError(f"dtype {dtype!r} is one of subarrays. Give the dtype of their items, {spec.dtype}.")
    checked: np.dtype[Any] = np.dtype(dtype)
    return checked


def _other_dtype(path: str, stored: Stored, dtype: np.dtype[Any] | str | None) -> np.dtype[Any] | None:
    """The dtype to which an array is converted; None if it has that already, or is left as it is."""
    wanted = stored.dtype.newbyteorder("=") if isinstance(dtype, str) else dtype
    if wanted is None or wanted == stored.dtype:
        return None
    try:  # strings without a width, and times without a unit, get that which NumPy gives them
        return np.empty(0, stored.dtype).astype(wanted, casting="same_kind").dtype
    except TypeError as error:
        place = place_in(path, stored.name)
        reason = f"{place} has dtype {stored.dtype}, which NumPy does not cast to {wanted} as same_kind."
        raise ArgumentError(reason) from error


def checked(path: Any, dataset: Any) -> tuple[str, str | None]:
    """`path` as a string, and `dataset` if it is a name or None.

    Raises:
        ArgumentError: One is neither.
    """
    if dataset is not None and not isinstance(dataset, str):
        raise ArgumentError(f"dataset {dataset!r} is not a name. Use a str such as 'group/name', or None for the file.")
    return checked_path(path), dataset
