"""Arrays from a file in the memory of each node."""

from __future__ import annotations

import os
import pickle
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, FileError
from mpishare.files.hdf5_read import Tree
from mpishare.files.inspect import Contents, checked_name, checked_path, look
from mpishare.files.mapped_part import check_flat, mapped
from mpishare.files.parallel_read import ROOT, Show, bring, laid_out
from mpishare.files.source import Source
from mpishare.memory.allocation import allocate, seal
from mpishare.memory.selection import check_backend
from mpishare.progress_bar import Bar, check_tqdm

_READS = ("job", "node")


def load(
    path: str | os.PathLike[str],
    dataset: str | None = None,
    *,
    region: Any = None,
    read: str = "job",
    map: bool = False,  # noqa: A002 - what NumPy calls mmap_mode
    attributes: bool = False,
    progress: bool = False,
    comm: mpi.Comm | None = None,
    backend: str | None = None,
) -> Any:
    """Brings an array from a `.npy` or an HDF5 file into the memory of each node, with no copy on the way.

    Each byte is read once, by the ranks of rank 0's node, each of which reads other pieces; while the next are read,
    those that are there travel to the other nodes. No rank holds a second copy. Chunks that are compressed are
    decompressed by the rank that reads them.

    What a `.npy` or HDF5 file has by its own type comes as NumPy's, as h5py tells it: enumerations as their numbers,
    strings of a fixed length as bytes. Texts of any length become bytes ("S") as wide as the longest, in UTF-8 where
    the file has that; they are read twice. References, arrays of any length and Python objects are refused.

    Args:
        path: The file. Relative names start at the folder of rank 0; at that of the first rank of each node where each
            node has a file of its own.
        dataset: A dataset or a group of an HDF5 file; None for all that is in the file.
        region: What of one array is wanted: integers, slices with any step, Ellipsis, None, or a tuple of these, as in
            NumPy's basic indexing; None for all of it.
        read: "job", the file is on a file system that all nodes share, and each byte is read once; "node", each node
            has a file of that name, all alike, and reads its own.
        map: Whether to map the file instead of reading it, which takes no time and no memory but the kernel's. Each
            node maps its own, and a part of an array may have gaps. For datasets and `.npy` files that lie in one run,
            on file systems that are trusted: whoever makes the file shorter later ends the job by SIGBUS.
        attributes: Whether to return the attributes too.
        progress: Whether to show a bar, on rank 0's standard error if that is a terminal, with the rate and the time
            left.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        For one array a plain read-only `numpy.ndarray` over node memory, in Fortran order where the file says so. For a
        group a dict of such arrays and of dicts, by name, whose memory goes with the last of them; soft and external
        links are left out. With `attributes`, a pair of that and a dict: of an array its attributes by name; of a group
        such dicts by the names of its members, such as "a/b", its own under "".

    Raises:
        FileError: There is no such file or dataset; it cannot be read, is truncated or broken, or is changed meanwhile;
            or it cannot be mapped.
        SpecError: The dtype cannot be shared, or a dataset is an HDF5 null dataspace.
        ArgumentError: `region` is not within the array, or another argument is none that this call takes.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: h5py or tqdm is needed and not installed, or the segment kind cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        The HDF5 file format; numpy.lib.format. For the way between nodes see `bcast`.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.arange(6.0).reshape(2, 3))
        ...     ms.load(f"{folder}/grid.npy", region=np.s_[:, ::-1]).tolist()
        [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
    """
    asked = _Asked(path, dataset, region, read, map, attributes, progress)
    with collective("load", comm) as call:
        return _load(call, asked, backend)


@dataclass(frozen=True)
class _Asked:
    """What a caller wants, as given."""

    path: Any
    dataset: Any
    region: Any
    read: Any
    map: bool
    attributes: bool
    progress: bool

    def checked(self) -> str:
        """The same in words, for the ranks to compare.

        Raises:
            ArgumentError: It is nothing that `load` takes.
        """
        path, name = checked_path(self.path), checked_name(self.dataset)
        if not isinstance(self.read, str) or self.read not in _READS:
            raise ArgumentError(f"read {self.read!r} is unknown. Use 'job' or 'node'.")
        switches = f"map={bool(self.map)}, attributes={bool(self.attributes)}, progress={bool(self.progress)}"
        return f"load({path!r}, {name!r}, region={self.region!r}, read={self.read!r}, {switches})"

    @property
    def on_each_node(self) -> bool:
        """Whether each node looks at a file of its own."""
        return self.map or self.read == "node"


def _load(call: collective, asked: _Asked, backend: str | None) -> Any:
    context = call.context
    with ExitStack() as stack:
        with call.begin() as agreement:
            kind = check_backend(backend, context)
            agreement.call = f"{asked.checked()}, backend={kind}"
            if asked.progress:
                check_tqdm()
            looks = context.topology.is_leader and (context.topology.rank == ROOT or asked.on_each_node)
            source = stack.enter_context(Source(checked_path(asked.path))) if looks else None
            packed = b"" if source is None else _look(source, asked)
        contents = _told(context, packed, each_node=asked.on_each_node)
        if source is None:
            source = stack.enter_context(Source(contents.path, contents.stamp))
        found = _mapped(context, source, contents) if asked.map else _filled(context, source, contents, asked, kind)
    data = _arranged(contents.tree, found)
    return (data, contents.attributes) if asked.attributes else data


def _look(source: Source, asked: _Asked) -> bytes:
    """What there is, as it is told to the other ranks: pickled here, where an error is one on all ranks."""
    contents = look(source, checked_name(asked.dataset), asked.region, attributes=asked.attributes)
    if asked.map:
        check_flat(source.path, contents.parts)
    return pickle.dumps(contents)


def _told(context: Context, packed: bytes, *, each_node: bool) -> Contents:
    """What the root found, or the leader of this node, where each looks at a file of its own."""
    contents: Contents = pickle.loads(context.collective_comm.bcast_obj(packed, ROOT))  # noqa: S301 - it is of a rank of this job
    if not each_node or context.topology.n_nodes == 1:
        return contents
    mine: Contents = pickle.loads(context.node_collective_comm.bcast_obj(packed, 0))  # noqa: S301
    with agree(context.collective_comm):
        if context.topology.is_leader and mine.said() != contents.said():
            hosts = context.topology.hosts
            reason = f"has {mine.said()} on host {context.topology.host}, but on host {hosts[0]} {contents.said()}."
            raise FileError(mine.path, None, reason)
    return mine


def _mapped(context: Context, source: Source, contents: Contents) -> list[NDArray[Any]]:
    with agree(context.collective_comm):
        return mapped(context, source, contents.parts)


def _filled(
    context: Context, source: Source, contents: Contents, asked: _Asked, kind: str | None
) -> list[NDArray[Any]]:
    """The arrays, in one segment of each node."""
    offsets, nbytes = laid_out(contents.parts)
    segment = allocate(context, nbytes, backend=kind, label="load", writable=False)
    is_shared, once = segment.origin.is_shared, asked.read == "job"
    with ExitStack() as stack:
        show: Show = _show_nothing
        if asked.progress and context.topology.rank == ROOT:
            bar = Bar(nbytes, "B")
            stack.enter_context(bar)
            show = bar.show
        block = segment.block()
        reading = bring(context, source, contents.parts, block, is_shared=is_shared, once=once, show=show)
    with agree(context.collective_comm):
        if reading is not None:
            reading.end()
    seal(context, segment)
    return [segment.view(part.spec, at) for part, at in zip(contents.parts, offsets, strict=True)]


def _show_nothing(_: int) -> None:
    pass


def _arranged(tree: Tree, arrays: list[NDArray[Any]]) -> Any:
    """The one array, or those of a group by name."""
    if isinstance(tree, int):
        return arrays[tree]
    return {name: _arranged(below, arrays) for name, below in tree.items()}
