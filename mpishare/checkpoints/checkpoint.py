"""A folder with the last checkpoints of a computation, one file each."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mpishare.checkpoints import arguments
from mpishare.checkpoints.contents import DAMAGE, Contents
from mpishare.checkpoints.snapshot import Snapshot
from mpishare.checkpoints.writer import CheckpointWriter
from mpishare.comm import callsite, mpi
from mpishare.comm.agreement import agree
from mpishare.comm.collective import collective
from mpishare.comm.context import Context
from mpishare.errors import FileError, text_of_error
from mpishare.files.atomic_file import sync_folder
from mpishare.files.errors import file_errors
from mpishare.files.formats import checked_target
from mpishare.files.replace_file import Replacement, gather_row_blocks, replace_file
from mpishare.files.row_blocks import ROOT
from mpishare.files.source import Source, Stamp
from mpishare.progress_bar import check_tqdm

_FILES = r"\d{12,}\.h5"

_GONE = frozenset({errno.ENOENT, errno.ESTALE})
"""Errors for a file that another job has removed or replaced."""

_LOOKS = 10
"""A listing of the folder may miss the only checkpoint, when another job replaces it. So many in a row do not."""


class Checkpoint:
    """A folder with the last checkpoints of a computation, each of which is whole and checked, or not there.

    A checkpoint is an HDF5 file with the arrays in its group "arrays" and the values as JSON in "values". It takes its
    name when it is on the disk. A checksum covers each byte of it: for the arrays one for each 4 MiB, so that all ranks
    check together, and a rank that reads some rows checks no more than these.

    Args:
        path: The folder, on a file system that all hosts see. The first `save` makes it; its parent must exist.
        keep: How many checkpoints stay.
        comm: The ranks; MPI_COMM_WORLD when None.

    Raises:
        ArgumentError: `path` is not a path, or `keep` is less than 1.
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
        self._damaged: set[int] = set()
        with collective("Checkpoint", comm) as call, call.begin() as agreement:
            self.path = checked_target(path).absolute()
            self.keep = arguments.checked_integer(keep, "keep", least=1)
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
        """Saves a checkpoint, which is the latest from then on; removes those beyond `keep`, and all of later steps.

        A damaged one that `latest` left out stays.

        Args:
            step: The step of the computation, an integer >= 0.
            arrays: The arrays by name, the same names on all ranks. Those of rank 0 are saved; those of other ranks are
                ignored unless `distributed` names them.
            distributed: The names of the arrays of which each rank has rows, which are stacked in rank order.
            values: Small values by name, as JSON has them: numbers, strings, lists, dicts. Those of rank 0 are saved.
            progress: Whether rank 0 shows a bar; see `mpishare.save`.

        Raises:
            SpecError: An array cannot be stored in HDF5, or a value not as JSON.
            ArgumentError: `step` or a name cannot be used, or `distributed` names no array.
            FileError: The file cannot be written. The old ones are still there, or the error says otherwise.
            BackendError: h5py or tqdm is needed and not installed.
            MismatchError: The ranks gave different arguments, or rows of different dtype or shape.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.save", self._comm) as call:
            context = call.context
            is_root = context.topology.rank == ROOT
            values_json = ""
            with call.begin() as agreement:
                number = arguments.checked_integer(step, "step", least=0)
                rows = arguments.checked_names(arrays, distributed)
                specs = arguments.specs_of(self.path, arrays, rows, is_root=is_root)
                if is_root:
                    values_json = arguments.json_of(values)
                    if progress:
                        check_tqdm()
                    self._make_folder()
                names = {
                    name: f"{specs[name].shape[1:]} {specs[name].dtype}" if name in rows else "" for name in arrays
                }
                agreement.call = f"Checkpoint.save({self.path}, {number}, {names}, progress={progress})"
            blocks = gather_row_blocks(context, specs, rows)
            writer = CheckpointWriter(number, values_json, blocks)
            replacement = Replacement(
                path=self._file(number),
                blocks=list(blocks.values()),
                lay_out=writer.lay_out,
                distributed=bool(rows),
                complete=writer.complete,
                leftovers=_FILES,
                progress=progress,
            )
            replace_file(context, replacement, [arrays[name] if name in specs else None for name in blocks])
            with agree(context.collective_comm), file_errors(self.path, None, "older checkpoints were not removed"):
                self._damaged.discard(number)
                if is_root:
                    self._remove_old(number)

    def latest(self) -> Snapshot | None:
        """The checkpoint of the highest step that is as it was saved. The ranks read each byte of it once.

        For each one that has been cut or altered rank 0 gives a `RuntimeWarning`, and the one before it is tried.
        `save` does not remove it. One that cannot be read is an error.

        Returns:
            A `Snapshot`; None if there is no checkpoint.

        Raises:
            FileError: There are checkpoints, but none is as it was saved; or the folder or a file cannot be read.
            MismatchError: The ranks made different calls.
            PeerError: Another rank raised one of these.
        """
        with collective("Checkpoint.latest", self._comm) as call:
            context = call.context
            with call.begin() as agreement:
                agreement.call = f"Checkpoint.latest({self.path})"
                self._damaged.clear()
            while (step := self._newest_step(context)) is not None:
                contents = self._verified(context, step)
                if contents is not None:
                    return Snapshot(contents, self._comm)
            with agree(context.collective_comm):
                if self._damaged:
                    reason = f"none of {len(self._damaged)} checkpoints is as it was saved. Remove them to begin anew."
                    raise FileError(str(self.path), None, reason)
        return None

    def _make_folder(self) -> None:
        with file_errors(self.path, None, "it was not saved"):
            if not self.path.is_dir():
                self.path.mkdir(exist_ok=True)
                sync_folder(self.path.parent)

    def _newest_step(self, context: Context) -> int | None:
        """The highest step that is not known to be damaged. Collective over the communicator."""
        newest = None
        with agree(context.collective_comm), file_errors(self.path):
            looks = _LOOKS if context.topology.rank == ROOT else 0
            while newest is None and looks:
                newest = max(self._files().keys() - self._damaged, default=None)
                looks -= 1
        step: int | None = context.collective_comm.bcast_obj(newest, ROOT)
        return step

    def _files(self) -> dict[int, Path]:
        """The checkpoints in the folder, by their steps."""
        if not self.path.exists():
            return {}
        by_step = {int(file.stem): file for file in self.path.iterdir() if re.fullmatch(_FILES, file.name)}
        return {step: file for step, file in by_step.items() if file == self._file(step) and file.is_file()}

    def _file(self, step: int) -> Path:
        return self.path / f"{step:012}.h5"

    def _verified(self, context: Context, step: int) -> Contents | None:
        """The contents of a checkpoint; None if it is damaged, which is noted, or has been replaced meanwhile.

        Collective over the communicator.
        """
        file, comm, rank = self._file(step), context.collective_comm, context.topology.rank
        contents, stamp = None, None
        damage: list[str] = []
        with agree(comm), file_errors(file), Source(str(file)) as source, _noting_damage(damage):
            if rank == ROOT:
                stamp = source.stamp
                contents = Contents.read(source)
        contents = comm.bcast_obj(contents, ROOT)
        with agree(comm), file_errors(file), Source(str(file)) as source, _noting_damage(damage):
            for part in contents.arrays.values() if contents is not None else ():
                part.verify(source, comm.size, rank)
        is_replaced = rank == ROOT and (stamp is None or stamp != _stamp_of(file))
        outcomes = comm.allgather_obj((damage, is_replaced))
        reasons = [reason for damage, _ in outcomes for reason in damage]
        if reasons and not outcomes[ROOT][1]:
            self._damaged.add(step)
            with agree(comm):  # warnings may be errors
                if rank == ROOT:
                    callsite.warn(f"the checkpoint of step {step} in {self.path} is left out: {reasons[0]}")
        return None if reasons else contents

    def _remove_old(self, step: int) -> None:
        """Removes the files that are superseded by that of `step`, the oldest first."""
        files = self._files()
        kept = sorted((other for other in files.keys() - self._damaged if other <= step), reverse=True)[: self.keep]
        for other in sorted(files.keys() - self._damaged - set(kept)):
            files[other].unlink(missing_ok=True)


@contextmanager
def _noting_damage(reasons: list[str]) -> Iterator[None]:
    """Adds to `reasons` what is wrong with a file that the block reads, or that is gone.

    Raises:
        OSError: The file may be good, but cannot be read.
    """
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, *_GONE):
            raise
        reasons.append(text_of_error(error))


def _stamp_of(file: Path) -> Stamp | None:
    try:
        return Stamp.of(file)
    except OSError:
        return None
