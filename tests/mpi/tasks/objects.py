"""Tasks that fail, and objects that cannot be sent."""

from __future__ import annotations

from typing import Any


def fail_at(number: int, item: int) -> int:
    """Fails for one item."""
    if number == item:
        raise ZeroDivisionError(f"of {number}")
    return number


class NotPicklable:
    """Cannot be pickled, by an error of any class."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


def fail_to_unpickle() -> None:
    raise ValueError("not to be unpickled")


class NotUnpicklable:
    """Cannot be unpickled on any rank."""

    def __reduce__(self) -> Any:
        return fail_to_unpickle, ()
