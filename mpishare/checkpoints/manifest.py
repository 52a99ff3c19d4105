"""What the front of a checkpoint's file tells: the step, the values, where each array lies, and sums to check it all.

The file is one of HDF5, for whoever reads it, with a block of ours before HDF5's own bytes (H5Pset_userblock), which
HDF5 leaves alone. So a checkpoint is read without HDF5, and each byte of the file is covered by a checksum: this block
by its own, the arrays run by run, and what lies between them, which is HDF5's and the list of sums of the runs.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from mpishare.arrays.dtypes import describe, rebuild
from mpishare.arrays.spec import Spec
from mpishare.files.row_blocks import RowBlocks, Run

_HEAD = struct.Struct("<8sIIQQ")
"""Magic, version, CRC-32 of the text, length of the text, size of the user block."""

_MAGIC = b"mpishare"
_VERSION = 1
_SMALLEST_BYTES = 512  # of a user block, by HDF5
_LARGEST_BYTES = 1 << 30
_LARGEST_NUMBER = 1 << 62


class Gap(NamedTuple):
    """Bytes that are of no array, and their CRC-32."""

    at: int
    nbytes: int
    check: int


@dataclass(frozen=True)
class Entry:
    """One array.

    Attributes:
        stack: Where its bytes are, and in which runs.
        checks_at: Where the CRC-32 of each run begins, four bytes each, little-endian.
    """

    stack: RowBlocks
    checks_at: int

    def runs(self) -> Iterator[Run]:
        """All runs, in the order of the array."""
        for rank in range(len(self.stack.starts) - 1):
            yield from self.stack.runs(rank)

    def told(self) -> dict[str, Any]:
        """The same as plain data."""
        spec = self.stack.spec
        return {
            "dtype": describe(spec.dtype),
            "shape": list(spec.shape),
            "at": self.stack.at,
            "starts": list(self.stack.starts),
            "checks_at": self.checks_at,
        }

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Entry:
        """From plain data.

        Raises:
            ValueError, TypeError, KeyError: It is none of ours.
        """
        spec = Spec(rebuild(told["dtype"]), tuple(told["shape"]))
        return cls(RowBlocks(spec, tuple(told["starts"]), told["at"]), told["checks_at"])


@dataclass(frozen=True)
class Manifest:
    """What the front of the file tells.

    Attributes:
        step: The step of the computation.
        values: The small values, as JSON.
        nbytes: The size of the file.
        entries: The arrays by name.
        gaps: What is of no array, but for the front itself.
    """

    step: int
    values: str
    nbytes: int
    entries: Mapping[str, Entry]
    gaps: Sequence[Gap] = ()

    def pack(self, user_bytes: int) -> bytes:
        """The front of a file with so much room for it, without the zeros that fill it up."""
        told = {
            "step": self.step,
            "values": self.values,
            "nbytes": self.nbytes,
            "arrays": {name: entry.told() for name, entry in self.entries.items()},
            "gaps": self.gaps,
        }
        text = json.dumps(told).encode()
        return _HEAD.pack(_MAGIC, _VERSION, crc32(text), len(text), user_bytes) + text

    @classmethod
    def room(cls, step: int, values: str, stacks: Mapping[str, RowBlocks]) -> int:
        """How much room to leave for the front of a file with such arrays, whatever their places: a power of two."""
        at = _LARGEST_NUMBER
        entries = {name: Entry(RowBlocks(stack.spec, stack.starts, at), at) for name, stack in stacks.items()}
        gaps = [Gap(at, at, at)] * (len(stacks) + 1)
        return max(_SMALLEST_BYTES, 1 << (len(cls(step, values, at, entries, gaps).pack(at)) - 1).bit_length())

    @classmethod
    def read(cls, fd: int) -> Manifest:
        """That of an open file, whose bytes between the arrays are checked as well.

        Raises:
            ValueError: The file is no checkpoint, or has been cut or altered.
            OSError: It cannot be read.
        """
        text, user_bytes = _front(fd)
        told = json.loads(text)
        entries = {name: Entry.read(one) for name, one in told["arrays"].items()}
        found = cls(told["step"], told["values"], told["nbytes"], entries, [Gap(*gap) for gap in told["gaps"]])
        size = os.fstat(fd).st_size
        if size != found.nbytes:
            raise ValueError(f"it has {size:,} bytes instead of {found.nbytes:,}")
        for gap in found.gaps:
            if gap.at + gap.nbytes > size or crc32(read_all(fd, gap.at, gap.nbytes)) != gap.check:
                raise ValueError(f"its bytes from {gap.at:,} on, {gap.nbytes:,} of them, are not those that were saved")
        if found.gaps[0].at != user_bytes:
            raise ValueError("its front is of another size")
        return found


def _front(fd: int) -> tuple[bytes, int]:
    """The text in front of the file, and the size of the block that it is in.

    Raises:
        ValueError: There is none, or it has been altered.
    """
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise ValueError("it does not begin as a checkpoint does")
    _, version, check, length, user_bytes = _HEAD.unpack(head)
    if version != _VERSION or not length <= user_bytes <= min(_LARGEST_BYTES, os.fstat(fd).st_size):
        raise ValueError(f"it begins as one of version {version}, with {length:,} bytes of text")
    block = read_all(fd, _HEAD.size, user_bytes - _HEAD.size)
    text = block[:length]
    if crc32(text) != check or any(block[length:]):
        raise ValueError("its front is not what was saved")
    return text, user_bytes


def between(stacks: Sequence[RowBlocks], begin: int, end: int) -> Iterator[Run]:
    """The bytes of a file from `begin` to `end` that are of none of the arrays."""
    at = begin
    for stack in sorted((stack for stack in stacks if stack.spec.nbytes), key=lambda stack: stack.at):
        if stack.at > at:
            yield Run(at, stack.at - at)
        at = stack.at + stack.spec.nbytes
    if end > at:
        yield Run(at, end - at)


def read_all(fd: int, at: int, nbytes: int) -> bytes:
    """So many bytes from `at` on, fewer where the file ends before."""
    found = []
    while nbytes and (part := os.pread(fd, nbytes, at)):
        found.append(part)
        at, nbytes = at + len(part), nbytes - len(part)
    return b"".join(found)
