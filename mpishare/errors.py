"""The errors that mpishare raises, one class for each kind of cause."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from contextlib import suppress


class MpishareError(Exception):
    """Base of every error that mpishare raises on purpose."""


class ArgumentError(MpishareError, ValueError):
    """An argument is outside what the call allows, such as a root that is not a rank of the communicator."""


class SpecError(MpishareError, TypeError):
    """The array or object cannot be shared: its dtype, shape or class is not bytes of a fixed size."""


class BackendError(MpishareError):
    """A backend, or an optional package, cannot be used on this node."""


class CapacityError(MpishareError, MemoryError):
    """The bytes do not fit on a node.

    Attributes:
        host: The host on which they do not fit.
        where: The directory or limit that is too small.
        wanted: Bytes asked for.
        free: Bytes available there.
        cure: What to do.
    """

    def __init__(self, host: str, where: str, wanted: int, free: int, cure: str) -> None:
        MpishareError.__init__(self, host, where, wanted, free, cure)
        self.host = host
        self.where = where
        self.wanted = wanted
        self.free = free
        self.cure = cure

    def without_traceback(self) -> CapacityError:
        """A copy without the traceback."""
        return CapacityError(self.host, self.where, self.wanted, self.free, self.cure)

    def __str__(self) -> str:
        return (
            f"{self.wanted:,} bytes do not fit in {self.where} of host {self.host}, "
            f"which has {self.free:,} bytes free. {self.cure}"
        )


class FileError(MpishareError, OSError):
    """A file cannot be read or written, or does not hold what is asked for.

    Attributes:
        path: The file.
        dataset: The dataset, None for the file itself.
        reason: What is wrong.
    """

    def __init__(self, path: str, dataset: str | None, reason: str) -> None:
        Exception.__init__(self, path, dataset, reason)  # OSError would take the first for an error number
        self.path = path
        self.dataset = dataset
        self.reason = reason

    def __str__(self) -> str:
        return f"{place_in(self.path, self.dataset)}: {self.reason}"


class LaunchError(MpishareError):
    """Several processes were started, but MPI sees each of them alone: the launcher belongs to another MPI library."""


class MismatchError(MpishareError):
    """The ranks of one communicator made different calls, or the same call with different arguments.

    Attributes:
        calls: The call each rank made, by rank.
    """

    def __init__(self, calls: Mapping[int, str]) -> None:
        super().__init__(dict(calls))
        self.calls = dict(calls)

    def __str__(self) -> str:
        ranks_of: dict[str, list[int]] = {}
        for rank, call in self.calls.items():
            ranks_of.setdefault(call, []).append(rank)
        calls = "; ".join(f"{name_ranks(ranks)}: {call}" for call, ranks in ranks_of.items())
        return f"ranks made different calls; expected the same call on all ranks: {calls}"


class PeerError(MpishareError):
    """Another rank of the communicator failed, so this rank cannot go on either.

    Attributes:
        rank: The lowest rank that failed.
        host: The host it runs on.
        reason: The class and the text of its error.
        others: Number of other ranks that failed as well.
        other_errors: Their errors that differ from this one, with the ranks; "" if all have the same.
    """

    other_errors = ""

    def __init__(self, rank: int, host: str, reason: str, others: int = 0) -> None:
        MpishareError.__init__(self, rank, host, reason, others)
        self.rank = rank
        self.host = host
        self.reason = reason
        self.others = others

    def __str__(self) -> str:
        texts = f"; {self.other_errors}" if self.other_errors else ""
        more = f" (and {self.others} more ranks failed{texts})" if self.others else ""
        return f"rank {self.rank} on host {self.host} failed: {self.reason}{more}"


class PeerCapacityError(PeerError, CapacityError):
    """The bytes do not fit where another rank runs, so no rank has them.

    It has the attributes of both base classes. As a `CapacityError`, it is caught as such on all ranks.
    """

    def __init__(self, rank: int, lack: CapacityError, others: int = 0) -> None:
        CapacityError.__init__(self, lack.host, lack.where, lack.wanted, lack.free, lack.cure)
        PeerError.__init__(self, rank, lack.host, f"CapacityError: {lack}", others)
        self.args = (rank, lack, others)


class PeerFileError(PeerError, FileError):
    """Another rank cannot read or write a file, so no rank has what was asked for.

    It has the attributes of both base classes, with the `reason` of `PeerError`. As a `FileError`, it is caught as such
    on all ranks.
    """

    def __init__(
        self, rank: int, host: str, errno: int | None, path: str, dataset: str | None, reason: str, others: int = 0
    ) -> None:
        FileError.__init__(self, path, dataset, reason)
        PeerError.__init__(self, rank, host, f"FileError: {place_in(path, dataset)}: {reason}", others)
        self.args = (rank, host, errno, path, dataset, reason, others)
        self.errno = errno


class StallError(MpishareError, TimeoutError):
    """Ranks did not come to a collective call within MPISHARE_TIMEOUT.

    Attributes:
        call: The call that waited, and where it was made.
        seconds: How long it waited.
        missing: For each rank that is known not to have come, its host and what it does instead.
    """

    def __init__(self, call: str, seconds: float, missing: Mapping[int, str]) -> None:
        Exception.__init__(self, call, seconds, dict(missing))  # OSError would take them for an error number and a file
        self.call = call
        self.seconds = seconds
        self.missing = dict(missing)

    def again(self) -> StallError:
        """A copy, to be raised again."""
        return StallError(self.call, self.seconds, self.missing)

    def __str__(self) -> str:
        missing = "; ".join(f"rank {rank} {doing}" for rank, doing in self.missing.items())
        head = f"{self.call} has waited {self.seconds:g} s (MPISHARE_TIMEOUT) for ranks that have not come"
        hint = (
            "each rank that gives up prints its call and line on stderr; look for the ranks that print none or another"
        )
        return f"{head}: {missing or hint}"


class TaskError(MpishareError):
    """A task of `map` or of a `Pool` failed, and the tasks that had not begun were cancelled.

    The error raised is also of the class of the task's own error, with its `args` and attributes: `except ValueError`
    catches a task's ValueError. It has the text and the attributes of a `TaskError`. The task's own error, on
    other ranks a copy of it, is the `__cause__`. The error is a `TaskError` alone where the task's own error cannot be
    pickled, where its class allows no subclass, and where it ends a program or an iteration, as SystemExit,
    KeyboardInterrupt and StopIteration do.

    Attributes:
        item: The index of the item, from 0 on.
        rank: The rank that ran its task.
        host: The host of that rank.
        reason: The class and the text of the error.
        traceback: The traceback on that rank, as text.
    """

    def __init__(self, item: int, rank: int, host: str, reason: str, traceback: str) -> None:
        super().__init__(item, rank, host, reason, traceback)
        self.item = item
        self.rank = rank
        self.host = host
        self.reason = reason
        self.traceback = traceback

    def __str__(self) -> str:
        head = f"item {self.item} failed on rank {self.rank} of host {self.host}: {self.reason}"
        return f"{head}\nOn that rank:\n{self.traceback}" if self.traceback else head


_LARGEST_INTEGER = 2**63 - 1
"""The largest that HDF5 and C store as a signed number."""


def checked_integer(name: str, value: object, *also: int, least: int = 0, largest: int = _LARGEST_INTEGER) -> int:
    """The argument `value` of the given name as an int.

    Raises:
        ArgumentError: It is not an integer from `least` to `largest`, nor one of `also`.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
        if least <= number <= largest or number in also:
            return number
    except TypeError:
        pass
    end = "2**63 - 1" if largest == _LARGEST_INTEGER else largest
    raise ArgumentError(f"{name} is {value!r}; expected an integer from {least} to {end}.")


def checked_integers(name: str, values: object, also: str = "") -> list[int]:
    """The argument `values` of the given name as a list of ints. `also` is what else is allowed, for the error.

    Raises:
        ArgumentError: It is not a sequence of integers >= 0.
    """
    with suppress(TypeError):
        if not isinstance(values, str | bytes):
            return [checked_integer(name, value) for value in values]  # type: ignore[attr-defined]
    raise ArgumentError(f"{name} is {values!r}; expected {also}a list of integers >= 0.")


def checked_path(path: object) -> str:
    """The argument `path` as a string.

    Raises:
        ArgumentError: It is not a path, or has a null byte.
    """
    with suppress(TypeError):
        name = os.fsdecode(path)  # type: ignore[arg-type]
        if "\0" not in name:
            return name
    raise ArgumentError(f"path is {path!r}; expected a str or a pathlib.Path without null bytes.")


def place_in(path: str, dataset: str | None) -> str:
    """A file, or a dataset in it, for error messages."""
    return path if dataset is None else f"dataset {dataset!r} of {path}"


def text_of_error(error: BaseException) -> str:
    """The class and the text of an error, even of one whose `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # code of a user may raise anything, and the other ranks wait for the text
        return f"{type(error).__name__}, whose text cannot be made"


def name_ranks(ranks: list[int]) -> str:
    """Ranks for error messages: 'rank 3', 'ranks 0, 2', 'ranks 0, 1, 2 and 509 more'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named, unnamed = ", ".join(map(str, ranks[:8])), len(ranks) - 8
    return f"ranks {named}" + (f" and {unnamed} more" if unnamed > 0 else "")
