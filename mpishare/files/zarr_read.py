"""A zarr array or group, versions 2 and 3, in a folder or a zip, read by zarr-python."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.errors import FileError
from mpishare.files.errors import file_errors, imported, library_errors
from mpishare.files.input_file import InputFile, OpenFormat, Stamp, check_stamp
from mpishare.files.sliced import described_or_reason, index_of, shown_tile
from mpishare.files.stored import Listing, Stored, Tree, shown_names

METADATA_FILES = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}
"""Files that say what a zarr folder is, in versions 3 and 2."""


class ZarrFile(OpenFormat):
    """A zarr array or group. It satisfies `FormatReader`.

    The chunks of a folder are files of their own, which writers replace one by one. So a change of the metadata is
    noticed, and a change of a chunk is not. A zip is one file.
    """

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._is_folder = Path(file.path).is_dir()
        self._members: dict[str, Any] = {}

    @cached_property
    def _root(self) -> Any:
        zarr = imported("zarr", "zarr arrays")
        if self._is_folder:
            return zarr.open(Path(self.file.path), mode="r")
        store = zarr.storage.ZipStore(f"/proc/self/fd/{self.file.descriptor}", mode="r")  # whatever its suffix is
        root = zarr.open(store, mode="r")
        self.file.callback(store.close)
        return root

    def _member(self, path: str) -> Any:
        """The array or the group of that path, "" for the root; its metadata are read once."""
        if path not in self._members:
            place = self.file.path
            with library_errors(place, path or None, "its metadata"):
                for metadata in map(Path(self.file.absolute_path, path).joinpath, METADATA_FILES):
                    if self._is_folder and metadata.exists():
                        self.file.stamps.setdefault(str(metadata), Stamp.of(metadata))
                root = self._root
                if path and hasattr(root, "shape"):
                    raise FileError(place, path, "the file has one array and no groups. Leave dataset out.")
                if path and path not in root:
                    reason = f"there is no such array or group; the file has {shown_names(sorted(root))}."
                    raise FileError(place, path, reason)
                self._members[path] = root[path] if path else root
        return self._members[path]

    def listing(self, name: str | None, *, attributes: bool) -> Listing:
        """The arrays and the groups in the object of that name. See `FormatReader`."""
        root, file = (name or "").strip("/"), self.file
        arrays: list[Stored] = []
        found: dict[str, dict[str, Any]] = {}

        def tree(path: str) -> Tree:
            member = self._member(path)
            with library_errors(file.path, path or None, "its metadata"):
                if attributes:
                    found[path.removeprefix(root).strip("/")] = dict(member.attrs)
                if hasattr(member, "shape"):
                    arrays.append(described_or_reason(file.path, f"/{path}", member))
                    return len(arrays) - 1
                names = sorted(member)
            return {inner: tree(f"{path}/{inner}".strip("/")) for inner in names}

        made = tree(root)
        return Listing(file.absolute_path, arrays, made, found, root=f"/{root}")

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `Reader`. zarr writes into node memory; else a rank would hold each chunk twice."""
        array, index = self._member(str(stored.name).strip("/")), index_of(ranges)
        with library_errors(self.file.path, stored.name, shown_tile(index)):
            array.get_basic_selection(index, out=_buffer_of(out.view(stored.dtype)))

    def check(self) -> None:
        """See `FormatReader`. A rank that has read nothing may not see the folder."""
        super().check()
        for path, stamp in self.file.stamps.items() if self._is_folder and self._members else ():
            with file_errors(self.file.path):
                check_stamp(path, stamp, Stamp.of(Path(path)))


def _buffer_of(array: NDArray[Any]) -> Any:
    """An array as zarr takes it to write into."""
    try:
        from zarr.core.buffer.cpu import NDBuffer
    except ImportError:  # in version 2 of zarr-python
        return array
    return NDBuffer.from_numpy_array(array)
