"""A zarr array or group, versions 2 and 3, in a folder or a zip, read by zarr-python."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.files.errors import file_errors, imported
from mpishare.files.input_file import InputFile, Stamp, check_stamp
from mpishare.files.sliced import LibraryFile, described, index_of, shown_tile
from mpishare.files.stored import Stored
from mpishare.host.procfs import reopening_path

METADATA_FILES = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}
"""Files that say what a zarr folder is, in versions 3 and 2."""

_TEXT_CODECS = {"vlen-utf8", "vlen-bytes", "VLenUTF8Codec", "VLenBytesCodec"}
"""The codecs of strings of variable length, by their name in zarr 2 and by their class in zarr 3."""


class ZarrFile(LibraryFile):
    """A zarr array or group.

    The chunks of a folder are files of their own, which writers replace one by one. So a change of the metadata is
    noticed, and a change of a chunk is not. A zip is one file.

    Each array and each group is opened by itself, without consolidated metadata: zarr opens a group with all of its
    members, or not at all if one of these has an unknown codec or dtype.
    """

    root = "/"

    def __init__(self, file: InputFile) -> None:
        super().__init__(file)
        self._is_folder = Path(file.path).is_dir()
        self._members: dict[str, Any] = {}

    @cached_property
    def _top(self) -> Any:
        """What has the metadata of the whole: the folder, or a folder in the zip."""
        if self._is_folder:
            return Path(self.file.absolute_path)
        archive = zipfile.ZipFile(open(self.file.descriptor, "rb", closefd=False))  # noqa: SIM115 - of the file
        return zipfile.Path(archive, folder_in_zip(archive.namelist()) or "")

    @cached_property
    def _opened(self) -> Any:
        """A function that opens the array or the group of a path."""
        zarr = imported("zarr", "zarr arrays")
        options = {"use_consolidated": False} if zarr.__version__ >= "3" else {}
        if self._is_folder:
            return lambda path: zarr.open(str(self._top / path), mode="r", **options)
        store = zarr.storage.ZipStore(reopening_path(self.file.descriptor, self.file.path), mode="r")
        self.file.callback(store.close)
        return lambda path: zarr.open(store, mode="r", path=f"{self._top.at}{path}".rstrip("/"), **options)

    def member(self, name: str) -> Any:
        """See `LibraryFile`. Its metadata are read once."""
        if name not in self._members:
            path = name.strip("/")
            if path and not _has_metadata(self._top.joinpath(path)):
                return None
            for metadata in map(Path(self.file.absolute_path, path).joinpath, METADATA_FILES):
                if self._is_folder and metadata.exists():
                    self.file.stamps.setdefault(str(metadata), Stamp.of(metadata))
            self._members[name] = self._opened(path)
        return self._members[name]

    def names(self, name: str, group: Any) -> list[str]:
        """See `LibraryFile`."""
        folder = self._top.joinpath(name.strip("/")) if name != self.root else self._top
        return sorted(inner.name for inner in folder.iterdir() if _has_metadata(inner))

    def attributes(self, name: str, member: Any, unread: list[str]) -> dict[str, Any]:
        """See `LibraryFile`."""
        return dict(member.attrs)

    def stored(self, name: str, array: Any) -> Stored:
        """See `LibraryFile`. Strings of variable length count as one byte each, see `stored`."""
        is_text = _is_text(array)
        items = SimpleNamespace(shape=array.shape, dtype=np.dtype("S1"), chunks=array.chunks) if is_text else array
        return replace(described(self.file.path, name, items), is_text=is_text)

    def read(self, stored: Stored, ranges: Sequence[range], out: NDArray[np.void]) -> None:
        """See `FormatReader`. zarr writes into node memory; else a rank would hold each chunk twice."""
        index = index_of(ranges)
        with file_errors(self.file.path, stored.name, what=shown_tile(index)):
            array = self.member(str(stored.name))
            array.get_basic_selection(index, out=_buffer_of(out.view(stored.dtype)))

    def strings(self, stored: Stored, ranges: Sequence[range]) -> NDArray[Any]:
        """See `FormatReader`."""
        index = index_of(ranges)
        with file_errors(self.file.path, stored.name, what=shown_tile(index)):
            strings = np.asarray(self.member(str(stored.name))[index], object)
            encoded = np.empty(strings.size, object)
            # Where zarr-python 2 has no chunk, it gives None or 0.
            encoded[:] = [item if isinstance(item, bytes) else str(item or "").encode() for item in strings.flat]
        return encoded.reshape(strings.shape)

    def check(self) -> None:
        """See `FormatReader`. A rank that has read nothing may not see the folder."""
        super().check()
        for path, stamp in self.file.stamps.items() if self._is_folder and self._members else ():
            with file_errors(self.file.path):
                check_stamp(path, stamp, Stamp.of(Path(path)))


def folder_in_zip(names: Collection[str]) -> str | None:
    """The folder of a zip that is a zarr array or group, "" for all of it: one at the top; None without any."""
    tops = {"", *(name.partition("/")[0] + "/" for name in names)}
    return next((top for top in sorted(tops) for file in METADATA_FILES if f"{top}{file}" in names), None)


def _has_metadata(folder: Any) -> bool:
    """Whether a folder, a path of the file system or of a zip, is a zarr array or group."""
    return any(folder.joinpath(name).exists() for name in METADATA_FILES)


def _is_text(array: Any) -> bool:
    """Whether the items of zarr's array are strings of variable length."""
    codecs = [*(array.filters or ()), getattr(array, "serializer", None)]
    return not _TEXT_CODECS.isdisjoint(getattr(codec, "codec_id", type(codec).__name__) for codec in codecs)


def _buffer_of(array: NDArray[Any]) -> Any:
    """An array as zarr takes it to write into."""
    try:
        from zarr.core.buffer.cpu import NDBuffer
    except ImportError:  # in version 2 of zarr-python
        return array
    return NDBuffer.from_numpy_array(array)
