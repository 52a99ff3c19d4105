"""How far the work of all ranks is, on the standard error of one rank: a bar on a terminal, lines in a log.

The launcher gives its ranks a pipe for standard error, and copies what comes there to its own. So a rank cannot see a
terminal. `mpishare run` can, and tells the ranks how wide it is (`MPISHARE_COLUMNS`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

from mpishare.config import Config
from mpishare.errors import BackendError

_LINE_S = 10
"""Between two lines in a log. Work that takes less leaves none."""


class Bar:
    """What shows the progress. Once it is made, no error of the stream ends the work: other ranks would wait for it."""

    def __init__(self, total: int | None, unit: str = " tasks", *, is_shown: bool = True) -> None:
        """`total` counts in `unit`, None if it is not known; "B" are bytes. `is_shown` is true on one rank only.

        Raises:
            BackendError: It is to be shown, and tqdm is not installed.
        """
        self._bar: Any = None
        self._before = 0
        if is_shown:
            tqdm = check_tqdm()
            options: dict[str, Any] = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
            with self._ending_on_error():
                is_terminal, columns = sys.stderr.isatty(), Config.read_one("columns")
                # tqdm's own lock is one between processes, for which Python 3.14 starts a process.
                own: dict[str, Any] = {"_lock": RLock()}
                if not is_terminal and columns is None:
                    own.update(status_printer=staticmethod(_line_printer), monitor_interval=0)
                    options.update(ncols=0, delay=_LINE_S, mininterval=_LINE_S, miniters=1)
                elif not is_terminal:
                    options["ncols"] = columns  # without it tqdm asks the terminal
                kind: Any = type("bar", (tqdm,), own)
                self._bar = kind(total=total, unit=unit, file=sys.stderr, **options)

    def show(self, done: int) -> None:
        """Shows how much of this round has been done."""
        if self._bar is not None:
            with self._ending_on_error():
                self._bar.update(self._before + done - self._bar.n)

    def end_round(self, count: int) -> None:
        """Shows that all of this round has been done, `count` units."""
        self.show(count)
        self._before += count

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending_on_error():
            if self._bar is not None:
                self._bar.close()

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """An error, such as from a closed stream, ends the bar and nothing else."""
        try:
            yield
        except Exception:
            bar, self._bar = self._bar, None
            with suppress(Exception):
                bar.close()  # else tqdm keeps its line free, until the exception is collected


def _line_printer(stream: Any) -> Callable[[str], None]:
    """What writes each state of a bar as a line of a log."""

    def print_line(text: str) -> None:
        stream.write(text.strip() + "\n" if text else "")
        stream.flush()

    return print_line


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
