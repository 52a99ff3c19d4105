"""The backends of a launch, and the maps of this process."""

import gc
import os
from tempfile import gettempdir

import pytest

from mpishare.memory import backends, pages, pool

REFUSALS = {
    ("OMPI_MCA_osc", "^ucx,sm"): "this MPI makes no shared-memory windows",
    ("MPIR_CVAR_NOLOCAL", "1"): "MPI puts the ranks of host",
}
"""By the setting of a launch, why there are no windows in it; an old kernel has none either."""
REFUSAL = next((reason for setting, reason in REFUSALS.items() if setting in os.environ.items()), "")
if not pages.can_populate():
    REFUSAL = "it is older than Linux 5.14"
MAKES_WINDOWS = not REFUSAL
KINDS = {kind.title: kind for kind in backends.BACKENDS if kind.name != "window" or MAKES_WINDOWS}
"""The backends that this launch allows."""


@pytest.fixture(autouse=True)
def _empty_caches():
    """Memory that other tests have used is neither used again nor counted."""
    pool.free_idle()
    yield
    gc.collect()
    pool.free_idle()


def settings_of(kind):
    """The settings with which a node takes `kind`."""
    folder = gettempdir() if "folder" in kind.title else None
    return {"backend": kind.name, "dir": folder}
