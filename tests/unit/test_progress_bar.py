"""A bar on a terminal, lines elsewhere, and a stream that fails."""

import io
import sys

import pytest

from mpishare import progress_bar
from mpishare.progress_bar import Bar


class Stream(io.StringIO):
    """A stream that fails after `writes` writes."""

    def __init__(self, writes=1000, *, is_terminal=True):
        super().__init__()
        self.left = writes
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the stream has gone")
        return super().write(text)


def written(monkeypatch, stream, *, is_shown=True):
    """What a bar writes to `stream` for 3 MiB."""
    monkeypatch.setattr(sys, "stderr", stream)
    with Bar(3 << 20, unit="B", is_shown=is_shown) as bar:
        for done in (1 << 20, 2 << 20):
            bar.show(done)
        bar.end_round(3 << 20)
    return stream.getvalue()


@pytest.mark.parametrize(("writes", "is_shown"), [(1000, True), (1000, False), (0, True), (1, True)])
def test_a_terminal_shows_the_bytes(monkeypatch, writes, is_shown):
    """A terminal that fails ends the bar alone."""
    text = written(monkeypatch, Stream(writes), is_shown=is_shown)
    assert ("3.00M/3.00M" in text) == (is_shown and writes == 1000)
    assert bool(text) == (is_shown and writes > 0)


def test_a_terminal_of_the_launcher_shows_a_bar_of_its_width(monkeypatch):
    monkeypatch.setenv("MPISHARE_COLUMNS", "60")
    text = written(monkeypatch, Stream(is_terminal=False))
    assert "3.00M/3.00M" in text
    assert 55 < max(map(len, text.rstrip().split("\r"))) <= 60


def test_a_log_gets_a_line_now_and_then_and_a_last_one(monkeypatch):
    monkeypatch.delenv("MPISHARE_COLUMNS", raising=False)
    assert written(monkeypatch, Stream(is_terminal=False)) == ""
    monkeypatch.setattr(progress_bar, "_LINE_S", 0)
    assert written(monkeypatch, Stream(0, is_terminal=False)) == ""
    lines = written(monkeypatch, Stream(is_terminal=False)).splitlines()
    done = [line.partition("/3.00M")[0].rpartition(" ")[2] for line in lines if line]
    assert done[:4] == ["0.00", "1.00M", "2.00M", "3.00M"]
