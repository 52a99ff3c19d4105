"""Options of a command on all ranks of a job, and what only one of them prints."""

from __future__ import annotations

import argparse
import os
from typing import IO, NoReturn

_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def is_first_rank() -> bool:
    """Whether this process is rank 0, or no rank, by its environment: MPI need not have begun."""
    return all(os.environ.get(name, "0") == "0" for name in _RANK_VARIABLES)


class Parser(argparse.ArgumentParser):
    """Prints help and errors on the first rank alone."""

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """See ArgumentParser."""
        if is_first_rank():
            super().print_help(file)

    def error(self, message: str) -> NoReturn:
        """See ArgumentParser.

        The other ranks end with status 0: a launcher ends the whole job at the first failed rank, maybe before rank 0
        has written.
        """
        if not is_first_rank():
            raise SystemExit(0)
        super().error(message)
