"""Every environment variable that mpishare reads, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mpishare.errors import ArgumentError

__all__ = ["Config"]


@dataclass(frozen=True)
class Config:
    """The settings of one communicator, read from the environment when it is first used.

    Attributes:
        backend: `MPISHARE_BACKEND`, the segment kind to use; None lets each node choose.
        nodes: `MPISHARE_NODES`, pretend nodes for tests and debugging; None for the real ones.
        second_map: `MPISHARE_SECOND_MAP`, whether window pages may be mapped a second time; "0" keeps each window
            until MPI_Finalize instead.
        window_dir: `OMPI_MCA_osc_sm_backing_directory`, where Open MPI is told to put its windows; None for /dev/shm.
    """

    backend: str | None = None
    nodes: str | None = None
    second_map: bool = True
    window_dir: str | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Reads the environment.

        Raises:
            ArgumentError: A variable has a value that it does not take.
        """
        second_map = environ.get("MPISHARE_SECOND_MAP") or "1"
        if second_map not in ("0", "1"):
            raise ArgumentError(f"MPISHARE_SECOND_MAP={second_map!r} is not understood. Use 0 or 1.")
        return cls(
            backend=environ.get("MPISHARE_BACKEND") or None,
            nodes=environ.get("MPISHARE_NODES") or None,
            second_map=second_map == "1",
            window_dir=environ.get("OMPI_MCA_osc_sm_backing_directory") or None,
        )

    def __str__(self) -> str:
        return (
            f"MPISHARE_BACKEND={self.backend or ''} MPISHARE_NODES={self.nodes or ''} "
            f"MPISHARE_SECOND_MAP={self.second_map:d}"
        )
