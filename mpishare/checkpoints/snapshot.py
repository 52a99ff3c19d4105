"""A checkpoint that was found: its step, its values, and its arrays for whatever ranks there are now."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.checkpoints.manifest import Manifest, read_all
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.errors import ArgumentError, FileError
from mpishare.files.atomic_file import telling
from mpishare.files.row_blocks import Run
from mpishare.memory.allocation import allocate, seal
from mpishare.memory.selection import check_backend


@dataclass(frozen=True)
class Known:
    """What all ranks know of a checkpoint's file.

    Attributes:
        path: The file.
        manifest: What its front tells.
        checks: The CRC-32 of each run of each array.
    """

    path: Path
    manifest: Manifest
    checks: Mapping[str, NDArray[np.uint32]]

    @classmethod
    def read(cls, path: Path) -> Known:
        """What the file tells; all but the arrays is checked.

        Raises:
            OSError, ValueError, TypeError, KeyError: It cannot be read, or is not as it was saved.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            manifest = Manifest.read(fd)
            checks = {
                name: np.frombuffer(read_all(fd, entry.checks_at, 4 * len(list(entry.runs()))), "<u4")
                for name, entry in manifest.entries.items()
            }
        finally:
            os.close(fd)
        return cls(path, manifest, checks)

    def verify(self, parts: int, part: int) -> None:
        """Reads part number `part` of `parts` of the arrays.

        Raises:
            FileError: It is not as it was saved.
            OSError: It cannot be read.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in self.manifest.entries:
                stored = Stored(self, name)
                for number in range(*slices.balanced_slice(len(stored.runs), parts, part).indices(len(stored.runs))):
                    stored.read_run(fd, number, memoryview(bytearray(stored.runs[number].nbytes)))
        finally:
            os.close(fd)


class Stored:
    """One array in the file of a checkpoint, of which bytes are read as they were saved, or not at all."""

    def __init__(self, known: Known, name: str) -> None:
        self.spec = known.manifest.entries[name].stack.spec
        self.runs: list[Run] = list(known.manifest.entries[name].runs())
        self._starts = [run.at for run in self.runs]
        self._at = known.manifest.entries[name].stack.at
        self._path, self._name, self._checks = known.path, name, known.checks[name]

    def read(self, start: int, place: memoryview) -> None:
        """Fills `place` with the bytes of the array from `start` on.

        Raises:
            FileError: They are not what was saved.
            OSError: They cannot be read.
        """
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at, end = self._at + start, self._at + start + place.nbytes
            while at < end:
                number = bisect_right(self._starts, at) - 1
                run = self.runs[number]
                upto = min(run.at + run.nbytes, end)
                wanted = place[at - self._at - start : upto - self._at - start]
                if wanted.nbytes == run.nbytes:
                    self.read_run(fd, number, wanted)
                else:
                    whole = memoryview(bytearray(run.nbytes))
                    self.read_run(fd, number, whole)
                    wanted[:] = whole[at - run.at : upto - run.at]
                at = upto
        finally:
            os.close(fd)

    def read_run(self, fd: int, number: int, place: memoryview) -> None:
        """Fills `place`, which has its length, with a run; see `read`."""
        run, done = self.runs[number], 0
        while done < run.nbytes and (count := os.preadv(fd, [place[done:]], run.at + done)):
            done += count
        if done < run.nbytes or crc32(place) != self._checks[number]:
            told = f"its {run.nbytes:,} bytes from {run.at:,} on are not those that were saved"
            raise FileError(str(self._path), self._name, told)


class Snapshot:
    """A checkpoint as `Checkpoint.latest` found it, on whatever ranks and nodes there are now.

    Attributes:
        step: The step that it was saved at.
        names: The names of its arrays.
        path: Its file, which is one of HDF5, with the arrays in the group "arrays".
    """

    def __init__(self, known: Known, comm: mpi.Comm | None) -> None:
        self._known = known
        self._comm = comm
        self.step = known.manifest.step
        self.names = tuple(known.manifest.entries)
        self.path = known.path

    @property
    def values(self) -> dict[str, Any]:
        """The small values, in a dict of its own each time. What were tuples are lists."""
        found: dict[str, Any] = json.loads(self._known.manifest.values)
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, of all its rows. Local."""
        return self._stored(name).spec.shape

    def load(
        self, name: str, *, region: slice | None = None, out: NDArray[Any] | None = None, backend: str | None = None
    ) -> NDArray[Any]:
        """Reads an array, or rows of it, and checks each byte that it reads.

        Args:
            name: Its name.
            region: This rank's rows, as a slice without step; None for the whole array, once per node.
            out: With `region`, a C-contiguous array of their shape and dtype for them, such as rows of one in node
                memory; None for a fresh one.
            backend: Without `region`, the segment kind to use; see `share`.

        Returns:
            The rows, in `out` or in a fresh array; or the whole as `share` gives it, read-only, one copy per node.

        Raises:
            ArgumentError: There is no such array, or `region` or `out` does not fit it.
            FileError: Bytes are not those that were saved, or the file cannot be read here.
            CapacityError: The array does not fit on this node, or, as a `PeerCapacityError`, on another.
            MismatchError: The ranks gave different names, or some a region.
            PeerError: Another rank raised one of these.

        Collective:
            Over the ranks that the `Checkpoint` was made for.
        """
        with collective("Snapshot.load", self._comm) as call:
            if region is None:
                return _load_whole(call, self, name, out, backend)
            return self._load_rows(call, name, region, out)

    def _load_rows(self, call: collective, name: str, region: slice, out: NDArray[Any] | None) -> NDArray[Any]:
        with call.begin() as agreement:
            agreement.call = f"Snapshot.load({name!r}, region=…)"
            stored = self._stored(name)
            rows = _checked_rows(region, stored.spec.shape)
            spec = replace(stored.spec, shape=(rows.stop - rows.start, *stored.spec.shape[1:]))
            place = np.empty(spec.shape, spec.dtype) if out is None else _checked_out(out, spec.shape, spec.dtype)
        with agree(call.context.collective_comm), telling(self.path, name, "read"):
            row_bytes = replace(stored.spec, shape=stored.spec.shape[1:]).nbytes
            if place.nbytes:
                stored.read(rows.start * row_bytes, place.reshape(-1).view(np.uint8).data)
        return place

    def _stored(self, name: str) -> Stored:
        if name not in self.names:
            raise ArgumentError(
                f"{self.path} has no array {name!r}. It has {', '.join(map(repr, self.names)) or 'none'}."
            )
        return Stored(self._known, name)

    def __repr__(self) -> str:
        return f"<Snapshot of step {self.step} with {', '.join(self.names) or 'no array'} in {self.path}>"


def _load_whole(call: collective, snapshot: Snapshot, name: str, out: object, backend: str | None) -> NDArray[Any]:
    """The whole of an array, of which the ranks of each node read disjoint parts."""
    context = call.context
    with call.begin() as agreement:
        kind = check_backend(backend, context)
        if out is not None:
            raise ArgumentError("out is for this rank's rows: give their region as well, e.g. region=partition(n).")
        stored = snapshot._stored(name)
        agreement.call = f"Snapshot.load({name!r}, region=None, backend={kind})"
    segment = allocate(context, stored.spec.nbytes, backend=kind, label="load", writable=False)
    with agree(context.collective_comm), telling(snapshot.path, name, "read"):
        parts, part = (context.topology.node_size, context.topology.node_rank) if segment.origin.is_shared else (1, 0)
        mine = stored.runs[slices.balanced_slice(len(stored.runs), parts, part)]
        if mine:
            start = mine[0].at - stored.runs[0].at
            stored.read(start, segment.block()[start : start + sum(run.nbytes for run in mine)].data)
    seal(context, segment)
    return segment.view(stored.spec)


def _checked_rows(region: object, shape: tuple[int, ...]) -> slice:
    """The rows as a slice with start and stop.

    Raises:
        ArgumentError: `region` is no slice of rows.
    """
    if not isinstance(region, slice) or region.step not in (None, 1):
        raise ArgumentError(f"region {region!r} is no run of rows. Give a slice without step, such as partition(n).")
    if not shape:
        raise ArgumentError("an array without axes has no rows. Load it whole, without region.")
    try:
        start, stop, _ = region.indices(shape[0])
    except TypeError as error:
        raise ArgumentError(f"region {region!r} is not understood: {error}.") from error
    return slice(start, max(start, stop))


def _checked_out(out: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Raises ArgumentError where `out` cannot take the rows."""
    if not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.c_contiguous:
        raise ArgumentError("out must be a numpy.ndarray that is C-contiguous and may be written.")
    if out.shape != shape or out.dtype != dtype:
        raise ArgumentError(f"out has {out.shape}, {out.dtype}, but the rows have {shape}, {dtype}.")
    return out
