"""Communicators with other settings, and the maps of this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir

import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.memory import buffer_pool, cache, selection
from mpishare.memory.kinds import Kind

MAKES_WINDOWS = dict(os.environ).get("OMPI_MCA_osc") != "^ucx,sm"  # where a launch tells MPI to make none
KINDS = {kind.title: kind for kind in selection.KINDS if kind.name != "window" or MAKES_WINDOWS}
"""The segment kinds that this launch allows."""

Settings = Callable[..., MPI.Intracomm]


@pytest.fixture
def comm_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Duplicates COMM_WORLD with other settings: `comm_with(RECYCLE="0")` for MPISHARE_RECYCLE=0."""
    comms = []
    cache.clear()

    def duplicate(**settings: str) -> MPI.Intracomm:
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"MPISHARE_{name}", value)
            comms.append(MPI.COMM_WORLD.Dup())
            ms.topology(comms[-1])
        return comms[-1]

    yield duplicate
    gc.collect()
    for comm in comms:
        if comm != MPI.COMM_NULL:  # which a test has freed
            comm.Free()
    cache.clear()
    buffer_pool.clear()


def settings_of(kind: Kind) -> dict[str, str]:
    """The settings with which a node takes `kind`."""
    return {"BACKEND": kind.name, "DIR": gettempdir() if "folder" in kind.title else ""}


def permissions(address: int) -> str:
    """The permissions of the map that holds `address`, such as "rw-s"; "" where nothing is mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, stop = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < stop:
            return line.split()[1]
    return ""
