"""How an error of the system or a library becomes one that names the file; and packages imported at their first use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mpishare.comm.agreement import is_from_outside
from mpishare.comm.requests import this_thread
from mpishare.errors import BackendError, FileError, MpishareError, SpecError, StallError, place_in

FOREIGN_ERRORS = (OSError, EOFError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError)
"""What the operating system, NumPy and h5py raise for a file that is missing, broken, or lacks what is asked for;
a damaged length ends in one of the last two."""

_LOCKED = "unable to lock file"
_CURE_OF_LOCKED = (
    "A program has it open for writing: load it when that has ended. If none has, or its file system has no locks, set "
    "HDF5_USE_FILE_LOCKING=FALSE for all ranks."
)


@contextmanager
def file_errors(
    path: str | os.PathLike[str], dataset: str | None = None, outcome: str = "", *, what: str = ""
) -> Iterator[None]:
    """A block whose errors name the file and the dataset. mpishare's own errors pass, with one exception.

    An error from outside passes too: its rank must come to no agreement.

    Args:
        path: The file.
        dataset: The dataset, None for the file itself.
        outcome: What an error means for the file, such as "it was not saved"; part of the message if not empty.
        what: What another library reads in the block; part of the message if not empty. Then an error of any class
            counts, as the library may raise it.

    Raises:
        FileError: The operating system, NumPy or h5py refused something. It has the `errno`, if there is one.
        SpecError: The block raised a SpecError; here it names the file and the dataset.
    """
    begun = this_thread.begun
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{place_in(os.fspath(path), dataset)}: {error}") from error
    except MpishareError:
        raise
    except Exception as error:
        if is_from_outside(error, begun) or not (what or isinstance(error, FOREIGN_ERRORS)):
            raise
        reason = f"{what} cannot be read: {type(error).__name__}: {reason_of(error)}" if what else reason_of(error)
        failure = FileError(os.fspath(path), dataset, f"{reason.rstrip('.')}; {outcome}" if outcome else reason)
        failure.errno = error.errno if isinstance(error, OSError) else None
        raise failure from error


@contextmanager
def noted(reasons: list[str], part: str = "") -> Iterator[None]:
    """A block whose `FileError` joins the `reasons` why a `part` is left out, so that the rest can be read."""
    try:
        yield
    except FileError as error:
        reasons.append(f"{part}{error.reason}")


def imported(module: str, use: str) -> Any:
    """A module of an optional package, imported where it is used.

    Raises:
        BackendError: The package is not installed; `use` says what needs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise BackendError(f"{use} need {package}, which is not installed: pip install {package}") from error


@contextmanager
def stall_errors(outcome: str) -> Iterator[None]:
    """A block in which a `StallError` also says the `outcome` for the file: ranks that waited know it."""
    try:
        yield
    except StallError as error:
        raise StallError(f"{error.call} ({outcome})", error.seconds, error.missing) from error


def reason_of(error: BaseException) -> str:
    """The message of an error in one line: h5py adds the traceback of the HDF5 library."""
    message: object = error
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror
    elif isinstance(error, KeyError) and error.args:
        message = error.args[0]  # str() would give its repr
    reason = (str(message).splitlines() or [type(error).__name__])[0]
    return f"{reason}. {_CURE_OF_LOCKED}" if _LOCKED in reason else reason


class _H5py:
    """The module h5py, which is imported when the first of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        return vars(self).setdefault(name, getattr(imported("h5py", "HDF5 files"), name))


h5py: Any = _H5py()
"""h5py for all that read or write HDF5 files. Its use raises BackendError if it is not installed."""


def check_h5py() -> None:
    """Checks that h5py is installed, without importing it.

    Raises:
        BackendError: It is not.
    """
    if find_spec("h5py") is None:
        raise BackendError("HDF5 files need h5py, which is not installed: pip install h5py")
