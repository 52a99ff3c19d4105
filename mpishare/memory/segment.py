"""A segment: node memory as the base of NumPy views, alive as long as the last of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, address_of
from mpishare.arrays.spec import Spec
from mpishare.comm.live import LiveObjects
from mpishare.errors import BackendError
from mpishare.memory.kinds import Origin
from mpishare.memory.mapping import Mapping
from mpishare.memory.slab import Slot


class Segment:
    """The bytes of one array in the memory of this node, as this rank sees them.

    It is the `base` of every view of them. So NumPy keeps it, and with it the memory, as long as there is a view. That
    of a slot stays for the next array there, once there is no view.

    Attributes:
        memory: The bytes.
        nbytes: Bytes that the ranks of the node share.
        origin: Where it comes from.
        key: A number that differs between arrays and is the same on all ranks of the call that made it; None for
            memory of this rank alone.
        made_by: The public call that made it, for reports.
        writable: Whether this rank may write.
        copied_bytes: What each rank holds for itself of the object whose arrays these bytes are; 0 for an array.
        unviewed_bytes: How many of the bytes no array is a view of, such as the pickle of the object; 0 for an array.
    """

    def __init__(
        self, memory: Mapping | Slot, origin: Origin, nbytes: int, key: int | None, made_by: str, keeps: object = None
    ) -> None:
        """`keeps` lives as long as the segment."""
        self.memory = memory
        self.nbytes = nbytes
        self.origin = origin
        self.key = key
        self.made_by = made_by
        self.writable = True
        self.copied_bytes = 0
        self.unviewed_bytes = 0
        self._keeps = keeps
        _live.add(self)

    @classmethod
    def of_slot(cls, slot: Slot) -> Segment:
        """That of a slot, before its first array."""
        return cls(slot, slot.node_memory.origin, 0, key=None, made_by="")

    def begin(self, nbytes: int, key: int, made_by: str, *, writable: bool) -> None:
        """Begins to be that of the next array in a slot; sealed already if not `writable`."""
        self.nbytes = nbytes
        self.key = key
        self.made_by = made_by
        self.copied_bytes = 0
        self.unviewed_bytes = 0
        if writable is not self.writable:
            if writable:
                self.memory.unprotect()
            else:
                self.memory.protect()
            self.writable = writable
        if not writable:
            self.memory.name(made_by)

    def block(self) -> Block:
        """A view of the bytes, shape (nbytes,), writable until `seal`."""
        return self._as_array((self.nbytes,), "|u1")

    def view(self, spec: Spec, at: int = 0) -> NDArray[Any]:
        """The array that begins at byte `at`, writable until `seal`."""
        if spec.typestr and spec.order == "C":
            return self._as_array(spec.shape, spec.typestr, at)
        return spec.view(self.block()[at:])

    def _as_array(self, shape: tuple[int, ...], typestr: str, at: int = 0) -> NDArray[Any]:
        """A new view, made by the array interface.

        Source:
            The NumPy reference, "The array interface protocol", version 3.
        """
        data = (self.memory.address + at, not self.writable)
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": typestr, "version": 3}
        return np.asarray(self)

    def seal(self) -> None:
        """Makes this rank's pages read-only, and every view made from now on.

        Raises:
            BackendError: The kernel cannot protect the pages.
        """
        try:
            if self.writable:
                self.memory.protect()
                self.memory.name(self.made_by)
        except OSError as error:
            raise BackendError(f"pages of {self.origin.kind} cannot be made read-only: {error}") from error
        self.writable = False

    def private(self) -> Segment | None:
        """The same bytes as copy-on-write memory of this rank; None where the kernel has none."""
        memory = self.memory.copy_on_write()
        if memory is None:
            return None
        # Unchanged pages show the bytes of this segment, which must live as long.
        return Segment(memory, Origin("private", node_size=1), self.nbytes, key=None, made_by="private", keeps=self)

    def same_view(self, view: NDArray[Any], segment: Segment) -> NDArray[Any]:
        """What `view` is of `segment`, of this one, which has as many bytes."""
        offset = address_of(view) - segment.memory.address
        return np.ndarray(view.shape, view.dtype, self.block(), offset, view.strides)


def segment_of(array: NDArray[Any]) -> Segment | None:
    """The segment that holds the bytes of `array`; None for other memory."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Segment) else None


def segment_at(array: NDArray[Any]) -> Segment | None:
    """The same where another library made the array, such as one of a tensor: by its address."""
    address = address_of(array)
    places = ((segment, address - segment.memory.address) for segment in live_segments())
    return next((segment for segment, place in places if 0 <= place < segment.nbytes), None)


_live = LiveObjects[Segment]()

_UNUSED = 3
"""References to the segment of a slot without views, as `live_segments` counts them."""


def live_segments() -> list[Segment]:
    """The segments of which this process has views."""
    segments = _live.all()
    counts = list(map(sys.getrefcount, segments))
    return [
        segment
        for segment, count in zip(segments, counts, strict=True)
        if count > _UNUSED or not isinstance(segment.memory, Slot)
    ]
