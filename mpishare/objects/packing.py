"""An object laid out in one segment: in front what it is and its small arrays, behind it each large array.

The front is filled by the root alone and travels first, since it tells where the large arrays are; these are then
filled and sent like arrays that are shared by themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block
from mpishare.arrays.spec import Spec
from mpishare.comm.context import Context
from mpishare.memory.segment import Segment
from mpishare.objects.pickled import PickledObject, pack_specs, unpack_specs
from mpishare.objects.pickling import pickle_object, unpickle_object
from mpishare.objects.unshared import Copied, Copies
from mpishare.transfer import plan
from mpishare.transfer.node_fill import ArraySource, fill, replicate

_ALIGNED_BYTES = 64
"""A cache line, and what the widest vector instructions want."""

_LARGE_BYTES = plan.MIN_CMA_BYTES

_LABEL = struct.Struct("<4sxxxxQQQQQ16x")
_MAGIC = b"MSO1"


class PackedHeader(NamedTuple):
    """What all ranks must know of a crate before they have it.

    Attributes:
        nbytes: Of the whole.
        front_bytes: Of the front.
        list_bytes: Of the list of arrays, with which the front begins.
        skeleton_bytes: Of the skeleton, which follows.
        copied_bytes: What the object takes on each rank besides.
    """

    nbytes: int
    front_bytes: int
    list_bytes: int
    skeleton_bytes: int
    copied_bytes: int

    def pack(self) -> bytes:
        """The label as it travels with an agreement."""
        return _LABEL.pack(_MAGIC, *self)

    @classmethod
    def read(cls, note: bytes) -> PackedHeader:
        """What `pack` told."""
        return cls(*_LABEL.unpack(note)[1:])


def is_packed_header(note: bytes) -> bool:
    """Whether it is of an object; else it is of an array."""
    return note.startswith(_MAGIC)


class PackedObject:
    """An object on the root. It satisfies `Source` by its front.

    Attributes:
        label: What is told of it.
        copies: What each rank must hold for itself.
        large: Its large arrays.
        contiguous: None, as its front is not contiguous.
    """

    contiguous = None

    def __init__(self, obj: object) -> None:
        """Takes `obj` apart.

        Raises:
            SpecError: A part of it cannot be pickled.
        """
        copies = Copies()
        parcel = pickle_object(obj, copies)
        self.copies: Sequence[Copied] = copies.found
        self._list, self._specs = pack_specs(parcel.arrays)
        self._parcel = parcel
        layout = self._layout = _Layout.of(len(self._list) + len(parcel.skeleton), self._specs)
        self.large = [parcel.arrays[number] for number in layout.large]
        copied = max(len(parcel.skeleton), sum(one.nbytes for one in self.copies))
        self.label = PackedHeader(layout.nbytes, layout.front_bytes, len(self._list), len(parcel.skeleton), copied)

    def write(self, place: memoryview) -> None:
        """Fills the front."""
        at = len(self._list)
        place[:at] = self._list
        place[at : at + len(self._parcel.skeleton)] = self._parcel.skeleton
        for spec, array, at in zip(self._specs, self._parcel.arrays, self._layout.offsets, strict=True):
            if spec.nbytes and at < self.label.front_bytes:
                fill(place[at : at + spec.nbytes], spec, array)


class _Layout(NamedTuple):
    """Where in the segment each array begins, the same on all ranks.

    Attributes:
        offsets: In bytes.
        large: The numbers of the arrays behind the front.
        front_bytes: The length of the front.
        nbytes: That of the whole.
    """

    offsets: Sequence[int]
    large: Sequence[int]
    front_bytes: int
    nbytes: int

    @classmethod
    def of(cls, text_bytes: int, specs: Sequence[Spec]) -> _Layout:
        """Lays out the list and the skeleton, of `text_bytes` together, and the arrays."""
        large = [number for number, spec in enumerate(specs) if spec.nbytes >= _LARGE_BYTES]
        offsets = [0] * len(specs)
        at = _rounded(text_bytes, _ALIGNED_BYTES)
        for number, spec in enumerate(specs):
            if spec.nbytes < _LARGE_BYTES:
                offsets[number], at = at, _rounded(at + spec.nbytes, _ALIGNED_BYTES)
        front_bytes = at
        for number in large:
            offsets[number] = _rounded(at, slices.PAGE_BYTES)
            at = offsets[number] + specs[number].nbytes
        return cls(offsets, large, front_bytes, at)


def _rounded(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def bring(context: Context, root: int, segment: Segment, label: PackedHeader, crate: PackedObject | None) -> None:
    """Brings the object that `root` has in `crate` into the segment of every node.

    Collective:
        Over the communicator, but a rank may return before others have come.
    """
    replicate(context, root, segment.block()[: label.front_bytes], segment.origin.is_shared, crate)
    if label.nbytes == label.front_bytes:
        return
    context.node_collective_comm.barrier()  # now all ranks of the node have the front
    specs, layout = _read(segment.block(), label)
    arrays: Sequence[NDArray[Any] | None] = [None] * len(layout.large) if crate is None else crate.large
    for number, array in zip(layout.large, arrays, strict=True):
        spec, at = specs[number], layout.offsets[number]
        source = None if array is None else ArraySource(spec, array)
        replicate(context, root, segment.block()[at : at + spec.nbytes], segment.origin.is_shared, source)


def unpacked(segment: Segment, label: PackedHeader) -> Any:
    """The object, whose arrays are views of `segment`. Local, once the segment is filled."""
    block = segment.block()
    specs, layout = _read(block, label)
    skeleton = block[label.list_bytes : label.list_bytes + label.skeleton_bytes].data
    arrays = [segment.view(spec, at) for spec, at in zip(specs, layout.offsets, strict=True)]
    return unpickle_object(PickledObject(skeleton, arrays))


def _read(block: Block, label: PackedHeader) -> tuple[list[Spec], _Layout]:
    specs = unpack_specs(block[: label.list_bytes].tobytes())
    return specs, _Layout.of(label.list_bytes + label.skeleton_bytes, specs)
