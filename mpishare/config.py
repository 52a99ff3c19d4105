"""Every environment variable that mpishare reads. No other module reads the environment."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mpishare.errors import ArgumentError

_PREFIX = "MPISHARE_"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MAX_PERCENT = 90
_MIN_CHUNK_BYTES, _MAX_CHUNK_BYTES = 4 << 10, 1 << 30
"""Limits of MPISHARE_CHUNK. A smaller message takes longer to begin than to send."""


@dataclass(frozen=True)
class Config:
    """The settings of one communicator, read from the environment when it is first used.

    Attributes:
        backend: `MPISHARE_BACKEND`, the backends to try, separated by commas; None lets each node choose.
        nodes: `MPISHARE_NODES`, pretend nodes for tests and debugging; None for the real ones.
        directory: `MPISHARE_DIR`, the folder for the files of memmaps; None for memory, and then the temporary folder.
        chunk_bytes: `MPISHARE_CHUNK`, the size of a message along a chain of nodes, such as "256K"; None for that of
            `transfer.between_nodes`.
        check: `MPISHARE_CHECK`, "1" to compare the ranks' calls before each collective.
        recycle: `MPISHARE_RECYCLE`, how much memory a node keeps for arrays to come, as given, such as "5%" or "2G".
        timeout_s: `MPISHARE_TIMEOUT`, how long a collective waits for ranks that do not come; None for no limit.
        temporary: `TMPDIR`, the temporary folder.
        window_dir: `OMPI_MCA_osc_sm_backing_directory`, where Open MPI is told to put its windows; None for /dev/shm.
        window_components: `OMPI_MCA_osc`, which of its components Open MPI may use for windows; None if it is not told.
        launched: The number of processes that the launcher started together; 1 where it does not say.
        singletons: `MPISHARE_SINGLETONS`, "1" where each of these is meant to be alone.
        columns: `MPISHARE_COLUMNS`, how wide the terminal is to which the launcher copies the standard error of ranks;
            None if that is none, as far as is known.
        excepthook: `MPISHARE_EXCEPTHOOK`, "0" where sys.excepthook stays as it is.
    """

    backend: str | None = None
    nodes: str | None = None
    directory: str | None = None
    recycle: str = "5%"
    chunk_bytes: int | None = None
    check: bool = False
    timeout_s: float | None = None
    temporary: str = "/tmp"  # noqa: S108 - nameless files only
    window_dir: str | None = None
    window_components: str | None = None
    launched: int = 1
    singletons: bool = False
    columns: int | None = None
    excepthook: bool = True

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Reads the environment.

        Raises:
            ArgumentError: A variable has a value that is not allowed.
        """
        values = {}
        for attribute, (name, parse, allowed) in _VARIABLES.items():
            text = environ.get(name)
            try:
                if text:
                    values[attribute] = parse(text)
            except ValueError as error:
                raise ArgumentError(f"{name}={text!r} is not understood. Use {allowed}.") from error
        return cls(**values, launched=_launched(environ))

    @staticmethod
    def read_timeout(environ: Mapping[str, str] = os.environ) -> float | None:
        """`MPISHARE_TIMEOUT` alone; None also where it cannot be understood, which `read` reports."""
        try:
            return _seconds(environ.get("MPISHARE_TIMEOUT", ""))
        except ValueError:
            return None

    @staticmethod
    def read_columns(environ: Mapping[str, str] = os.environ) -> int | None:
        """`MPISHARE_COLUMNS` alone; None also where it cannot be understood, which `read` reports."""
        try:
            return _positive(environ.get("MPISHARE_COLUMNS", ""))
        except ValueError:
            return None

    @staticmethod
    def takes_excepthook(environ: Mapping[str, str] = os.environ) -> bool:
        """`MPISHARE_EXCEPTHOOK` alone, which is one setting for the whole process."""
        return environ.get("MPISHARE_EXCEPTHOOK") != "0"

    def recycle_bytes(self, memory_bytes: int) -> int:
        """How much a node with `memory_bytes` of memory keeps for arrays to come, in bytes."""
        percent = _percent(self.recycle)
        nbytes = parse_bytes(self.recycle) if percent is None else int(percent * memory_bytes / 100)
        return min(nbytes, sys.maxsize)

    @property
    def keeps_memory(self) -> bool:
        """Whether nodes keep memory for arrays to come at all; the same on all ranks."""
        return self.recycle_bytes(1 << 40) > 0

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
            f"MPISHARE_SINGLETONS={self.singletons:d} "
            f"MPISHARE_RECYCLE={self.recycle} MPISHARE_CHUNK={self.chunk_bytes or ''}"
        )

    def __str__(self) -> str:
        return f"{self.common} MPISHARE_DIR={self.directory or ''} MPISHARE_EXCEPTHOOK={self.excepthook:d}"


def rank_variables() -> dict[str, str]:
    """What the launcher says of the rank that this process is to be."""
    return {name: os.environ[name] for name in _OF_RANKS if name in os.environ}


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """For each MPISHARE variable that is no setting, a line of text, with the setting that was meant."""
    names = {name for name, _, _ in _VARIABLES.values()} | _OF_BATCH_SCRIPTS
    known = {name.removeprefix(_PREFIX) for name in names}
    unknown = sorted(name.removeprefix(_PREFIX) for name in environ.keys() - names if name.startswith(_PREFIX))
    return [f"{_PREFIX}{name} is no setting{did_you_mean(name, known, _PREFIX)}" for name in unknown]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A question such as "; did you mean info?"; "" if no known word is like it."""
    from difflib import get_close_matches

    return "".join(f"; did you mean {prefix}{match}?" for match in get_close_matches(word, known, 1))


def parse_bytes(text: str) -> int:
    """The bytes of a size such as "256K", "64G" or "1.5 GiB"; suffixes are powers of 1024.

    Raises:
        ValueError: `text` is not a size.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size. Give bytes, with a suffix K, M, G or T, such as 800M or 1.5T.")
    return int(float(match[1]) * _UNITS[match[2]])


def format_bytes(nbytes: int) -> str:
    """A size for people, such as "11.6 GiB"."""
    step = min(max(nbytes.bit_length() - 1, 0) // 10, 4)
    return f"{nbytes / (1 << 10 * step):.1f}".removesuffix(".0") + f" {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"


def counted(number: int, noun: str) -> str:
    """Such as "1 rank" or "4 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _recycle(text: str) -> str:
    percent = _percent(text)
    if percent is None:
        parse_bytes(text)
    elif not 0 <= percent <= _MAX_PERCENT:
        raise ValueError(text)
    return text


def _percent(text: str) -> float | None:
    """The number before a percent sign; None without one."""
    return float(text[:-1]) if text.endswith("%") else None


def _chunk_bytes(text: str) -> int:
    nbytes = parse_bytes(text)
    if not _MIN_CHUNK_BYTES <= nbytes <= _MAX_CHUNK_BYTES:
        raise ValueError(text)
    return nbytes


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


_SWITCH = "0 or 1"
_VARIABLES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "backend": ("MPISHARE_BACKEND", str, ""),
    "nodes": ("MPISHARE_NODES", str, ""),
    "directory": ("MPISHARE_DIR", str, ""),
    "recycle": (
        "MPISHARE_RECYCLE",
        _recycle,
        f"bytes with the suffix K, M, G or T, a percentage of the node's memory up to {_MAX_PERCENT}%, or 0",
    ),
    "chunk_bytes": ("MPISHARE_CHUNK", _chunk_bytes, "bytes, with the suffix K, M or G, from 4K to 1G"),
    "check": ("MPISHARE_CHECK", _switch, _SWITCH),
    "timeout_s": ("MPISHARE_TIMEOUT", _seconds, "a number of seconds"),
    "temporary": ("TMPDIR", str, ""),
    "window_dir": ("OMPI_MCA_osc_sm_backing_directory", str, ""),
    "window_components": ("OMPI_MCA_osc", str, ""),
    "singletons": ("MPISHARE_SINGLETONS", _switch, _SWITCH),
    "columns": ("MPISHARE_COLUMNS", _positive, "a number of columns"),
    "excepthook": ("MPISHARE_EXCEPTHOOK", _switch, _SWITCH),
}
"""Each attribute of `Config`: its variable, the function that parses a value or raises ValueError, and the values that
are allowed."""


_OF_BATCH_SCRIPTS = {"MPISHARE_VENV", "MPISHARE_IMAGE"}
"""Variables that the scripts in slurm/ read."""


_OF_RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    *("PMI_FD", "PMI_ID", "PMI_JOBID", "PMI_PORT", "PMI_RANK"),
)
"""Variables of Open MPI, MPICH, Intel MPI and Slurm by which a process finds its launcher, and its own rank."""


def _launched(environ: Mapping[str, str]) -> int:
    """The number of processes by the variables that Open MPI's mpiexec, MPICH's and Slurm's srun set.

    srun's comes last: mpiexec in a batch job starts its daemons by srun, and then it counts daemons.
    """
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        text = environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 1
