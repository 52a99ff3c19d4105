"""A bar: on a terminal, on none, and on one that fails."""

from __future__ import annotations

import io
import sys

import pytest

from mpishare.progress_bar import Bar


class Terminal(io.StringIO):
    """One that fails after so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the terminal has gone")
        return super().write(text)


def shown(monkeypatch: pytest.MonkeyPatch, stream: Terminal) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Bar(3 << 20, unit="B")
    with bar:
        for done in (1 << 20, 2 << 20):
            bar.show(done)
        bar.end_round(3 << 20)
    return stream.getvalue()


def test_a_terminal_shows_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "3.00M/3.00M" in shown(monkeypatch, Terminal(1000))


@pytest.mark.parametrize("writes", range(2))
def test_one_that_fails_ends_the_bar_alone(monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    assert "3.00M/3.00M" not in shown(monkeypatch, Terminal(writes))
