"""A clock for limits to waiting, which leaves out what the process did not run."""

from __future__ import annotations

import time


class Stopwatch:
    """Counts seconds from when it is made.

    Between two looks it counts no more than `longest_s`: a batch system may suspend the whole job for hours, and nobody
    has waited for a rank meanwhile. For one thread at a time.
    """

    def __init__(self, longest_s: float = 0.1) -> None:
        """Starts it; it is looked at more often than every `longest_s`."""
        self._longest_s = longest_s
        self._looked = time.monotonic()
        self._counted_s = 0.0

    def seconds(self) -> float:
        """Looks at it."""
        now = time.monotonic()
        self._counted_s += min(now - self._looked, self._longest_s)
        self._looked = now
        return self._counted_s
