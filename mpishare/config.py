"""Every environment variable that mpishare reads, and nowhere else."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mpishare.errors import ArgumentError

__all__ = ["Config"]


@dataclass(frozen=True)
class Config:
    """The settings of one communicator, read from the environment when it is first used.

    Attributes:
        backend: `MPISHARE_BACKEND`, the segment kinds to try, with commas between; None lets each node choose.
        nodes: `MPISHARE_NODES`, pretend nodes for tests and debugging; None for the real ones.
        second_map: `MPISHARE_SECOND_MAP`, whether window pages may be mapped a second time; "0" keeps each window
            until MPI_Finalize instead.
        directory: `MPISHARE_DIR`, where the files of memmaps go; None for memory, and then the temporary folder.
        check: `MPISHARE_CHECK`, "1" to compare what the ranks call before each collective.
        timeout_s: `MPISHARE_TIMEOUT`, how long a collective waits for ranks that do not come; None for ever.
        temporary: `TMPDIR`, the temporary folder.
        window_dir: `OMPI_MCA_osc_sm_backing_directory`, where Open MPI is told to put its windows; None for /dev/shm.
        launched: How many processes the launcher says that it started together, 1 where it says nothing.
        singletons: `MPISHARE_SINGLETONS`, "1" where each of these is meant to be alone.
    """

    backend: str | None = None
    nodes: str | None = None
    second_map: bool = True
    directory: str | None = None
    check: bool = False
    timeout_s: float | None = None
    temporary: str = "/tmp"  # noqa: S108 - nameless files only
    window_dir: str | None = None
    launched: int = 1
    singletons: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Reads the environment.

        Raises:
            ArgumentError: A variable has a value that it does not take.
        """
        return cls(
            backend=environ.get("MPISHARE_BACKEND") or None,
            nodes=environ.get("MPISHARE_NODES") or None,
            second_map=_switch(environ, "MPISHARE_SECOND_MAP", default="1"),
            directory=environ.get("MPISHARE_DIR") or None,
            check=_switch(environ, "MPISHARE_CHECK", default="0"),
            timeout_s=_seconds(environ, "MPISHARE_TIMEOUT"),
            temporary=environ.get("TMPDIR") or cls.temporary,
            window_dir=environ.get("OMPI_MCA_osc_sm_backing_directory") or None,
            launched=_launched(environ),
            singletons=_switch(environ, "MPISHARE_SINGLETONS", default="0"),
        )

    @staticmethod
    def read_timeout(environ: Mapping[str, str] = os.environ) -> float | None:
        """`MPISHARE_TIMEOUT` alone, None also where it cannot be understood, which `read` tells."""
        try:
            return _seconds(environ, "MPISHARE_TIMEOUT")
        except ArgumentError:
            return None

    @property
    def folder(self) -> str:
        """The folder for the files of memmaps on disk."""
        return self.directory or self.temporary

    @property
    def common(self) -> str:
        """The settings that must be equal on all ranks. Folders may differ from node to node."""
        return (
            f"MPISHARE_BACKEND={self.backend or ''} MPISHARE_NODES={self.nodes or ''} "
            f"MPISHARE_CHECK={self.check:d} MPISHARE_TIMEOUT={self.timeout_s or ''} "
            f"MPISHARE_SECOND_MAP={self.second_map:d} MPISHARE_SINGLETONS={self.singletons:d}"
        )

    def __str__(self) -> str:
        return f"{self.common} MPISHARE_DIR={self.directory or ''}"


def _switch(environ: Mapping[str, str], name: str, *, default: str) -> bool:
    text = environ.get(name) or default
    if text not in ("0", "1"):
        raise ArgumentError(f"{name}={text!r} is not understood. Use 0 or 1.")
    return text == "1"


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentError(f"{name}={text!r} is not understood. Use a number of seconds.")
    return seconds


def _launched(environ: Mapping[str, str]) -> int:
    """The number of processes by the variables that Open MPI's mpiexec, MPICH's and Slurm's srun set.

    srun's comes last: mpiexec in a batch job starts its daemons by srun, and then that number is of daemons.
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        text = environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1
