"""A folder with the last checkpoints of a computation, one file for each."""

from __future__ import annotations

import errno
import json
import operator
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mpishare.arrays.spec import Spec
from mpishare.checkpoints.snapshot import Known, Snapshot
from mpishare.checkpoints.writer import Filing
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import NOTE_BYTES, agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, FileError, SpecError, place_in, text_of_error
from mpishare.files.atomic_file import telling
from mpishare.files.hdf5_write import check_h5py, check_stored
from mpishare.files.replace_file import Order, replace_file
from mpishare.files.row_blocks import ROOT, RowBlocks
from mpishare.progress_bar import check_tqdm
from mpishare.transfer.rows import rows_of

_FILES = r"\d{12,}\.h5"
_BAD = b"\1".ljust(NOTE_BYTES, b"\0")

_DAMAGE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What comes of reading a file that is not as it was saved."""

_BAD_DISK = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
"""The system has lost bytes of the file. Any other error of it says nothing of the file, which may be good."""


class Checkpoint:
    """A folder with the last checkpoints of a computation, each of which is whole and checked, or not there.

    A checkpoint is a file of HDF5, with the arrays in its group "arrays" and the values as JSON in "values", that is
    written beside and takes its name when it is on the disk. Each byte of it is covered by a checksum, for the arrays
    in runs of 4 MiB, so that all ranks check together, and a rank that reads some rows checks no more than these.

    Args:
        path: The folder, on a file system that all hosts see. It is made by the first `save`; its parent must be there.
        keep: How many checkpoints stay.
        comm: The ranks; MPI_COMM_WORLD when None.

    Raises:
        ArgumentError: `path` is no path, or `keep` is less than 1.
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
        self._refused: set[int] = set()
        with collective("Checkpoint", comm) as call, call.begin() as agreement:
            self.path = _folder(path)
            self.keep = _number(keep, "keep", least=1)
            agreement.call = f"Checkpoint({self.path}, keep={self.keep})"

    def save(
        self,
        step: int,
        arrays: Mapping[str, NDArray[Any] | None],
        *,
        distributed: Collection[str] = (),
        values: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> None:
        """Saves a checkpoint, which is the latest from then on; removes those beyond `keep`, and any of later steps.

        Args:
            step: A number of 0 or more.
            arrays: The arrays by name, the same names on all ranks. Those on rank 0 are saved; on the other ranks they
                are ignored, unless `distributed` names them.
            distributed: The names of those of which each rank has rows, stacked in rank order.
            values: Small values by name, as JSON knows them: numbers, texts, lists, dicts. Those on rank 0 are saved.
            progress: Whether rank 0 shows a bar; see `mpishare.save`.

        Raises:
            SpecError: An array cannot be stored in HDF5, or a value not as JSON.
            ArgumentError: `step` or a name is none, or `distributed` names no array.
            FileError: The file cannot be written. What was there before is there still, or else the error says so.
            BackendError: h5py or tqdm is wanted and not installed.
            MismatchError: The ranks gave different arguments, or rows of different dtype or shape.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.save", self._comm) as call:
            self._save(call, step, arrays, distributed, values, progress=progress)

    def _save(
        self,
        call: collective,
        step: int,
        arrays: Mapping[str, NDArray[Any] | None],
        distributed: Collection[str],
        values: Mapping[str, Any] | None,
        *,
        progress: bool,
    ) -> None:
        context = call.context
        specs: dict[str, Spec] = {}
        text = ""
        with call.begin() as agreement:
            number = _number(step, "step", least=0)
            names = _names(arrays, distributed)
            for name in arrays if context.topology.rank == ROOT else names:
                specs[name] = self._spec_of(
                    name, arrays[name], is_stacked=name in names, checks=context.topology.rank == ROOT
                )
            if context.topology.rank == ROOT:
                check_h5py()
                if progress:
                    check_tqdm()
                text = _text(values)
                with telling(self.path, None):
                    self.path.mkdir(exist_ok=True)
            rows = {name: f"{specs[name].shape[1:]} {specs[name].dtype}" for name in names}
            agreement.call = f"Checkpoint.save({self.path}, {number}, {[*arrays]}, distributed={rows}, {progress=})"
        stacks = _stacks(context, list(arrays), specs, names)
        filing = Filing(number, text, stacks)
        order = Order(
            path=self._file(number),
            stacks=list(stacks.values()),
            lay_out=filing.lay_out,
            distributed=bool(names),
            complete=filing.complete,
            names=_FILES,
            progress=progress,
        )
        replace_file(context, order, [arrays[name] if name in specs else None for name in stacks])
        with agree(context.collective_comm), telling(self.path, None, "rid of older checkpoints"):
            if context.topology.rank == ROOT:
                self._remove_old(number)

    def latest(self) -> Snapshot | None:
        """The checkpoint of the highest step that is as it was saved. All ranks read it once, together.

        Each one that is not, because it was cut or altered, is told by a `RuntimeWarning` on rank 0, and the one before
        it is taken. The next `save` removes it. One that a rank may not or cannot read is an error, and stays.

        Returns:
            A `Snapshot`, None where there is no checkpoint.

        Raises:
            FileError: There are checkpoints, and none is as it was saved; or the folder or a file cannot be read.
            MismatchError: The ranks made different calls.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.latest", self._comm) as call:
            return self._latest(call)

    def _latest(self, call: collective) -> Snapshot | None:
        context = call.context
        steps: list[int] | None = None
        with call.begin() as agreement:
            agreement.call = f"Checkpoint.latest({self.path})"
            if context.topology.rank == ROOT:
                with telling(self.path, None, "read"):
                    steps = sorted(self._files(), reverse=True)
        steps = context.collective_comm.bcast_obj(steps, ROOT)
        assert steps is not None
        for step in steps:
            found = self._verified(context, step)
            if found is not None:
                return Snapshot(found, self._comm)
        with agree(context.collective_comm):
            if steps:
                told = f"of {len(steps)} checkpoints none is as it was saved. Remove the folder to begin anew."
                raise FileError(str(self.path), None, told)
        return None

    def _files(self) -> dict[int, Path]:
        """The checkpoints in the folder, by their steps."""
        if not self.path.exists():
            return {}
        named = {int(file.stem): file for file in self.path.iterdir() if re.fullmatch(_FILES, file.name)}
        return {step: file for step, file in named.items() if file == self._file(step) and file.is_file()}

    def _file(self, step: int) -> Path:
        return self.path / f"{step:012}.h5"

    def _verified(self, context: Context, step: int) -> Known | None:
        """What the file of a step tells, None where it is not as it was saved; rank 0 warns then."""
        known: Known | None = None
        reason = ""
        with agree(context.collective_comm), telling(self._file(step), None, "read"):
            try:
                if context.topology.rank == ROOT:
                    known = Known.read(self._file(step))
            except _DAMAGE as error:
                reason = _damage(error)
        known = context.collective_comm.bcast_obj(known, ROOT)
        with agree(context.collective_comm) as agreement, telling(self._file(step), None, "read"):
            try:
                if known is not None:
                    known.verify(context.topology.size, context.topology.rank)
            except _DAMAGE as error:
                reason = _damage(error)
            agreement.note = _BAD if reason else agreement.note
        if agreement.note == _BAD:
            reasons = [words for words in context.collective_comm.allgather_obj(reason) if words]
            self._refused.add(step)
            with agree(context.collective_comm):  # where warnings are errors
                if context.topology.rank == ROOT:
                    callsite.warn(f"the checkpoint of step {step} in {self.path} is left out: {reasons[0]}")
            return None
        return known

    def _remove_old(self, step: int) -> None:
        """Removes the files that stay no longer when that of `step` has been saved."""
        files = self._files()
        good = sorted((one for one in files if one <= step and one not in self._refused - {step}), reverse=True)
        for one in files.keys() - set(good[: self.keep]):
            files[one].unlink(missing_ok=True)
        self._refused.clear()

    def _spec_of(self, name: str, array: object, *, is_stacked: bool, checks: bool) -> Spec:
        """That of an array, which `checks` whether it can be stored."""
        try:
            spec = rows_of(array) if is_stacked else Spec.of(array)
            if checks:
                check_stored(spec)
        except SpecError as error:
            raise SpecError(f"{place_in(str(self.path), name)} cannot be saved: {error}") from error
        return spec


def _damage(error: BaseException) -> str:
    """What is wrong with a file, in words.

    Raises:
        OSError: Nothing may be, but it cannot be read.
    """
    if isinstance(error, OSError) and not isinstance(error, FileError) and error.errno not in _BAD_DISK:
        raise error
    return text_of_error(error)


def _stacks(context: Context, names: list[str], specs: Mapping[str, Spec], stacked: list[str]) -> dict[str, RowBlocks]:
    """Who has what of each array. Collective over the communicator."""
    of_root: dict[str, Spec] = context.collective_comm.bcast_obj(specs, ROOT)
    lengths = context.collective_comm.allgather_obj([specs[name].shape[0] for name in stacked])
    found = {}
    for name in names:
        if name in stacked:
            found[name] = RowBlocks.rows(of_root[name], [one[stacked.index(name)] for one in lengths])
        else:
            spec = of_root[name]
            found[name] = RowBlocks.whole(Spec(spec.dtype, spec.shape), context.topology.size)
    return found


def _folder(path: object) -> Path:
    try:
        folder = Path(path).absolute()  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"path {path!r} is no path: {error}") from error
    if "\0" in str(folder):
        raise ArgumentError(f"path {str(folder)!r} has a null byte in it.")
    return folder


def _number(given: object, name: str, *, least: int) -> int:
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError as error:
        raise ArgumentError(f"{name} is {given!r}; give an integer of {least} or more.") from error
    if number < least:
        raise ArgumentError(f"{name} is {number}; give an integer of {least} or more.")
    return number


def _names(arrays: Mapping[str, object], distributed: Collection[str]) -> list[str]:
    """The distributed ones, in the order of the arrays.

    Raises:
        ArgumentError: A name is none, or is of no array; or the arrays have no names.
    """
    if not isinstance(arrays, Mapping):
        raise ArgumentError(f"arrays is of {type(arrays).__name__}; give a dict of arrays by name.")
    for name in arrays:
        if not isinstance(name, str) or not name or name == "." or set("/\0") & set(name):
            raise ArgumentError(f"{name!r} is no name of an array. Give a text without a slash, such as 'grid'.")
    try:
        wanted = None if isinstance(distributed, str) else set(distributed)  # once: it may be a generator
    except TypeError:
        wanted = None
    if wanted is None or not wanted <= arrays.keys():
        raise ArgumentError(f"distributed is {distributed!r}; give names of {', '.join(map(repr, arrays))}.")
    return [name for name in arrays if name in wanted]


def _text(values: Mapping[str, Any] | None) -> str:
    """The values as JSON.

    Raises:
        SpecError: JSON does not know one of them.
    """
    try:
        text = json.dumps(dict(values or {}))
        _check_names(dict(values or {}))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"values cannot be saved: {error}. Give numbers, texts, lists and dicts, e.g. int(…)."
        ) from error
    return text


def _check_names(value: object) -> None:
    """Returns when all dicts within have texts as names, which JSON would make of others.

    Raises:
        TypeError: One has another.
    """
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"the name {name!r} is no text")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            _check_names(one)
