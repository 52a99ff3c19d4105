"""A segment: node memory as the base of NumPy views, alive as long as the last of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays.raw import Block, address_of
from mpishare.arrays.spec import Spec
from mpishare.errors import BackendError
from mpishare.memory.kinds import Backing


@dataclass(frozen=True)
class Origin:
    """Where segments come from.

    Attributes:
        kind: Title of the segment kind that made them; "private" for a copy-on-write view.
        label: The call that made them, for reports.
        node_size: Number of ranks on the node.
        is_shared: Whether these ranks see one copy, or each has its own.
        refusals: For each kind that was tried before, why it did not do, by title.
    """

    kind: str
    label: str
    node_size: int
    is_shared: bool = True
    refusals: Mapping[str, str] = field(default_factory=dict)


class Segment:
    """The bytes of one array in the memory of this node, as this rank sees them.

    It is the `base` of every view of them, so that NumPy keeps it, and with it the memory, for as long as a view is.

    Attributes:
        memory: The bytes.
        nbytes: Bytes that the ranks of the node share.
        origin: Where it comes from.
        key: The same number on all ranks that made it together, and a different one for each segment; None for
            memory of this rank alone.
        writable: Whether this rank may write.
        copied_bytes: What each rank holds for itself of the object whose arrays these bytes are; 0 for an array.
    """

    __slots__ = (
        "__array_interface__",
        "__weakref__",
        "_original",
        "copied_bytes",
        "key",
        "memory",
        "nbytes",
        "origin",
        "writable",
    )

    def __init__(
        self, memory: Backing, nbytes: int, origin: Origin, key: int | None, original: Segment | None = None
    ) -> None:
        self.memory = memory
        self.nbytes = nbytes
        self.origin = origin
        self.key = key
        self.writable = True
        self.copied_bytes = 0
        self._original = original  # its bytes show where a copy-on-write view has none of its own
        _remember(self)

    @property
    def address(self) -> int:
        """Where the bytes begin in this process."""
        return self.memory.address

    def block(self) -> Block:
        """The bytes as a view, writable until `seal`."""
        self._open((self.nbytes,), "|u1")
        return np.asarray(self)

    def view(self, spec: Spec, at: int = 0) -> NDArray[Any]:
        """The array that begins `at` so many bytes, writable until `seal`."""
        if spec.typestr and spec.order == "C":
            self._open(spec.shape, spec.typestr, at)
            array: NDArray[Any] = np.asarray(self)
            return array
        return spec.view(self.block()[at:])

    def _open(self, shape: tuple[int, ...], typestr: str, at: int = 0) -> None:
        """Sets NumPy's door to the bytes.

        Source:
            The NumPy reference, "The array interface protocol", version 3.
        """
        data = (self.memory.address + at, not self.writable)
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": typestr, "version": 3}

    def seal(self) -> None:
        """Makes this rank's pages read-only, and every view made from now on.

        Raises:
            BackendError: The kernel cannot protect the pages.
        """
        try:
            self.memory.protect()
        except OSError as error:
            raise BackendError(f"pages of {self.origin.kind} cannot be made read-only: {error}") from error
        self.writable = False

    def private_view(self, view: NDArray[Any]) -> NDArray[Any] | None:
        """`view`, which must be one of ours, over copy-on-write pages; None where there are no such pages."""
        memory = self.memory.private()
        if memory is None or view.size == 0:
            return None
        twin = Segment(memory, self.nbytes, Origin("private", "private", node_size=1), key=None, original=self)
        offset = address_of(view) - self.address
        return np.ndarray(view.shape, view.dtype, twin.block(), offset, view.strides)


def segment_of(array: NDArray[Any]) -> Segment | None:
    """The segment whose bytes `array` shows, None for memory that is not ours."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Segment) else None


def live_segments() -> list[Segment]:
    """The segments that this process has views of, the oldest first."""
    found = (reference() for reference in list(_references))
    return [segment for segment in found if segment is not None]


_references: list[weakref.ref[Segment]] = []
"""To all segments that live, and to some that have gone. A set of them would take longer than all else to keep."""

_many = 1000


def _remember(segment: Segment) -> None:
    global _many, _references
    _references.append(weakref.ref(segment))
    if len(_references) > _many:
        _references = [reference for reference in _references if reference() is not None]
        _many = 1000 + 2 * len(_references)
