"""Handlers of signals that raise, in tests whose coverage is measured."""

import signal
from contextlib import contextmanager
from functools import wraps

import pytest

PAUSE_S = 0.001


def outside_coverage(handler):
    """The same handler of SIGALRM, called a moment later where the signal comes within coverage's own code.

    Coverage takes a lock in Python in every call that it traces. An exception there would keep the lock, and the next
    call would wait for ever.
    """

    @wraps(handler)
    def handle(number, frame):
        if frame.f_globals["__name__"].partition(".")[0] == "coverage":
            signal.setitimer(signal.ITIMER_REAL, PAUSE_S, signal.getitimer(signal.ITIMER_REAL)[1])
        else:
            handler(number, frame)

    return handle


@contextmanager
def interrupted():
    """Within a moment a signal comes, the handler of which raises."""
    before = signal.signal(signal.SIGALRM, outside_coverage(signal.default_int_handler))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
