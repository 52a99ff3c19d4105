"""load: an array of a file into the memory of each node."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpishare.arrays.raw import address_of, bytes_of
from mpishare.arrays.region import View, checked_region, text_of_region
from mpishare.arrays.spec import Spec
from mpishare.collectives.arguments import is_in_shared_memory, name_of_out
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, SpecError, checked_integers, checked_path
from mpishare.files.formats import reader_of
from mpishare.files.input_file import FormatReader, InputFile
from mpishare.files.listing import checked, checked_dtype, inspect_file, selections
from mpishare.files.parallel_read import ROOT, map_parts, read_into, read_parts
from mpishare.files.sliced import CallFile, name_of_call
from mpishare.files.stored import Listing, listed
from mpishare.files.tiles import Selection
from mpishare.memory.backends import check_backend
from mpishare.objects.array_class import PLAIN, items_of_out
from mpishare.objects.distributed import Distributed, node_counts, on_each_node
from mpishare.progress_bar import check_tqdm


def load(
    path: str | os.PathLike[str] | None = None,
    dataset: str | Sequence[str] | None = None,
    *,
    call: Callable[[], Any] | None = None,
    region: Any = None,
    out: NDArray[Any] | None = None,
    writable: bool = False,
    read: str = "job",
    map: bool = False,  # noqa: A002 - what NumPy calls mmap_mode
    split: bool | Sequence[int] = False,
    dtype: DTypeLike | None = None,
    attributes: bool = False,
    progress: bool = False,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> Any:
    """Reads an array of a file, or of what a function opens, into the memory of each node, without a copy on the way.

    The ranks of rank 0's node read each byte once, each rank other tiles. Meanwhile earlier tiles travel to the other
    nodes. No rank holds a second copy. The rank that reads a compressed chunk decompresses it.

    The file's own types become NumPy's, as h5py converts them: enumerations become their numbers, strings of fixed
    length bytes. Strings of variable length, also in columns, become bytes ("S") as wide as the longest, in UTF-8 if
    the file has that; they are read twice. References, arrays of variable length and Python objects cannot be loaded.

    With `call`, each rank that reads calls the function and reads by slices of what it returns. Slices end at its
    chunks, where it has them: each chunk is decoded once, and then copied. A chunk is all that a rank holds of its own.

    Links are followed, also into other files. A dataset that has several names is read once, and the same array stands
    under each name. What cannot be loaded is left out of a group, with a warning on rank 0 that names it: datasets,
    columns, links that lead nowhere, and links to a group that they are in.

    Args:
        path: The file, or a zarr folder; None where `call` is given. A relative path starts at the working folder of
            rank 0; of the leader of each node if each node has its own file.
        dataset: An array of the file, or a group of an HDF5 or a zarr file; None for the whole file. In a FITS file
            EXTNAME in any case, "EXTNAME,EXTVER" or the number of an HDU names its array. A list of such names gives a
            dict.
        call: Instead of a file, a function without arguments that opens an array: anything with `shape`, `dtype` and
            basic slicing, such as a `zarr.Array`, an `h5py.Dataset`, a `netCDF4.Variable`, a `dask.array` or a class of
            your own. All ranks pass it. Rank 0 and the ranks of its node call it, or with `read="node"` all ranks.
            Its array is closed if it has `close`. It must not wait for other ranks. Arrays with units are refused, and
            what an array has beside its items, such as coordinates, is not loaded.
        region: The part of one array to load: integers, slices with any step, Ellipsis, None, at most one list of
            integers or mask, or a tuple of these, as in NumPy's indexing; None for all of it. A negative step gives a
            reversed view, as in NumPy. The items of a list are read in rising order, each once, and come in the order
            of the list.
        out: Where the items of one array go: a node-shared array that may be written, from `empty`, `zeros` or `full`,
            or a contiguous part of one. It must have their shape and dtype; with `dtype=out.dtype` they are converted.
            `region` may have no negative step. After an error its items are undefined. Call `fence(scope="all")` before
            it is written again, as other ranks may still read it. New memory is taken when None.
        writable: Whether all ranks of a node may write to the new arrays, as to those of `zeros`, and see what the
            others write: after a `fence`.
        read: "job": all nodes share the file system, and each byte is read once. "node": each node has its own file of
            that name, all with the same contents, and reads it.
        map: Whether to map the file instead of reading it, which takes no time, and no memory but the kernel's page
            cache. Each node maps its own file. A part of an array may have gaps; a list or mask is refused. It takes a
            `.npy` file or arrays whose bytes lie in the file as in memory, on a file system that can be trusted: if the
            file is truncated later, SIGBUS ends the job.
        split: Whether to split the rows of one array over the nodes, for data larger than a node: each node reads and
            holds its rows alone. A list says how many rows each node takes; True, about equally many, as `distribute`
            does. All nodes must see the file. `region` may have slices with positive steps, and integers behind the
            first of them.
        dtype: The dtype of the result; "native" for that of each array in the byte order of the machine, which numba
            and pandas need of FITS files. Each tile is converted when it has been read, as `numpy.ndarray.astype` does
            with `casting="same_kind"`. None leaves the dtype of the file.
        attributes: Whether to return the attributes too.
        progress: Whether rank 0 shows the rate and the time left; see `mpishare.map`.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The backend to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        For one array `out`, or a `numpy.ndarray` in node memory, read-only unless `writable`, in Fortran order if the
        file has that; with `split` a `Distributed`, in C order. For a group a dict of such arrays and of dicts, by
        name, and for a list of names a dict by these; their memory is released with the last of them. With
        `attributes`, returns `(data, attributes)`. For an array, `attributes` maps names to values; for a group or a
        list, it maps member paths such as "a/b" to such dicts, and "" to the group's dict. A reference in an attribute
        becomes the name of its target, or None if there is none. An attribute that h5py cannot read is left out, with a
        warning.

    Raises:
        FileError: There is no such file or dataset; it cannot be read, is truncated or damaged, or changes meanwhile;
            or it cannot be mapped. Or the array of `call` has not the same shape and dtype on all ranks, or a slice of
            it has others than it says.
        SpecError: The dtype of the dataset cannot be shared, or it is an HDF5 null dataspace; or `out` does not have
            its shape and dtype, or is not such an array.
        ArgumentError: `region` is not within the array, `call` returns no array, or another argument is not allowed.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: tqdm or the library of the format is needed and not installed, or the backend cannot be used on
            this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these, or `call` raised there. That rank raises its own error.

    Collective:
        Over `comm`.

    Source:
        The HDF5 file format; numpy.lib.format. For the path between nodes see `bcast`.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.arange(6.0).reshape(2, 3))
        ...     ms.load(f"{folder}/grid.npy", region=np.s_[:, ::-1]).tolist()
        ...     ms.load(call=lambda: np.memmap(f"{folder}/grid.npy", "f8", offset=128), region=-1).tolist()
        ...     grid = ms.zeros((3, 3))
        ...     ms.load(f"{folder}/grid.npy", out=grid[1:])[0, 2] = 7
        ...     ms.fence()
        ...     grid.tolist()
        [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
        5.0
        [[0.0, 0.0, 0.0], [0.0, 1.0, 7.0], [3.0, 4.0, 5.0]]
    """
    with collective("load", comm) as entered, ExitStack() as stack:
        context, per_node = entered.context, map or read == "node"
        reader, pickled = None, b""
        names = check_backend(backend, context)
        make, file, name = _source(path, dataset, call)
        items = None if region is None else checked_region(region)
        shown = "None" if items is None else text_of_region(items)
        split = _checked_split(split, items, is_mapped=map)
        switches = f"map={bool(map)}, attributes={bool(attributes)}, progress={bool(progress)}, backend={names}"
        switches += f", {split=}, dtype={checked_dtype(dtype)!s}, writable={bool(writable)}"
        switches += name_of_out(items_of_out(out, PLAIN))
        source = repr(file) if call is None else "call=…"
        _check_modes(read, writable, is_made=not map and split is False, is_given=out is not None)
        if call is not None and (map or attributes):
            raise ArgumentError("map=True and attributes=True are for a file. Leave them out with call.")
        if progress:
            check_tqdm()
        if context.topology.rank == ROOT or (per_node and context.topology.is_leader):
            reader = make(stack.enter_context(InputFile(file)))
            pickled = _inspected(context, reader, name, items, attributes=attributes)
        entered.agree(f"load({source}, {name!r}, region={shown}, {read=}, {switches})")
        is_split = split is not False
        is_reading = per_node or is_split or context.topology.node == context.topology.node_of(ROOT)
        found = (context.node_collective_comm if per_node else context.collective_comm).bcast_obj(pickled, ROOT)
        with agree(context.collective_comm) as agreement:
            format_class, stamps, listing = pickle.loads(found)  # noqa: S301 - of this job
            agreement.call = f"load({source}), which has {listing.description}"
            if reader is None:
                reader = (make if call else format_class)(stack.enter_context(InputFile(listing.path, stamps)))
            if isinstance(reader, CallFile) and is_reading:
                reader.check_same(listing.arrays[0])
            chosen, view = _chosen(listing, items, dtype, out=out, is_split=is_split)
        parts = list(chosen.values())
        options: dict[str, Any] = {"backend": names, "progress": progress}
        if is_split:
            data: Any = _load_split(context, reader, parts[0], view, split, **options)
        elif out is not None:
            with agree(context.collective_comm):
                is_shared = is_in_shared_memory(out)
                read_into(context, reader, parts, bytes_of(out), read, is_shared=is_shared, progress=progress)
            data = out
        else:
            options |= {"writable": bool(writable)}
            arrays = map_parts(context, reader, parts) if map else read_parts(context, reader, parts, read, **options)
            numbered = dict(zip(chosen, arrays, strict=True))
            data = nested(listing.tree, numbered, {}) if listing.is_group else view(arrays[0])
    if not attributes:
        return data
    return data, listing.attributes if listing.is_group else listing.attributes.get("", {})


def _check_modes(read: Any, writable: Any, *, is_made: bool, is_given: bool) -> None:
    """Raises an `ArgumentError` if `read` or `writable` is unknown, or the memory is neither new nor of one copy.

    Args:
        read: Who reads.
        writable: Whether ranks may write to the memory.
        is_made: Whether each node has memory for the whole array, which is not the kernel's.
        is_given: Whether it is there.
    """
    if not isinstance(read, str) or read not in ("job", "node"):
        raise ArgumentError(f"read {read!r} is unknown. Use 'job' or 'node'.")
    if writable not in (False, True):
        raise ArgumentError(f"writable is {writable!r}. Use True or False, or make an array private.")
    if (writable or is_given) and not is_made:
        raise ArgumentError("map=True and split take no out, and make read-only arrays. Give one or the other.")


def _source(
    path: Any, dataset: Any, call: Callable[[], Any] | None
) -> tuple[Callable[[InputFile], FormatReader], str, str | list[str] | None]:
    """What reads the array, the file or what error messages say in its place, and the name or names in the file.

    Raises:
        ArgumentError: One is not as it must be, or there is a file and `call`.
    """
    if call is None and isinstance(dataset, list | tuple):
        names = [name for name in dataset if isinstance(name, str)]
        if not names or len(names) < len(dataset):
            raise ArgumentError(f"dataset {dataset!r} is no list of names. Give some, or None for the whole file.")
        return reader_of, checked_path(path), names
    if call is None:
        return reader_of, *checked(path, dataset)
    if path is not None or dataset is not None:
        raise ArgumentError("both call and a path or a dataset were given. Give one of them.")
    return partial(CallFile, call=call), name_of_call(call), None


def _inspected(
    context: Context, reader: FormatReader, name: str | list[str] | None, region: Any, *, attributes: bool
) -> bytes:
    """What this rank finds, pickled while an error can still be raised on all ranks. The root warns of what is left."""
    if isinstance(name, list):
        listing = _together({each: inspect_file(reader, each, region, attributes=attributes) for each in name})
    else:
        listing = inspect_file(reader, name, region, attributes=attributes)
    if listing.left_out and context.topology.rank == ROOT:
        callsite.warn(f"load(): left out of {reader.file.path}: {listed(listing.left_out)}")
    return pickle.dumps((type(reader), reader.file.stamps, listing))


def _together(listings: Mapping[str, Listing]) -> Listing:
    """What several objects of a file have, as a group of them. An array that several have is there once."""
    arrays = dict.fromkeys(array for listing in listings.values() for array in listing.arrays)
    numbers = {array: number for number, array in enumerate(arrays)}
    tree: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    for name, listing in listings.items():
        of_group = {number: numbers[array] for number, array in enumerate(listing.arrays)}
        tree |= nested({name: listing.tree}, of_group, {})
        attributes |= {f"{name}/{inner}".rstrip("/"): values for inner, values in listing.attributes.items()}
    unread = [reason for listing in listings.values() for reason in listing.unread]
    return Listing(listing.path, list(arrays), tree, attributes, unread)


def _chosen(
    listing: Listing, region: Any, dtype: Any, *, out: NDArray[Any] | None, is_split: bool
) -> tuple[dict[int, Selection], View]:
    """What to read of each array, by its number, as it lies in `out`; and what makes the result of the one array.

    Raises:
        ArgumentError: The file has several arrays, or one without the dimensions that an argument is for.
        ArgumentError, SpecError: See `selections` and `_into`.
    """
    for argument, value in {"region": region, "out": out, "split": is_split or None}.items():
        if value is not None and listing.is_group:
            reason = f"{argument} is for one array, but a group of {listing.path} was given. Give a dataset in it."
            raise ArgumentError(reason)
    chosen, view = selections(listing, region, checked_dtype(dtype))
    if is_split and not chosen[0].shape:
        raise ArgumentError(f"split is for rows, but the array of {listing.path} has no dimension.")
    return chosen if out is None else {0: _into(out, chosen[0], view)}, view


def _into(out: NDArray[Any], chosen: Selection, view: View) -> Selection:
    """What is chosen of a file, as it lies in `out`.

    Raises:
        ArgumentError: It lies in another order.
        SpecError: Its shape or dtype is not that of `out`.
    """
    selection = replace(chosen, order="C" if out.flags.c_contiguous else "F")
    spec = selection.spec
    shape = view(np.broadcast_to(np.empty((), spec.dtype), spec.shape)).shape
    if out.shape != shape or out.dtype != spec.dtype:
        cure = "Pass an array of this shape, and dtype=out.dtype to convert the items"
        raise SpecError(f"out is {out.dtype} of shape {out.shape}, but the file has {spec.dtype} of {shape}. {cure}.")
    if selection.order == "F" and len(selection.shape) < len(spec.shape):
        raise SpecError("out is in Fortran order, but the items in the file are arrays. Use one with order='C'.")
    if out.size and address_of(view(out.reshape(spec.shape, order=selection.order))) != address_of(out):
        raise ArgumentError("region has a negative step, which out cannot have. Reverse the array instead: out[::-1].")
    return selection


def _checked_split(split: Any, region: tuple[Any, ...] | None, *, is_mapped: bool) -> list[int] | bool:
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


def _load_split(
    context: Context, reader: Any, selection: Selection, view: View, split: Any, *, progress: bool, **options: Any
) -> Distributed:
    """The items of an array in a file, whose rows are split over the nodes.

    Args:
        context: The context of the communicator.
        reader: What reads the file, on all ranks.
        selection: The items.
        view: What makes the result of the items, but for the number of rows.
        split: How many rows each node takes; True for about equally many.
        progress: Whether the root shows how much its node has read.
        options: See `read_parts`.

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
    own = replace(selection, axes=(own_rows, *others), order="C")
    with on_each_node(context, selection.spec) as node_context:
        [array] = read_parts(node_context, reader, [own], progress=progress and topology.rank == ROOT, **options)
    local = view(array)
    return Distributed(context, Spec(local.dtype, (sum(numbers), *local.shape[1:])), numbers, local)


def nested(tree: Any, arrays: dict[int, Any], made: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The arrays of a group by name, in a dict for each group. Where a group has several names, its dict has them too.

    Args:
        tree: That of the group; see `stored.Tree`.
        arrays: The arrays by number, or what stands for them.
        made: The dicts that are made, by the identity of the tree of each.
    """
    if id(tree) not in made:
        made[id(tree)] = {
            name: nested(inner, arrays, made) if isinstance(inner, dict) else arrays[inner]
            for name, inner in tree.items()
            if isinstance(inner, dict) or inner in arrays
        }
    return made[id(tree)]
