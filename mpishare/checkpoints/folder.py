"""The files of the checkpoints in a folder: which is the newest good one, and which are superseded."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from mpishare.arrays.slices import balanced_slice
from mpishare.checkpoints.contents import DAMAGE, CheckpointFile
from mpishare.comm import callsite
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import ArgumentError, FileError, text_of_error
from mpishare.files.atomic_file import check_access, sync_folder
from mpishare.files.errors import file_errors
from mpishare.files.input_file import InputFile, Stamp
from mpishare.files.replace_file import ROOT

_FILES = r"\d{12,}\.h5"
"""A pattern for the names of the files."""

GONE = (errno.ENOENT, errno.ESTALE)
"""Errors of a file that another job has removed or replaced."""

SET_ASIDE = "superseded-"
"""What the name of a file begins with that a save with `overwrite` has set aside."""

DAMAGED = "damaged-"
"""The same of a file that `newest` left out, from the next save on. So no later job, which need not look at it, takes
it for a good one that may be removed."""

_LOOKS = 10
"""A listing of the folder may miss the only checkpoint, when another job replaces it. So many in a row do not."""


class CheckpointFolder:
    """The files of the checkpoints in a folder.

    Attributes:
        path: The folder.
        damaged: The steps of the files that were not as they were saved; on the root, with their stamps.
        last: On the root, the step that was found or saved last; -1 if none was found, None before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: dict[int, Stamp | None] = {}
        self.last: int | None = None

    def check_writable(self) -> None:
        """Checks that the folder, or the one in which it will be made, can be written. Local.

        Raises:
            FileError: It cannot, or is no folder.
        """
        with file_errors(self.path, None, "no checkpoint can be saved there"):
            folder = self.path if os.path.lexists(self.path) else self.path.parent
            if not stat.S_ISDIR(folder.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder")
            cure = "to read only, call load(file, 'arrays/NAME')"
            check_access(folder, os.W_OK | os.X_OK, f"{folder} cannot be written; {cure}")

    def file(self, step: int) -> Path:
        """The file of a step."""
        return self.path / f"{step:012}.h5"

    def newest(self, context: Context) -> CheckpointFile | None:
        """The newest file that is as it was saved; None if the folder has no file.

        Raises:
            FileError: There are files, but none is as it was saved; or the folder or a file cannot be read.
            PeerError: Another rank raised one.

        Collective:
            Over the communicator.
        """
        self.damaged.clear()
        step: int | None = 0
        while step is not None:
            step, found = self._look(context)
            if found is not None:
                self.last = step
                return found
        with agree(context.collective_comm):
            if self.damaged:
                reason = f"all {len(self.damaged)} checkpoints are damaged. Remove them to start again."
                raise FileError(str(self.path), None, reason)
        self.last = -1
        return None

    def _look(self, context: Context) -> tuple[int | None, CheckpointFile | None]:
        """The highest step that is not known to be damaged, and its file.

        The file is None if it is damaged, which is noted, or has been replaced meanwhile. Collective over the
        communicator.
        """
        comm, is_root = context.collective_comm, context.topology.rank == ROOT
        step = found = stamp = None
        problems: list[Exception] = []
        with agree(comm), file_errors(self.path):
            if is_root:
                looks = (max(self._steps() - self.damaged.keys(), default=None) for _ in range(_LOOKS))
                step = next((step for step in looks if step is not None), None)
            if step is not None:
                with self._open(step, problems) as source:
                    stamp = source.stamp
                    found = CheckpointFile.read(source)
        step, found = comm.bcast_obj((step, found), ROOT)
        if step is None:
            return None, None
        with agree(comm), self._open(step, problems) as source:
            runs = found.runs if found is not None else ()
            for run in runs[balanced_slice(len(runs), comm.size, comm.rank)]:
                run.read(source.descriptor)
        is_replaced = is_root  # or removed
        with suppress(OSError):
            is_replaced = is_replaced and stamp != Stamp.of(self.file(step))
        outcomes = comm.allgather_obj(([text_of_error(problem) for problem in problems], is_replaced))
        reasons = [reason for of_rank, _ in outcomes for reason in of_rank]
        if reasons and not outcomes[ROOT][1]:
            with agree(comm), file_errors(self.file(step)):
                for problem in problems:
                    if isinstance(problem, OSError) and problem.errno in GONE:
                        raise problem  # the root still sees it
            self.damaged[step] = stamp
            with agree(comm):  # warnings may be errors
                if is_root:
                    callsite.warn(f"the checkpoint of step {step} in {self.path} is left out: {reasons[0]}")
        return step, None if reasons else found

    @contextmanager
    def _open(self, step: int, problems: list[Exception]) -> Iterator[InputFile]:
        """The file of a step. Adds to `problems` what the block finds to be wrong with it, or that it is gone.

        Raises:
            FileError: The file may be good, but cannot be read.
        """
        with file_errors(self.file(step)), InputFile(str(self.file(step))) as source:
            try:
                yield source
            except DAMAGE as error:
                if isinstance(error, OSError) and error.errno not in (None, *GONE):
                    raise
                problems.append(error)

    def _steps(self) -> set[int]:
        """The steps that have a file.

        Raises:
            OSError: The folder cannot be listed.
        """
        with suppress(FileNotFoundError):
            return {int(file.stem) for file in self.path.iterdir() if re.fullmatch(_FILES, file.name)}
        return set()

    def prepare(self, step: int, *, overwrite: bool) -> None:
        """Makes the folder if there is none; gives other names to the files that `newest` left out. Local.

        Raises:
            ArgumentError: Without `overwrite`: there is a later step, not damaged, and the computation has not looked
                for it, or is at a later one itself.
            FileError: The folder cannot be read or made, or a file cannot be renamed.
        """
        with file_errors(self.path, None, "it was not saved"):
            latest = max(self._steps() - self.damaged.keys(), default=step)
            if latest > step and (self.last is None or self.last > step) and not overwrite:
                raise ArgumentError(
                    f"step is {step}, but {self.path} has a checkpoint of step {latest}, and latest() of this "
                    "Checkpoint has not returned an earlier one. Continue from latest(), use another folder, or give "
                    "overwrite=True."
                )
            if not self.path.is_dir():
                self.path.mkdir(exist_ok=True)
                sync_folder(self.path.parent)
            for damaged, stamp in self.damaged.items():
                file = self.file(damaged)
                with suppress(FileNotFoundError):
                    if Stamp.of(file) == stamp:
                        names = (file.with_name(f"{DAMAGED * number}{file.name}") for number in count(1))
                        file.rename(next(name for name in names if not name.exists()))
        self.damaged.clear()

    def supersede(self, step: int, keep: int, *, sets_aside: bool) -> None:
        """Removes all files before the last `keep` up to `step`, the oldest first. Local.

        Args:
            step: The step that has been saved.
            keep: How many files stay, counted back from the file of `step`.
            sets_aside: Whether files of later steps get another name; otherwise they keep theirs.

        Raises:
            FileError: A file cannot be removed or renamed.
        """
        self.last = step
        with file_errors(self.path, None, "the checkpoint was saved, but others could not be removed or set aside"):
            steps = self._steps()
            for other in sorted(other for other in steps if other <= step)[:-keep]:
                self.file(other).unlink(missing_ok=True)
            later = [self.file(other) for other in steps if other > step and sets_aside]
            for file in later:
                with suppress(FileNotFoundError):  # another job has removed it
                    file.replace(file.with_name(f"{SET_ASIDE}{file.name}"))
            if later:
                sync_folder(self.path)
