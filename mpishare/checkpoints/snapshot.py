"""A checkpoint that was found: its step, its values, and its arrays for the ranks and nodes of this job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of
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
            with call.begin() as agreement:
                part = self._part(name)
                kind = check_backend(backend, call.context)
                agreement.call = f"Snapshot.load({name!r}, region={region and '…'}, backend={kind})"
                if region is not None:
                    start, array = _target(region, out, part.spec)
                elif out is not None:
                    raise ArgumentError("out is for rows: give their region too, e.g. region=partition(n).")
            if region is None:
                return read_parts(call.context, source, [part], backend=kind)[0]
            with agree(call.context.collective_comm), file_errors(self.path, name):
                part.read_range(source, start, bytes_of(array).data)
            return array

    def _part(self, name: str) -> ChecksummedPart:
        if name not in self.names:
            names = ", ".join(map(repr, self.names)) or "none"
            raise ArgumentError(f"{self.path} has no array {name!r}; it has {names}.")
        return self._contents.arrays[name]

    def __repr__(self) -> str:
        return f"<Snapshot of step {self.step} with {', '.join(self.names) or 'no array'} in {self.path}>"


def _target(region: object, out: object, spec: Spec) -> tuple[int, NDArray[Any]]:
    """Where the bytes of the rows in `region` begin in an array of `spec`; and `out`, or a new array for them.

    Raises:
        ArgumentError: `region` is not a slice of rows, or they do not fit `out`.
    """
    if not isinstance(region, slice) or region.step not in (None, 1):
        raise ArgumentError(f"region is {region!r}. Give a slice without a step, such as partition(n).")
    rows = parse_region(region, spec.shape)[0][0]
    shape = (len(rows), *spec.shape[1:])
    start = rows.start * replace(spec, shape=spec.shape[1:]).nbytes
    if out is None:
        return start, np.empty(shape, spec.dtype)
    if not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.c_contiguous:
        raise ArgumentError("out must be a numpy.ndarray that is C-contiguous and writable.")
    if out.shape != shape or out.dtype != spec.dtype:
        raise ArgumentError(f"out has {out.shape}, {out.dtype}, but the rows have {shape}, {spec.dtype}.")
    return start, out
