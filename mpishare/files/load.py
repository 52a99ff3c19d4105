"""load: an array of a file into the memory of each node."""

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
from mpishare.files.inspect import Contents, checked_name, checked_path, inspect_file
from mpishare.files.parallel_read import ROOT, read_parts
from mpishare.files.parts import ContiguousPart
from mpishare.files.source import Source
from mpishare.memory.segment import Origin
from mpishare.memory.selection import check_backend
from mpishare.progress_bar import check_tqdm


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
    """Reads an array of a `.npy` or an HDF5 file into the memory of each node, without a copy on the way.

    The ranks of rank 0's node read each byte once, each rank other pieces. Meanwhile earlier pieces travel to the other
    nodes. No rank holds a second copy. The rank that reads a compressed chunk decompresses it.

    The file's own types become NumPy's, as h5py converts them: enumerations become their numbers, strings of fixed
    length bytes. Strings of variable length become bytes ("S") as wide as the longest, in UTF-8 if the file has that;
    they are read twice. References, arrays of variable length and Python objects are refused.

    Args:
        path: The file. A relative path starts at the working folder of rank 0; at that of the leader of each node if
            each node has its own file.
        dataset: A dataset or a group of an HDF5 file; None for the whole file.
        region: The part of one array to load: integers, slices with any step, Ellipsis, None, or a tuple of these, as
            in NumPy's basic indexing; None for all of it.
        read: "job": all nodes share the file system, and each byte is read once. "node": each node has its own file of
            that name, all with the same contents, and reads it.
        map: Whether to map the file instead of reading it, which takes no time, and no memory but the kernel's page
            cache. Each node maps its own file. A part of an array may have gaps. It takes a `.npy` file or contiguous
            datasets, on a file system that can be trusted: if the file is truncated later, SIGBUS ends the job.
        attributes: Whether to return the attributes too.
        progress: Whether rank 0 shows a bar with the rate and the time left, if its standard error is a terminal.
        comm: The ranks that share; MPI_COMM_WORLD when None.
        backend: The segment kind to use, or several with commas in the order to try; None lets each node choose.

    Returns:
        For one array a read-only `numpy.ndarray` in node memory, in Fortran order if the file has that. For a group a
        dict of such arrays and of dicts, by name; their memory is released with the last of them, and soft and external
        links are left out. With `attributes`, a pair of that and a dict: for an array its attributes by name; for a
        group such dicts by the names of its members, such as "a/b", its own under "".

    Raises:
        FileError: There is no such file or dataset; it cannot be read, is truncated or damaged, or changes meanwhile;
            or it cannot be mapped.
        SpecError: The dtype cannot be shared, or a dataset is an HDF5 null dataspace.
        ArgumentError: `region` is not within the array, or another argument is not allowed.
        CapacityError: The bytes do not fit on this node, or, as a `PeerCapacityError`, on another.
        BackendError: h5py or tqdm is needed and not installed, or the segment kind cannot be used on this node.
        MismatchError: The ranks gave different arguments, or made different calls.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`.

    Source:
        The HDF5 file format; numpy.lib.format. For the path between nodes see `bcast`.

    Example:
        >>> import mpishare as ms, numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/grid.npy", np.arange(6.0).reshape(2, 3))
        ...     ms.load(f"{folder}/grid.npy", region=np.s_[:, ::-1]).tolist()
        [[2.0, 1.0, 0.0], [5.0, 4.0, 3.0]]
    """
    request = _Request(path, dataset, region, read, map, attributes, progress)
    with collective("load", comm) as call, ExitStack() as stack:
        return _load(call, stack, request, backend)


@dataclass(frozen=True)
class _Request:
    """The arguments of a call, as given."""

    path: Any
    dataset: Any
    region: Any
    read: Any
    map: bool
    attributes: bool
    progress: bool

    def checked(self) -> str:
        """The arguments as a string that the ranks compare.

        Raises:
            ArgumentError: One of them is not allowed.
        """
        path, name = checked_path(self.path), checked_name(self.dataset)
        if not isinstance(self.read, str) or self.read not in ("job", "node"):
            raise ArgumentError(f"read {self.read!r} is unknown. Use 'job' or 'node'.")
        switches = f"map={bool(self.map)}, attributes={bool(self.attributes)}, progress={bool(self.progress)}"
        return f"load({path!r}, {name!r}, region={self.region!r}, read={self.read!r}, {switches})"

    def inspect(self, source: Source) -> bytes:
        """What is to be loaded, pickled while an error can still be raised on all ranks."""
        contents = inspect_file(source, checked_name(self.dataset), self.region, attributes=self.attributes)
        for part in contents.parts:
            if self.map and not isinstance(part, ContiguousPart):
                reason = (
                    "cannot be mapped: it is not contiguous in this file, or is converted. Load it without map=True."
                )
                raise FileError(source.path, part.name, reason)
        return pickle.dumps(contents)


def _load(call: collective, stack: ExitStack, request: _Request, backend: str | None) -> Any:
    context, topology = call.context, call.context.topology
    per_node = request.map or request.read == "node"
    source, pickled = None, b""
    with call.begin() as agreement:
        kind = check_backend(backend, context)
        agreement.call = f"{request.checked()}, backend={kind}"
        if request.progress:
            check_tqdm()
        if topology.rank == ROOT or (per_node and topology.is_leader):
            source = stack.enter_context(Source(checked_path(request.path)))
            pickled = request.inspect(source)
    contents = _contents(context, pickled, per_node=per_node)
    if source is None:
        source = stack.enter_context(Source(contents.path, contents.stamp))
    if request.map:
        arrays = _mapped(context, source, contents)
    else:
        arrays = read_parts(
            context, source, contents.parts, backend=kind, once_per=request.read, progress=request.progress
        )
    data = _arranged(contents.tree, arrays)
    return (data, contents.attributes) if request.attributes else data


def _contents(context: Context, pickled: bytes, *, per_node: bool) -> Contents:
    """What the root found in its file; or, `per_node`, what the leader of this node found in the file of the node."""
    contents: Contents = pickle.loads(context.collective_comm.bcast_obj(pickled, ROOT))  # noqa: S301 - of this job
    if not per_node or context.topology.n_nodes == 1:
        return contents
    own: Contents = pickle.loads(context.node_collective_comm.bcast_obj(pickled, 0))  # noqa: S301
    with agree(context.collective_comm):
        if context.topology.is_leader and own.description != contents.description:
            hosts = context.topology.hosts
            reason = f"has {own.description} on host {context.topology.host}, but on host {hosts[0]} "
            raise FileError(own.path, None, f"{reason}{contents.description}.")
    return own


def _mapped(context: Context, source: Source, contents: Contents) -> list[NDArray[Any]]:
    """The arrays, as read-only views of the kernel's own pages of the file."""
    with agree(context.collective_comm):
        first_key = context.uid + context.segment_count + 1
        context.segment_count += len(contents.parts)  # before anything fails: all ranks count alike
        origin = Origin("mapped file", "load", context.topology.node_size)
        parts = [part for part in contents.parts if isinstance(part, ContiguousPart)]
        return [part.map(source, origin, key) for key, part in enumerate(parts, first_key)]


def _arranged(tree: Tree, arrays: list[NDArray[Any]]) -> Any:
    """The one array, or those of a group by name."""
    if isinstance(tree, int):
        return arrays[tree]
    return {name: _arranged(below, arrays) for name, below in tree.items()}
