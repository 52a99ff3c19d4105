"""A bar with the rate and the time left, for the rank that a person looks at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpishare.errors import BackendError


class Bar:
    """One bar for what all ranks do together, nothing where standard error is no terminal, or one that fails.

    It raises nothing once it is made: the other ranks would wait for the one that shows it.
    """

    def __init__(self, total: int | None, unit: str = " tasks") -> None:
        """`total` is counted in `unit`; bytes, "B", are shown in larger ones."""
        make = check_tqdm()
        scale = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
        self._bar: Any = None
        self._before = 0
        with self._for_show_only():
            if sys.stderr is not None and sys.stderr.isatty():
                self._bar = make(total=total, unit=unit, file=sys.stderr, **scale)

    def show(self, done: int) -> None:
        """So much of this batch has been done."""
        with self._for_show_only():
            if self._bar is not None:
                self._bar.update(self._before + done - self._bar.n)

    def end_round(self, count: int) -> None:
        """All of this batch has been done."""
        self.show(count)
        self._before += count

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        with self._for_show_only():
            if self._bar is not None:
                self._bar.close()

    @contextmanager
    def _for_show_only(self) -> Iterator[None]:
        """An error, of a stream that was closed say, is the end of the bar and of nothing else."""
        try:
            yield
        except Exception:
            self._bar = None


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
