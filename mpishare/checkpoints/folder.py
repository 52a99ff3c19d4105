"""The files of the checkpoints in a folder: which is the newest good one, and which are superseded."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpishare.checkpoints.contents import DAMAGE, Contents
from mpishare.comm import callsite
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import FileError, text_of_error
from mpishare.files.atomic_file import sync_folder
from mpishare.files.errors import file_errors
from mpishare.files.row_blocks import ROOT
from mpishare.files.source import Source, Stamp

FILES = r"\d{12,}\.h5"
"""A pattern for the names of the files."""

_LOOKS = 10
"""A listing of the folder may miss the only checkpoint, when another job replaces it. So many in a row do not."""


class CheckpointFolder:
    """The files of the checkpoints in a folder.

    Attributes:
        path: The folder.
        damaged: The steps of the files that were not as they were saved. They stay.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged: set[int] = set()

    def make(self) -> None:
        """Makes the folder if there is none. Local.

        Raises:
            FileError: It cannot be made.
        """
        with file_errors(self.path, None, "it was not saved"):
            if not self.path.is_dir():
                self.path.mkdir(exist_ok=True)
                sync_folder(self.path.parent)

    def file(self, step: int) -> Path:
        """The file of a step."""
        return self.path / f"{step:012}.h5"

    def newest(self, context: Context) -> Contents | None:
        """The contents of the newest file that is as it was saved; None if the folder has no file.

        Raises:
            FileError: There are files, but none is as it was saved; or the folder or a file cannot be read.
            PeerError: Another rank raised one.

        Collective:
            Over the communicator.
        """
        self.damaged.clear()
        step: int | None = 0
        while step is not None:
            step, contents = self._look(context)
            if contents is not None:
                return contents
        with agree(context.collective_comm):
            if self.damaged:
                reason = f"none of {len(self.damaged)} checkpoints is as it was saved. Remove them to begin anew."
                raise FileError(str(self.path), None, reason)
        return None

    def _look(self, context: Context) -> tuple[int | None, Contents | None]:
        """The highest step that is not known to be damaged, and its contents.

        The contents are None if they are damaged, which is noted, or have been replaced meanwhile. Collective over the
        communicator.
        """
        comm, is_root = context.collective_comm, context.topology.rank == ROOT
        step = contents = stamp = None
        damage: list[str] = []
        with agree(comm), file_errors(self.path):
            if is_root:
                looks = (max(self._steps() - self.damaged, default=None) for _ in range(_LOOKS))
                step = next((step for step in looks if step is not None), None)
            if step is not None:
                with self._open(step, damage) as source:
                    stamp = source.stamp
                    contents = Contents.read(source)
        step, contents = comm.bcast_obj((step, contents), ROOT)
        if step is None:
            return None, None
        with agree(comm), self._open(step, damage) as source:
            for part in contents.arrays.values() if contents is not None else ():
                part.verify(source, comm.size, comm.rank)
        is_replaced = is_root  # or removed
        with suppress(OSError):
            is_replaced = is_replaced and stamp != Stamp.of(self.file(step))
        outcomes = comm.allgather_obj((damage, is_replaced))
        reasons = [reason for damage, _ in outcomes for reason in damage]
        if reasons and not outcomes[ROOT][1]:
            self.damaged.add(step)
            with agree(comm):  # warnings may be errors
                if is_root:
                    callsite.warn(f"the checkpoint of step {step} in {self.path} is left out: {reasons[0]}")
        return step, None if reasons else contents

    @contextmanager
    def _open(self, step: int, reasons: list[str]) -> Iterator[Source]:
        """The file of a step. Adds to `reasons` what the block finds to be wrong with it, or that it is gone.

        Raises:
            FileError: The file may be good, but cannot be read.
        """
        with file_errors(self.file(step)), Source(str(self.file(step))) as source:
            try:
                yield source
            except DAMAGE as error:
                if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT, errno.ESTALE):
                    raise  # the two are those of a file that another job has removed or replaced
                reasons.append(text_of_error(error))

    def _steps(self) -> set[int]:
        """The steps that have a file."""
        files = self.path.iterdir() if self.path.exists() else ()
        steps = {int(file.stem) for file in files if re.fullmatch(FILES, file.name)}
        return {step for step in steps if self.file(step).is_file()}

    def remove_superseded(self, step: int, keep: int) -> None:
        """Removes all files but those of `step` and the `keep` - 1 steps before it, the oldest first. Local.

        Raises:
            FileError: One cannot be removed.
        """
        self.damaged.discard(step)
        with file_errors(self.path, None, "older checkpoints were not removed"):
            good = self._steps() - self.damaged
            kept = sorted(other for other in good if other <= step)[-keep:]
            for other in sorted(good.difference(kept)):
                self.file(other).unlink(missing_ok=True)
