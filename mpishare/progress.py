"""A bar with the rate and the time left, for the rank that a person looks at."""

from __future__ import annotations

import sys
from typing import Any

from mpishare.errors import BackendError

__all__ = ["Bar", "check_tqdm"]


class Bar:
    """One bar for what all ranks do together, nothing where standard error is no terminal."""

    def __init__(self, total: int | None, unit: str = " tasks") -> None:
        """`total` is counted in `unit`; bytes, "B", are shown in larger ones."""
        scale = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
        self._bar = check_tqdm()(total=total, unit=unit, disable=None, file=sys.stderr, **scale)
        self._before = 0

    def show(self, done: int) -> None:
        """So much of this batch has been done."""
        self._bar.update(self._before + done - self._bar.n)

    def end_round(self, count: int) -> None:
        """All of this batch has been done."""
        self.show(count)
        self._before += count

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def check_tqdm() -> Any:
    """The class of bars.

    Raises:
        BackendError: tqdm is not installed.
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise BackendError("progress=True needs tqdm, which is not installed: pip install tqdm") from error
    return tqdm
