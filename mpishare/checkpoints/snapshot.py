"""A checkpoint that was found: its step, its values, and its arrays for the ranks and nodes of this job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.checkpoints.contents import ChecksummedPart, Contents
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.errors import ArgumentError
from mpishare.files.errors import file_errors
from mpishare.files.parallel_read import read_parts
from mpishare.files.region import parse_region
from mpishare.files.source import Source
from mpishare.memory.selection import check_backend


class Snapshot:
    """A checkpoint as `Checkpoint.latest` found it.

    Attributes:
        step: The step at which it was saved.
        names: The names of its arrays.
        path: Its file, an HDF5 file with the arrays in the group "arrays".
    """

    def __init__(self, contents: Contents, comm: mpi.Comm | None) -> None:
        self._contents = contents
        self._comm = comm
        self.step = contents.manifest.step
        self.names = tuple(contents.arrays)
        self.path = contents.path

    @property
    def values(self) -> dict[str, Any]:
        """The small values, a new dict each time. Tuples have become lists."""
        values: dict[str, Any] = json.loads(self._contents.manifest.values)
        return values

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, with all its rows. Local."""
        return self._part(name).spec.shape

    def load(
        self, name: str, *, region: slice | None = None, out: NDArray[Any] | None = None, backend: str | None = None
    ) -> NDArray[Any]:
        """Reads an array, or rows of it, and checks each byte that it reads.

        A whole array is read once per job, by the ranks of rank 0's node, which send it on to the other nodes.

        Args:
            name: The name of the array.
            region: This rank's rows, as a slice without a step; None for the whole array, once per node.
            out: With `region`, a C-contiguous array of the rows' shape and dtype to fill, such as rows of an array in
                node memory; None for a new one.
            backend: Without `region`, the segment kind to use; see `share`.

        Returns:
            The rows, in `out` or in a new array; or the whole array, read-only, one copy per node.

        Raises:
            ArgumentError: There is no such array, or `region` or `out` does not fit it.
            FileError: Bytes are not those that were saved, or the file cannot be read.
            CapacityError: The array does not fit on this node, or, as a `PeerCapacityError`, on another.
            MismatchError: The ranks gave different names, or only some of them a region.
            PeerError: Another rank raised one of these.

        Collective:
            Over the ranks of the `Checkpoint`.
        """
        with collective("Snapshot.load", self._comm) as call, Source(str(self.path)) as source:
            if region is None:
                return self._load_whole(call, source, name, out, backend)
            return self._load_rows(call, source, name, region, out)

    def _load_whole(
        self, call: collective, source: Source, name: str, out: object, backend: str | None
    ) -> NDArray[Any]:
        with call.begin() as agreement:
            kind = check_backend(backend, call.context)
            if out is not None:
                raise ArgumentError("out is for rows: give their region too, e.g. region=partition(n).")
            part = self._part(name)
            agreement.call = f"Snapshot.load({name!r}, region=None, backend={kind})"
        (array,) = read_parts(call.context, source, [part], backend=kind)
        return array

    def _load_rows(
        self, call: collective, source: Source, name: str, region: slice, out: NDArray[Any] | None
    ) -> NDArray[Any]:
        with call.begin() as agreement:
            agreement.call = f"Snapshot.load({name!r}, region=…)"
            part = self._part(name)
            start, rows = _rows_of(region, part.spec)
            array = np.empty(rows.shape, rows.dtype) if out is None else _checked_out(out, rows)
        with agree(call.context.collective_comm), file_errors(self.path, name):
            if array.nbytes:
                row_bytes = array.nbytes // len(array)
                part.read_range(source, start * row_bytes, array.reshape(-1).view(np.uint8).data)
        return array

    def _part(self, name: str) -> ChecksummedPart:
        if name not in self.names:
            names = ", ".join(map(repr, self.names)) or "none"
            raise ArgumentError(f"{self.path} has no array {name!r}; it has {names}.")
        return self._contents.arrays[name]

    def __repr__(self) -> str:
        return f"<Snapshot of step {self.step} with {', '.join(self.names) or 'no array'} in {self.path}>"


def _rows_of(region: object, spec: Spec) -> tuple[int, Spec]:
    """The number of the first row in `region`, and the spec of all its rows.

    Raises:
        ArgumentError: `region` is not a slice of rows.
    """
    if not isinstance(region, slice) or region.step not in (None, 1):
        raise ArgumentError(f"region is {region!r}. Give a slice without a step, such as partition(n).")
    rows = parse_region(region, spec.shape)[0][0]
    return rows.start, replace(spec, shape=(len(rows), *spec.shape[1:]))


def _checked_out(out: object, rows: Spec) -> NDArray[Any]:
    """`out`, if the rows fit it.

    Raises:
        ArgumentError: They do not.
    """
    if not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.c_contiguous:
        raise ArgumentError("out must be a numpy.ndarray that is C-contiguous and writable.")
    if out.shape != rows.shape or out.dtype != rows.dtype:
        raise ArgumentError(f"out has {out.shape}, {out.dtype}, but the rows have {rows.shape}, {rows.dtype}.")
    return out
