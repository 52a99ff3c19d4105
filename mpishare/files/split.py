"""load(split=True): each node reads its rows of an array in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpishare.arrays.region import View, text_of_region
from mpishare.arrays.spec import Spec
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, checked_integers
from mpishare.files.formats import FormatReader
from mpishare.files.parallel_read import ROOT, read_parts
from mpishare.files.stored import Listing
from mpishare.files.tiles import Selection
from mpishare.memory.per_node import node_counts, on_each_node
from mpishare.objects.distributed import Distributed

Split = bool | Sequence[int]
"""What `load` takes for `split`: whether to, or how many rows each node takes."""


def checked_split(split: Any, region: tuple[Any, ...] | None, *, is_mapped: bool) -> list[int] | bool:
    """The argument `split` as a bool, or as a list of how many rows each node takes.

    Raises:
        ArgumentError: It is neither, or what `load` shall split has no rows in the order of the file.
    """
    is_flag = isinstance(split, bool | np.bool_ | None)
    counts = bool(split) if is_flag else checked_integers("split", split, "True, False, or ")
    if counts is False:
        return False
    if is_mapped:
        raise ArgumentError("map=True reads what is needed from the file. Leave it or split out.")
    items = region or (slice(None),)
    are_taken = (isinstance(item, int) or (isinstance(item, slice) and (item.step or 1) > 0) for item in items)
    if not isinstance(items[0], slice) or not all(are_taken):
        cure = "Give slices without negative steps, and integers behind the first of them"
        raise ArgumentError(f"region {text_of_region(items)} selects no rows that can be split. {cure}.")
    return counts


def check_rows(listing: Listing, chosen: Mapping[int, Selection], is_split: bool) -> None:
    """Checks that what is chosen of a file has rows, if they are to be split.

    Raises:
        ArgumentError: The file has several arrays, or the array has no dimension.
    """
    if is_split and listing.is_group:
        raise ArgumentError(f"split is for one array, but a group of {listing.path} was given. Give a dataset in it.")
    if is_split and not chosen[0].shape:
        raise ArgumentError(f"split is for rows, but the array of {listing.path} has no dimension.")


def load_split(
    context: Context,
    reader: FormatReader,
    selection: Selection,
    view: View,
    split: Sequence[int] | bool,
    *,
    backend: str | None,
    progress: bool,
) -> Distributed:
    """The items of an array in a file, whose rows are split over the nodes.

    Args:
        context: The context of the communicator.
        reader: What reads the file, on all ranks.
        selection: The items.
        view: What makes the result of the items, but for the number of rows.
        split: How many rows each node takes; True for about equally many.
        backend: What `check_backend` returned.
        progress: Whether the root shows how much its node has read.

    Raises:
        See `load`.

    Collective:
        Over the communicator.
    """
    topology, (rows, *others) = context.topology, selection.axes
    assert isinstance(rows.indices, range)
    numbers = node_counts(context, selection.spec, None if isinstance(split, bool) else split)
    start = sum(numbers[: topology.node])
    own_rows = rows._replace(indices=rows.indices[start : start + numbers[topology.node]])
    own = replace(selection, axes=(own_rows, *others), is_in_c_order=True)
    with on_each_node(context, selection.spec) as node_context:
        is_shown = progress and topology.rank == ROOT
        [array] = read_parts(node_context, reader, [own], backend=backend, progress=is_shown)
    local = view(array)
    return Distributed(context, Spec(local.dtype, (sum(numbers), *local.shape[1:])), numbers, local)
