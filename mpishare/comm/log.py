"""Lines for people, by Python's logging."""

from __future__ import annotations


def log(line: str) -> None:
    """Logs a warning as "mpishare". Where the program has set up no logging, it is a line on stderr."""
    from logging import getLogger

    logger = getLogger("mpishare")
    logger.warning("%s", line if logger.hasHandlers() else f"mpishare: {line}")
