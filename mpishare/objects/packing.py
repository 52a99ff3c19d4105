"""A packed object: one segment that begins with a prefix of contents, skeleton and small arrays; large arrays follow.

The root alone fills the prefix, which travels first, since it says where the large arrays are. These are filled and
sent like arrays that are shared by themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np

from mpishare.arrays.raw import Block, arrays_inside
from mpishare.arrays.spec import Spec
from mpishare.comm import callsite
from mpishare.comm.agreement import agree
from mpishare.comm.context import Context
from mpishare.errors import SpecError
from mpishare.memory.segment import Segment, segment_at
from mpishare.objects.pickling import (
    Inside,
    PickledObject,
    lay_out,
    pack_contents,
    pickle_object,
    unpack_contents,
    unpickle_object,
)
from mpishare.objects.unshared import LARGE_BYTES, UnsharedPart, describe, part_of_copies
from mpishare.transfer.node_fill import ArraySource, fill, replicate

_HEADER = struct.Struct("<4sxxxxQQQQQ16x")
_MAGIC = b"MSO1"

OWN_PLACE_BYTES = 4 << 20
"""An array of at least this size is no part of the prefix: between nodes it is sent while the root copies it."""

Views: TypeAlias = "list[tuple[int, ref[np.ndarray[Any, Any]]]]"
"""Of each array that is not inside of another one, the bytes and a reference."""


class PackedHeader(NamedTuple):
    """What all ranks must know of a packed object before they have it. It travels as the payload of an agreement.

    Attributes:
        nbytes: The bytes of the segment.
        prefix_bytes: Of the prefix.
        contents_bytes: Of the contents, with which the prefix begins.
        skeleton_bytes: Of the skeleton, which follows.
        copied_bytes: What the object takes on each rank besides the segment.
    """

    nbytes: int
    prefix_bytes: int
    contents_bytes: int
    skeleton_bytes: int
    copied_bytes: int

    @property
    def packed(self) -> tuple[bytes, bytes]:
        """The header as bytes: the payload, and no extension; see `Spec.packed`."""
        return _HEADER.pack(_MAGIC, *self), b""

    @classmethod
    def unpack(cls, payload: bytes) -> PackedHeader | None:
        """The header of a payload from `packed`; None if it is the header of an array."""
        return cls(*_HEADER.unpack(payload)[1:]) if payload.startswith(_MAGIC) else None


class PackedObject:
    """An object on the root. It satisfies `ByteSource` by its prefix.

    Attributes:
        header: What all ranks must know of it.
        unshared: The parts that each rank must copy.
        arrays: All its arrays.
        contiguous: None, as its prefix is not contiguous in memory.
    """

    contiguous = None

    def __init__(self, pickled: PickledObject, unshared: Sequence[UnsharedPart] = ()) -> None:
        """Lays out an object that has been pickled."""
        self._skeleton, self.arrays = pickled
        self.unshared = unshared
        self._specs = [Spec.of(array) for array in self.arrays]
        self._inside = arrays_inside(self.arrays)
        self._contents = pack_contents(self._specs, self._inside)
        sizes = len(self._contents), len(self._skeleton)
        self._offsets, prefix_bytes, nbytes = lay_out(sum(sizes), self._specs, self._inside, OWN_PLACE_BYTES)
        copied = max(sizes[1], sum(part.nbytes for part in self.unshared))
        self.header = PackedHeader(nbytes, prefix_bytes, *sizes, copied)

    def write(self, block: memoryview) -> None:
        """Fills the prefix."""
        start, end = len(self._contents), len(self._contents) + len(self._skeleton)
        block[:start] = self._contents
        block[start:end] = self._skeleton
        for number, (spec, start) in enumerate(zip(self._specs, self._offsets, strict=True)):
            if 0 < spec.nbytes < OWN_PLACE_BYTES and number not in self._inside:
                fill(block[start : start + spec.nbytes], spec, self.arrays[number])


def replicate_object(
    context: Context, root: int, segment: Segment, header: PackedHeader, packed: PackedObject | None
) -> None:
    """Brings an object into the segment of every node.

    Args:
        context: That of the communicator.
        root: The rank that has `packed`.
        segment: That of this node, or of this rank where it is not shared.
        header: That of the object.
        packed: None on the other ranks.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    block, is_shared = segment.block(), segment.origin.is_shared
    if header.nbytes == header.prefix_bytes:
        replicate(context, root, block, is_shared, packed)
        return
    with agree(context.collective_comm):  # the root may fail to write the prefix
        replicate(context, root, block[: header.prefix_bytes], is_shared, packed)
    with agree(context.collective_comm):  # all ranks read it once they know that it is there, and a rank may fail to
        places, inside = _places(block, header)
    for number, (spec, start) in enumerate(places):
        if spec.nbytes >= OWN_PLACE_BYTES and number not in inside:
            source = None if packed is None else ArraySource(spec, packed.arrays[number])
            replicate(context, root, block[start : start + spec.nbytes], is_shared, source)


def unpack_object(segment: Segment, header: PackedHeader) -> tuple[Any, Views]:
    """The object, whose arrays are views of `segment`, and references to these. Local, once the segment is filled."""
    block = segment.block()
    skeleton = block[header.contents_bytes : header.contents_bytes + header.skeleton_bytes].data
    places, inside = _places(block, header)
    arrays = [segment.view(spec, start) for spec, start in places]
    views = [(spec.nbytes, ref(arrays[number])) for number, (spec, _) in enumerate(places) if number not in inside]
    return unpickle_object(PickledObject(skeleton, arrays)), views


def note_bytes(segment: Segment, header: PackedHeader, obj: Any, views: Views, *, warns: bool) -> None:
    """Notes how many bytes of a segment are in views, and how many each rank has copied of the object from it.

    If this rank `warns`, a warning names the classes that copy arrays.
    """
    viewed_bytes = sum([nbytes for nbytes, view in views if view() is not None])
    dropped_bytes = sum([nbytes for nbytes, _ in views]) - viewed_bytes
    segment.unviewed_bytes = header.nbytes - viewed_bytes
    segment.copied_bytes = header.copied_bytes
    if dropped_bytes >= LARGE_BYTES:
        copied_bytes = _copied_bytes(obj, header, dropped_bytes)
        segment.copied_bytes += copied_bytes
        if warns and copied_bytes >= LARGE_BYTES:
            callsite.warn(f"share(): {describe([part_of_copies(obj, copied_bytes)])}")


def _copied_bytes(obj: Any, header: PackedHeader, dropped_bytes: int) -> int:
    """The bytes that `obj` holds besides views of shared memory, at most the packed bytes that it has no views of.

    It is pickled once more: an array that its class has dropped is no copy. What cannot be pickled is taken to have
    copied all.
    """
    try:
        skeleton, arrays = pickle_object(obj)
    except SpecError:
        return dropped_bytes
    own = [array.nbytes for array in arrays if segment_at(array) is None]
    return min(sum(own) + max(0, len(skeleton) - header.skeleton_bytes), dropped_bytes)


def _places(block: Block, header: PackedHeader) -> tuple[list[tuple[Spec, int]], Inside]:
    """The spec of each array, and where it begins in a segment whose prefix is filled; and which are inside others."""
    specs, inside = unpack_contents(block[: header.contents_bytes].data)
    offsets, _, _ = lay_out(header.contents_bytes + header.skeleton_bytes, specs, inside, OWN_PLACE_BYTES)
    return list(zip(specs, offsets, strict=True)), inside
