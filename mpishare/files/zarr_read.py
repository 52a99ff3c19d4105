"""A zarr array or group, versions 2 and 3, in a folder or a zip, read by zarr-python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import BackendError, FileError, MpishareError
from mpishare.files.errors import file_errors, reason_of
from mpishare.files.input_file import InputFile, Stamp, check_stamp
from mpishare.files.sliced import described_or_reason, read_tile
from mpishare.files.stored import Listing, Stored, Tree, shown_names

METADATA_FILES = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}
"""Files that say what a zarr folder is, in versions 3 and 2."""


class ZarrFile:
    """A zarr array or group. It satisfies `FormatReader`.

    The chunks of a folder are files of their own, which writers replace one by one. So a change of the metadata is
    noticed, and a change of a chunk is not. A zip is one file.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self._is_folder = Path(file.path).is_dir()
        self._members: dict[str, Any] = {}

    @cached_property
    def _root(self) -> Any:
        try:
            import zarr
        except ImportError as error:
            raise BackendError("zarr arrays need zarr, which is not installed: pip install zarr") from error
        if self._is_folder:
            return zarr.open(Path(self.file.path), mode="r")
        store = zarr.storage.ZipStore(f"/proc/self/fd/{self.file.descriptor}", mode="r")  # whatever its suffix is
        root = zarr.open(store, mode="r")
        self.file.callback(store.close)
        return root

    def _member(self, path: str) -> Any:
        """The array or the group of that path, "" for the root; its metadata are read once."""
        if path not in self._members:
            with _zarr_errors(self.file.path, path):
                self._stamp(path)
                root = self._root
                if path and hasattr(root, "shape"):
                    raise FileError(self.file.path, path, "the file has one array and no groups. Leave dataset out.")
                try:
                    self._members[path] = root[path] if path else root
                except KeyError as error:
                    reason = f"there is no such array or group; the file has {shown_names(sorted(root))}."
                    raise FileError(self.file.path, path, reason) from error
        return self._members[path]

    def _stamp(self, path: str) -> None:
        """Notes the stamps of the metadata in a folder, if the rank that inspected it has not."""
        for metadata in (Path(self.file.absolute_path, path, name) for name in METADATA_FILES):
            if self._is_folder and metadata.exists():
                self.file.stamps.setdefault(str(metadata), Stamp.of(metadata))

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays and the groups in the object of that name. See `FormatReader`."""
        root, file = (name or "").strip("/"), self.file
        arrays: list[Stored] = []
        found: dict[str, dict[str, Any]] = {}

        def tree(path: str) -> Tree:
            member = self._member(path)
            with _zarr_errors(file.path, path):
                if attributes:
                    found[path.removeprefix(root).strip("/")] = dict(member.attrs)
                if hasattr(member, "shape"):
                    arrays.append(described_or_reason(file.path, f"/{path}", member))
                    return len(arrays) - 1
                names = sorted(member)
            return {inner: tree(f"{path}/{inner}".strip("/")) for inner in names}

        made = tree(root)
        left_out = [f"array {array.name!r}: {array.reason}" for array in arrays if array.reason]
        return Listing(file.absolute_path, arrays, made, found, left_out, f"/{root}")

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`."""
        assert stored.name is not None
        read_tile(self.file.path, stored, self._member(stored.name.strip("/")), ranges, out)

    def check(self) -> None:
        """See `FormatReader`. A rank that has read nothing may not see the folder."""
        self.file.check()
        for path, stamp in self.file.stamps.items() if self._is_folder and self._members else ():
            with file_errors(self.file.path):
                check_stamp(path, stamp, Stamp.of(Path(path)))


@contextmanager
def _zarr_errors(place: str, path: str) -> Iterator[None]:
    """Errors of any class, as another library reads, become a FileError."""
    try:
        yield
    except MpishareError:
        raise
    except Exception as error:
        raise FileError(
            place, path or None, f"zarr cannot read it: {type(error).__name__}: {reason_of(error)}"
        ) from error
