"""The state of MPI, which has always begun, and the host."""

from __future__ import annotations

import platform
import time

from mpishare.comm.serial.constants import THREAD_MULTIPLE


def Is_initialized() -> bool:
    """Whether calls are possible."""
    return True


def Is_finalized() -> bool:
    """Whether calls are no longer possible."""
    return False


def Query_thread() -> int:
    """Which threads may call."""
    return THREAD_MULTIPLE


def Get_processor_name() -> str:
    """The name of the host."""
    return platform.node()


def Wtime() -> float:
    """Seconds since a time in the past."""
    return time.perf_counter()
