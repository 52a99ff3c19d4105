"""Every setting, by environment variable or by call. No other module reads the environment."""

from __future__ import annotations

import os
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cached_property, lru_cache
from typing import Any

from mpishare.errors import ArgumentError

_PREFIX = "MPISHARE_"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MAX_PERCENT = 90

by_call: dict[str, str] = {}
"""What `configure` has set in this process, by the names of the variables."""


class _Sources(ChainMap[str, str]):
    def get(self, name: str, default: Any = None) -> Any:
        """As ChainMap has it, in a third of the time: the first call on each communicator reads all settings."""
        return os.environ.get(name, by_call.get(name, default))


_SOURCES: Mapping[str, str] = _Sources(os.environ, by_call)
"""Where settings come from: the environment first, so that whoever starts a program has the last word."""


def parse_bytes(text: str) -> int:
    """The bytes of a size such as "256K", "64G" or "1.5 GiB"; suffixes are powers of 1024.

    Raises:
        ValueError: `text` is not a size.
    """
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise ValueError(f"{text!r} is not a size. Give bytes, with a suffix K, M, G or T, such as 800M or 1.5T.")
    return int(float(match[1]) * _UNITS[match[2]])


def _setting(
    name: str, default: Any, parse: Callable[[str], Any] = str, allowed: str = "", *, may_be_empty: bool = False
) -> Any:
    """An attribute of `Config`: its variable, and what parses a value or raises ValueError where it is not allowed.

    An empty variable is like an unset one, unless it `may_be_empty`.
    """
    metadata = {"name": name, "parse": parse, "allowed": allowed, "may_be_empty": may_be_empty}
    return field(default=default, metadata=metadata)


def _switch(text: str) -> bool:
    return bool(["0", "1"].index(text))


def _between(parse: Callable[[str], Any], least: float, largest: float) -> Callable[[str], Any]:
    """Parses a number, which must be within these limits."""

    def checked(text: str) -> Any:
        number = parse(text)
        if not least <= number <= largest:
            raise ValueError(text)
        return number

    return checked


def _recycle(text: str) -> str:
    if text.endswith("%"):
        _between(float, 0, _MAX_PERCENT)(text[:-1])
    else:
        parse_bytes(text)
    return text


@dataclass(frozen=True)
class Config:
    """The settings of one communicator, read from the environment when it is first used.

    Attributes:
        backend: `MPISHARE_BACKEND`, the backends to try, separated by commas; None lets each node choose.
        nodes: `MPISHARE_NODES`, pretend nodes for tests and debugging; None for the real ones.
        check: `MPISHARE_CHECK`, "1" to compare the ranks' calls before each collective.
        timeout_s: `MPISHARE_TIMEOUT`, how long a collective waits for ranks that do not come; None for no limit.
        singletons: `MPISHARE_SINGLETONS`, "1" where each of the processes that were started together is meant to be
            alone.
        recycle: `MPISHARE_RECYCLE`, how much memory a node keeps for arrays to come, as given, such as "5%" or "2G".
        chunk_bytes: `MPISHARE_CHUNK`, the size of a message along a chain of nodes, such as "256K"; None for the size
            that `transfer.between_nodes` takes. A message of less than 4 KiB takes longer to begin than to send.
        directory: `MPISHARE_DIR`, the folder for the files of memmaps; None for memory, and then the temporary folder;
            "" for memory alone.
        excepthook: `MPISHARE_EXCEPTHOOK`, "0" where sys.excepthook stays as it is.
        columns: `MPISHARE_COLUMNS`, how wide the terminal is to which the launcher copies the standard error of ranks;
            None if that is none, as far as is known.
        temporary: `TMPDIR`, the temporary folder.
        window_dir: `OMPI_MCA_osc_sm_backing_directory`, where Open MPI is told to put its windows; None for /dev/shm.
        window_components: `OMPI_MCA_osc`, which of its components Open MPI may use for windows; None if it is not told.
        launched: The number of processes that the launcher started together; 1 where it does not say.
    """

    backend: str | None = _setting("MPISHARE_BACKEND", None)
    nodes: str | None = _setting("MPISHARE_NODES", None)
    check: bool = _setting("MPISHARE_CHECK", False, _switch, "0 or 1")
    timeout_s: float | None = _setting(
        "MPISHARE_TIMEOUT", None, _between(float, sys.float_info.min, sys.float_info.max), "a number of seconds"
    )
    singletons: bool = _setting("MPISHARE_SINGLETONS", False, _switch, "0 or 1")
    recycle: str = _setting(
        "MPISHARE_RECYCLE",
        "5%",
        _recycle,
        f"bytes with the suffix K, M, G or T, a percentage of the node's memory up to {_MAX_PERCENT}%, or 0",
    )
    chunk_bytes: int | None = _setting(
        "MPISHARE_CHUNK",
        None,
        _between(parse_bytes, 4 << 10, 1 << 30),
        "bytes, with the suffix K, M or G, from 4K to 1G",
    )
    directory: str | None = _setting("MPISHARE_DIR", None, may_be_empty=True)
    excepthook: bool = _setting("MPISHARE_EXCEPTHOOK", True, _switch, "0 or 1")
    columns: int | None = _setting("MPISHARE_COLUMNS", None, _between(int, 1, sys.maxsize), "a number of columns")
    temporary: str = _setting("TMPDIR", "/tmp")  # noqa: S108 - nameless files only
    window_dir: str | None = _setting("OMPI_MCA_osc_sm_backing_directory", None)
    window_components: str | None = _setting("OMPI_MCA_osc", None)
    launched: int = 1

    @staticmethod
    def read(environ: Mapping[str, str] = _SOURCES) -> Config:
        """Reads the environment, and what `configure` has set.

        Raises:
            ArgumentError: A variable has a value that is not allowed.
        """
        return _parsed(tuple(map(environ.get, _VARIABLES)))

    @staticmethod
    def read_one(attribute: str, environ: Mapping[str, str] = _SOURCES) -> Any:
        """One setting alone; its default also where it cannot be understood, which `read` reports."""
        try:
            setting = _SETTINGS[attribute]
            return _value_of(setting, environ.get(setting.metadata["name"]))
        except ArgumentError:
            return _SETTINGS[attribute].default

    def recycle_bytes(self, memory_bytes: int) -> int:
        """How much a node with `memory_bytes` of memory keeps for arrays to come, in bytes."""
        if self.recycle.endswith("%"):
            return int(float(self.recycle[:-1]) * memory_bytes / 100)
        return min(parse_bytes(self.recycle), sys.maxsize)

    @property
    def folder(self) -> str:
        """The folder for the files of memmaps on disk."""
        return self.directory or self.temporary

    @cached_property
    def common(self) -> str:
        """The settings that must be equal on all ranks, as far as they are set. Folders may differ between nodes."""
        changed = (name for name in _COMMON if getattr(self, name) != _SETTINGS[name].default)
        return f"with {self._text(*changed) or 'the default settings'}"

    def __str__(self) -> str:
        directory = () if self.directory is None else ("directory",)  # which may be set and empty
        return self._text(*_COMMON, *directory, "excepthook")

    def _text(self, *attributes: str) -> str:
        values = ((name, getattr(self, name)) for name in attributes)
        shown = ((name, int(value) if isinstance(value, bool) else value or "") for name, value in values)
        return " ".join(f"{_SETTINGS[name].metadata['name']}={value}" for name, value in shown)


_COMMON = ("backend", "nodes", "check", "timeout_s", "singletons", "recycle", "chunk_bytes")
"""The settings that must be equal on all ranks."""

_SETTINGS = {setting.name: setting for setting in fields(Config) if setting.metadata}

_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""By which Open MPI's mpiexec, MPICH's and Slurm's srun tell the number of processes. srun's comes last: mpiexec in a
batch job starts its daemons by srun, and then it counts daemons."""

_VARIABLES = (*(setting.metadata["name"] for setting in _SETTINGS.values()), *_SIZES)


@lru_cache(maxsize=8)
def _parsed(texts: tuple[str | None, ...]) -> Config:
    """The settings by the texts of their variables, which are nearly always those of the communicator before."""
    says = dict(zip(_VARIABLES, texts, strict=True))
    values = {name: _value_of(setting, says[setting.metadata["name"]]) for name, setting in _SETTINGS.items()}
    return Config(**values, launched=next((int(text) for text in map(says.get, _SIZES) if text and text.isdigit()), 1))


def _value_of(setting: Field[Any], text: str | None) -> Any:
    """What a variable says; its default if it says nothing. Raises an `ArgumentError` if its value is not allowed."""
    name, allowed = setting.metadata["name"], setting.metadata["allowed"]
    try:
        says = text if setting.metadata["may_be_empty"] else text or None
        return setting.default if says is None else setting.metadata["parse"](says)
    except ValueError as error:
        raise ArgumentError(f"{name}={text!r} is not understood. Use {allowed}.") from error


def variables_of(settings: Mapping[str, object]) -> dict[str, str]:
    """The variables of settings that are named in lower case without MPISHARE_.

    Raises:
        ArgumentError: There is no such setting, or its value is not allowed.
    """
    known = {setting.metadata["name"]: setting for setting in _SETTINGS.values()}
    names = {name.removeprefix(_PREFIX).lower() for name in known if name.startswith(_PREFIX)}
    if unknown := sorted(settings.keys() - names):
        raise ArgumentError(f"{unknown[0]} is no setting{did_you_mean(unknown[0], names)}")
    texts = {
        f"{_PREFIX}{name.upper()}": "" if value is None else str(int(value) if isinstance(value, bool) else value)
        for name, value in settings.items()
    }
    for variable in texts:
        _value_of(known[variable], texts[variable])
    return texts


def rank_variables() -> dict[str, str]:
    """What the launcher says of the rank that this process is to be."""
    return {name: os.environ[name] for name in _OF_RANKS if name in os.environ}


def unknown_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """For each MPISHARE variable that is no setting, a line of text, with the setting that was meant."""
    names = {setting.metadata["name"] for setting in _SETTINGS.values()} | _OF_BATCH_SCRIPTS
    known = {name.removeprefix(_PREFIX) for name in names}
    unknown = sorted(name.removeprefix(_PREFIX) for name in environ.keys() - names if name.startswith(_PREFIX))
    return [f"{_PREFIX}{name} is no setting{did_you_mean(name, known, _PREFIX)}" for name in unknown]


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A question such as "; did you mean info?"; "" if no known word is like it."""
    from difflib import get_close_matches

    return "".join(f"; did you mean {prefix}{match}?" for match in get_close_matches(word, known, 1))


def format_bytes(nbytes: int) -> str:
    """A size for people, such as "11.6 GiB"."""
    step = min(max(nbytes.bit_length() - 1, 0) // 10, 4)
    return f"{nbytes / (1 << 10 * step):.1f}".removesuffix(".0") + f" {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"


def counted(number: int, noun: str) -> str:
    """Such as "1 rank" or "4 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


_OF_BATCH_SCRIPTS = {"MPISHARE_VENV", "MPISHARE_IMAGE"}
"""Variables that the scripts in slurm/ read."""


_OF_RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    *("PMI_FD", "PMI_ID", "PMI_JOBID", "PMI_PORT", "PMI_RANK"),
)
"""Variables of Open MPI, MPICH, Intel MPI and Slurm by which a process finds its launcher, and its own rank."""
