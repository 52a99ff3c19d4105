"""Errors of a program, as it prints them."""

from collections.abc import Iterator
from contextlib import contextmanager

import mpishare as ms


@contextmanager
def printed() -> Iterator[None]:
    """Prints our error that the block raises, with its class and the number that the system gave."""
    try:
        yield
    except ms.MpishareError as error:
        number = f"{error.errno} " if isinstance(error, ms.FileError) else ""
        print(f"error: {type(error).__name__} {number}{error}", flush=True)
