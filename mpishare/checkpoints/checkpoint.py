"""Checkpoint, a folder with the last checkpoints of a computation; and Snapshot, one that was found."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import bytes_of
from mpishare.arrays.region import parse_region
from mpishare.arrays.spec import Spec
from mpishare.checkpoints.contents import CheckpointFile, CheckpointWriter, ChecksummedPart
from mpishare.checkpoints.folder import GONE, CheckpointFolder
from mpishare.checkpoints.values import dump, load
from mpishare.comm import mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.errors import ArgumentError, FileError, checked_integer, checked_path
from mpishare.files.errors import check_h5py, file_errors, stall_errors
from mpishare.files.input_file import InputFile
from mpishare.files.parallel_read import read_parts
from mpishare.files.replace_file import ROOT, Replacement
from mpishare.files.save import names_in, shapes_of, specs_of, warn_of_others
from mpishare.memory.backends import check_backend
from mpishare.progress_bar import check_tqdm


class Checkpoint:
    """A folder with the last checkpoints of a computation. Each checkpoint is whole and checked, or not there.

    A checkpoint is an HDF5 file with the arrays in its group "arrays" and the values as JSON in "values". It takes its
    name when it is on the disk. A checksum covers each byte of it: for the arrays one for each 4 MiB, so that all ranks
    check together, and a rank that reads some rows checks no more than these. An array that HDF5 cannot describe is a
    dataset of its bytes, such as one of unicode strings; `Snapshot.load` returns it as it was.

    Args:
        path: The folder, on a file system that all hosts see. The first `save` makes it; its parent must exist. What
            saves need is checked at once.
        keep: How many checkpoints stay, counted back from the one that was saved last.
        comm: The ranks; MPI_COMM_WORLD when None.

    Raises:
        ArgumentError: `path` is not a path, or `keep` is less than 1.
        FileError: This user cannot write to the folder, or make it.
        BackendError: h5py is not installed on this rank.
        MismatchError: The ranks gave different arguments.
        PeerError: Another rank raised one of these.

    Collective:
        Over `comm`, as all methods are.

    Example:
        >>> import mpishare as ms, numpy as np, os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoint = ms.Checkpoint(os.path.join(folder, "run"))
        ...     checkpoint.save(100, {"grid": np.ones((4, 3))}, values={"time": 0.5})
        ...     found = checkpoint.latest()
        ...     found.step, found.values, float(found.load("grid").sum())
        (100, {'time': 0.5}, 12.0)
    """

    def __init__(self, path: str | os.PathLike[str], *, keep: int = 2, comm: mpi.Comm | None = None) -> None:
        self._comm = comm
        with collective("Checkpoint", comm) as call:
            is_root = call.context.topology.rank == ROOT
            self.path = Path(checked_path(path)).absolute()
            self._folder = CheckpointFolder(self.path)
            self.keep = checked_integer("keep", keep, least=1)
            check_h5py()
            if is_root:
                self._folder.check_writable()
            call.agree(f"Checkpoint({self.path}, keep={self.keep})")

    def save(
        self,
        step: int,
        arrays: Mapping[str, NDArray[Any] | None],
        *,
        distributed: Collection[str] = (),
        values: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        progress: bool = False,
    ) -> None:
        """Saves a checkpoint, and then removes those before the last `keep`, counted up to this step.

        A checkpoint of a later step is never removed, and neither is a damaged one that `latest` left out: "damaged-"
        comes before its name, so that no later job removes it either. `save` refuses a step earlier than one in the
        folder, because a restart would continue from the later one. Exceptions:

        - The last step that this object found by `latest`, or saved, is not later. So the later one was left out as
          damaged, or is another job's. It stays, and `latest` prefers it if it is good.
        - `overwrite` is set. All later ones are set aside: their names get the prefix "superseded-", files that have
          these names already are replaced, and `latest` no longer finds them.

        Args:
            step: The step of the computation, an integer >= 0.
            arrays: The arrays by name, the same names on all ranks. Arrays of rank 0 are saved; arrays of other ranks
                are ignored unless `distributed` names them, with a warning if their shapes are others.
            distributed: The names of the arrays whose rows lie on all ranks. They are stacked in rank order.
            values: Small values by name. Those of rank 0 are saved: numbers of Python and NumPy, strings, bytes, None,
                dates, times with or without a zone of `zoneinfo`, paths, arrays of up to 1 MiB, NumPy's random
                generators of every kind; and lists, tuples, sets and dicts of these. `comm.gather` brings values of
                other ranks to rank 0.
            overwrite: Whether checkpoints of later steps are set aside, as when a run begins again.
            progress: Whether rank 0 shows a bar; see `mpishare.save`.

        Raises:
            SpecError: An array has no fixed-size dtype, or one of the values is of another class.
            ArgumentError: `step` or a name cannot be used, `distributed` names no array, or there are checkpoints of
                later steps. Nothing has been written.
            FileError: The file cannot be written. The old ones are still there, or the error says otherwise.
            CapacityError, StallError: See `mpishare.save`.
            BackendError: h5py or tqdm is needed and not installed.
            MismatchError: The ranks gave different arguments, or rows of different dtype or shape.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.save", self._comm) as call:
            context = call.context
            is_root = context.topology.rank == ROOT
            number = checked_integer("step", step)
            _check_names(arrays)
            rows = names_in(distributed, arrays)
            specs = specs_of(self.path, arrays, rows, is_root=is_root, any_dtype=True)
            values_json = dump(values) if is_root else ""
            if is_root:
                if progress:
                    check_tqdm()
                self._folder.prepare(number, overwrite=overwrite)
            kinds = {name: f"{specs[name].shape[1:]} {specs[name].dtype}" for name in rows}
            compared = f"Checkpoint.save({self.path}, {number}, {list(arrays)}, {kinds}, {overwrite=}, {progress=})"
            warn_of_others(context, call.agree(compared, shapes_of(arrays, rows)))
            file, writer = self._folder.file(number), CheckpointWriter(number, values_json)
            Replacement(context, file, arrays, specs, rows, writer.lay_out, writer.complete, progress=progress).run()
            with stall_errors("the checkpoint was saved"), agree(context.collective_comm):
                if is_root:
                    self._folder.supersede(number, self.keep, sets_aside=overwrite)

    def latest(self) -> Snapshot | None:
        """The checkpoint of the highest step that is as it was saved. The ranks read each byte of it once.

        For each one that has been cut or altered rank 0 gives a `RuntimeWarning`, and the one before it is tried.
        `save` does not remove it, but sets it aside. One that cannot be read is an error.

        Returns:
            A `Snapshot`; None if there is no checkpoint.

        Raises:
            FileError: There are checkpoints, but none is as it was saved; or the folder or a file cannot be read.
            MismatchError: The ranks made different calls.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.latest", self._comm) as call:
            call.agree(f"Checkpoint.latest({self.path})")
            file = self._folder.newest(call.context)
        return None if file is None else Snapshot(file, self._comm)


class Snapshot:
    """A checkpoint as `Checkpoint.latest` found it.

    Attributes:
        step: The step at which it was saved.
        names: The names of its arrays.
        path: Its file, an HDF5 file with the arrays in the group "arrays".
    """

    def __init__(self, file: CheckpointFile, comm: mpi.Comm | None) -> None:
        self._file = file
        self._comm = comm
        self.step = file.step
        self.names = tuple(file.arrays)
        self.path = file.path

    @property
    def values(self) -> dict[str, Any]:
        """The small values, made anew each time. They equal the saved ones, and have their classes.

        Subclasses have become what they are derived from: a named tuple a tuple, an IntEnum an int.

        Raises:
            FileError: This version of NumPy or this machine lacks the class, the dtype or the time zone of one.
        """
        with file_errors(self.path):
            return load(self._file.values)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, with all its rows. Local."""
        return self._part(name).spec.shape

    def load(
        self, name: str, *, region: slice | None = None, out: NDArray[Any] | None = None, backend: str | None = None
    ) -> NDArray[Any]:
        """Reads an array, or rows of it, and checks each byte that it reads.

        A whole array is read once per job, by the ranks of rank 0's node, which send it on to the other nodes. Where
        another job has removed or replaced the checkpoint since `latest` found it, `latest` finds the next one.

        Args:
            name: The name of the array.
            region: This rank's rows, as a slice without a step; None for the whole array, once per node. As in NumPy,
                a slice that goes past the last row ends there.
            out: With `region`, a C-contiguous array of the rows' shape and dtype to fill, such as rows of an array in
                node memory; None for a new one.
            backend: Without `region`, the backend to use; see `share`.

        Returns:
            The rows, in `out` or in a new array; or the whole array, read-only, one copy per node.

        Raises:
            ArgumentError: There is no such array, `region` is no such slice, or `out` does not fit the rows.
            FileError: Bytes differ from the saved ones, or the file cannot be read, or another job has removed it.
            CapacityError: The array does not fit on this node, or, as a `PeerCapacityError`, on another.
            MismatchError: The ranks gave different names, or only some of them a region.
            PeerError: Another rank raised one of these.

        Collective:
            Over the ranks of the `Checkpoint`.
        """
        with collective("Snapshot.load", self._comm) as call, InputFile(str(self.path)) as source:
            part = self._part(name)
            if region is not None or call.context.topology.node == call.context.topology.node_of(ROOT):
                self._open(source)
            kind = check_backend(backend, call.context)
            if region is not None:
                start, array = _target_rows(region, out, part.spec)
            elif out is not None:
                raise ArgumentError("out is for rows: give their region too, e.g. region=partition(n).")
            call.agree(f"Snapshot.load({name!r}, region={region and '…'}, backend={kind})")
            if region is None:
                return read_parts(call.context, source, [part], backend=kind, progress=False)[0]
            with agree(call.context.collective_comm):
                part.read(source, bytes_of(array), start=start)
            return array

    def _open(self, source: InputFile) -> None:
        """Opens the file before any rank reads it, so that another job may remove it from then on.

        Raises:
            FileError: It cannot be opened, or has been removed or replaced since `latest` found it.
        """
        stamp = None
        try:
            stamp = source.stamp
        except FileError as error:
            if error.errno not in GONE:
                raise
        if stamp is None or stamp[:2] != self._file.stamp[:2]:  # hosts may see different times
            reason = "another job has removed or replaced it since latest() found it. Call latest() again."
            raise FileError(str(self.path), None, reason)

    def _part(self, name: str) -> ChecksummedPart:
        if name not in self.names:
            raise ArgumentError(f"{self.path} has no array {name!r}; it has {', '.join(self.names) or 'none'}.")
        return self._file.arrays[name]

    def __repr__(self) -> str:
        return f"<Snapshot of step {self.step} with {', '.join(self.names) or 'no array'} in {self.path}>"


def _check_names(arrays: Mapping[str, object]) -> None:
    """Checks the arrays of a checkpoint.

    Raises:
        ArgumentError: `arrays` is not a mapping, or a name cannot be used.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"arrays is of type {type(arrays).__name__}; expected a dict of arrays by name.")
    for name in arrays:
        if not isinstance(name, str) or not name or name == "." or set("/\0") & set(name):
            raise ArgumentError(f"{name!r} is not a name for an array. Give a string without a slash, such as 'grid'.")


def _target_rows(region: object, out: object, spec: Spec) -> tuple[int, NDArray[Any]]:
    """Where the bytes of the rows in `region` begin in an array of `spec`; and `out`, or a new array for them.

    Raises:
        ArgumentError: `region` is not a slice of rows, or they do not fit `out`.
    """
    if not isinstance(region, slice) or region.step not in (None, 1):
        raise ArgumentError(f"region is {region!r}. Give a slice without a step, such as partition(n).")
    rows = parse_region(region, spec.shape)[0][0].indices
    assert isinstance(rows, range)
    wanted = Spec(spec.dtype, (len(rows), *spec.shape[1:]))
    start = rows.start * replace(spec, shape=spec.shape[1:]).nbytes
    if out is None:
        return start, wanted.view(np.empty(wanted.nbytes, np.uint8))
    if not isinstance(out, np.ndarray) or not out.flags.writeable or not out.flags.c_contiguous:
        raise ArgumentError("out must be a numpy.ndarray that is C-contiguous and writable.")
    if not wanted.fits(out):
        raise ArgumentError(f"out has {out.shape}, {out.dtype}, but the rows have {wanted.shape}, {spec.dtype}.")
    return start, out
