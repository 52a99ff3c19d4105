"""Tasks: a function applied to many items by all ranks, at once or for one rank that drives them."""

from __future__ import annotations

from mpishare.tasks.map import map  # noqa: A004 - like Python's own
from mpishare.tasks.pool import Pool

__all__ = ["Pool", "map"]
