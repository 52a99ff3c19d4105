"""Where in the user's code mpishare was called, also as another thread sees it."""

import sys
from types import SimpleNamespace

from mpishare.comm.callsite import PACKAGE, call_of


class Returning:
    """A frame of the package whose function returns while another thread looks at it."""

    f_code = SimpleNamespace(co_filename=f"{PACKAGE}comm/context.py", co_name="wait", co_qualname="wait")

    def __init__(self, back):
        self._backs = [back]

    @property
    def f_back(self):
        return self._backs.pop() if self._backs else None


def test_a_frame_that_ends_meanwhile():
    own = sys._getframe()
    name, where, _ = call_of(Returning(own))  # type: ignore[arg-type]
    assert (name, where) == ("wait", f"{__file__}:{own.f_lineno - 1}")
