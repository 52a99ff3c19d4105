"""The live objects of some kind, of which other threads may make more at any time."""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

_T = TypeVar("_T")


class LiveObjects(Generic[_T]):
    """Objects that are here as long as they live.

    Each change is one operation on a dict, and so is the copy that `all` makes. To go through a `WeakSet` fails where
    another thread adds to it meanwhile.
    """

    def __init__(self) -> None:
        self._references: dict[ref[_T], None] = {}

    def add(self, item: _T) -> None:
        """Adds an object, which must be hashable."""
        self._references[ref(item, self._references.pop)] = None

    def discard(self, item: _T) -> None:
        """Removes an object if it is here."""
        self._references.pop(ref(item), None)

    def all(self) -> list[_T]:
        """Those that live, the oldest first."""
        references = list(self._references)
        return [item for item in (reference() for reference in references) if item is not None]
