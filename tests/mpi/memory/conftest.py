"""The backends of a launch, and the maps of this process."""

import gc
import os
from pathlib import Path
from tempfile import gettempdir

import pytest

from mpishare.memory import backends, pool

REFUSALS = {
    ("OMPI_MCA_osc", "^ucx,sm"): "this MPI makes no shared-memory windows",
    ("MPIR_CVAR_NOLOCAL", "1"): "MPI puts the ranks of host",
}
"""By the setting of a launch, why there are no windows in it."""
REFUSAL = next((reason for setting, reason in REFUSALS.items() if setting in os.environ.items()), "")
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
    folder = gettempdir() if "folder" in kind.title else ""
    return {"backend": kind.name, "dir": folder}


def permissions(address):
    """The permissions of the map that holds `address`, such as "rw-s"; "" where nothing is mapped."""
    return next((line.split()[1] for line in _maps_at(address)), "")


def file_of_map(address):
    """The file of the map that holds `address`, for root alone."""
    return next(Path("/proc/self/map_files", line.split()[0]) for line in _maps_at(address))


def _maps_at(address):
    """The line of /proc/self/maps that holds `address`, if there is one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < stop:
            yield line


def file_id(address):
    """The device and the inode of the file of the map that holds `address`."""
    return next(tuple(line.split()[3:5]) for line in _maps_at(address))
