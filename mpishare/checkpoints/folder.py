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

_GONE = frozenset({errno.ENOENT, errno.ESTALE})
"""Errors for a file that another job has removed or replaced."""

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
        while (step := self._newest_step(context)) is not None:
            contents = self._verified(context, step)
            if contents is not None:
                return contents
        with agree(context.collective_comm):
            if self.damaged:
                reason = f"none of {len(self.damaged)} checkpoints is as it was saved. Remove them to begin anew."
                raise FileError(str(self.path), None, reason)
        return None

    def _newest_step(self, context: Context) -> int | None:
        """The highest step that is not known to be damaged. Collective over the communicator."""
        newest = None
        with agree(context.collective_comm), file_errors(self.path):
            if context.topology.rank == ROOT:
                looks = (max(self._files().keys() - self.damaged, default=None) for _ in range(_LOOKS))
                newest = next((step for step in looks if step is not None), None)
        step: int | None = context.collective_comm.bcast_obj(newest, ROOT)
        return step

    def _files(self) -> dict[int, Path]:
        """The files by their steps."""
        if not self.path.exists():
            return {}
        by_step = {int(file.stem): file for file in self.path.iterdir() if re.fullmatch(FILES, file.name)}
        return {step: file for step, file in by_step.items() if file == self.file(step) and file.is_file()}

    def _verified(self, context: Context, step: int) -> Contents | None:
        """The contents of a checkpoint; None if it is damaged, which is noted, or has been replaced meanwhile.

        Collective over the communicator.
        """
        file, comm, rank = self.file(step), context.collective_comm, context.topology.rank
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
        is_replaced = rank == ROOT  # or removed
        with suppress(OSError):
            is_replaced = is_replaced and stamp != Stamp.of(file)
        outcomes = comm.allgather_obj((damage, is_replaced))
        reasons = [reason for damage, _ in outcomes for reason in damage]
        if reasons and not outcomes[ROOT][1]:
            self.damaged.add(step)
            with agree(comm):  # warnings may be errors
                if rank == ROOT:
                    callsite.warn(f"the checkpoint of step {step} in {self.path} is left out: {reasons[0]}")
        return None if reasons else contents

    def remove_superseded(self, step: int, keep: int) -> None:
        """Removes all files but those of `step` and the `keep` - 1 steps before it, the oldest first. Local.

        Raises:
            OSError: One cannot be removed.
        """
        self.damaged.discard(step)
        files = self._files()
        good = files.keys() - self.damaged
        kept = sorted((other for other in good if other <= step), reverse=True)[:keep]
        for other in sorted(good - set(kept)):
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
