"""What can go wrong, one class for each kind of blame."""

from __future__ import annotations

from collections.abc import Mapping


class MpishareError(Exception):
    """Base of every error that mpishare raises on purpose."""

    known_to = 0
    """On how many ranks one agreement raised. Where these are all of a communicator, they are in step."""


class ArgumentError(MpishareError, ValueError):
    """An argument is outside what the call allows, such as a root that is no rank of the communicator."""


class SpecError(MpishareError, TypeError):
    """This array cannot be shared: its dtype, shape or class does not fit fixed-size bytes."""


class BackendError(MpishareError):
    """The segment kind that was asked for is unknown, or cannot be used on this node."""


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

    def alone(self) -> CapacityError:
        """The same facts, without the frames in which it was raised."""
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
        dataset: What of it, None for the file itself.
        reason: What is wrong.
    """

    def __init__(self, path: str, dataset: str | None, reason: str) -> None:
        Exception.__init__(self, path, dataset, reason)  # an OSError would take the first for a number
        self.path = path
        self.dataset = dataset
        self.reason = reason

    def __str__(self) -> str:
        return f"{place_in(self.path, self.dataset)}: {self.reason}"


class LaunchError(MpishareError):
    """Several processes were started, but MPI sees each of them alone: the launcher is not that of the MPI library."""


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
        told = "; ".join(f"{_name_ranks(ranks)}: {call}" for call, ranks in ranks_of.items())
        return f"all ranks of the communicator must make the same call, but came with {told}"


class PeerError(MpishareError):
    """Another rank of the communicator failed, so this rank cannot go on either.

    Attributes:
        rank: The lowest rank that failed.
        host: The host it runs on.
        reason: What it raised: the class and the words of its error.
        others: How many further ranks failed as well.
    """

    def __init__(self, rank: int, host: str, reason: str, others: int = 0) -> None:
        MpishareError.__init__(self, rank, host, reason, others)
        self.rank = rank
        self.host = host
        self.reason = reason
        self.others = others

    def __str__(self) -> str:
        more = f" (and {self.others} more ranks failed)" if self.others else ""
        return f"rank {self.rank} on host {self.host} failed: {self.reason}{more}"


class PeerCapacityError(PeerError, CapacityError):
    """The bytes do not fit where another rank runs, so no rank has them.

    It is a `CapacityError`, so that all ranks can catch the same, with the attributes of both classes.
    """

    def __init__(self, rank: int, lack: CapacityError, others: int = 0) -> None:
        PeerError.__init__(self, rank, lack.host, f"CapacityError: {lack}", others)
        self.args = (rank, lack, others)
        self.where = lack.where
        self.wanted = lack.wanted
        self.free = lack.free
        self.cure = lack.cure

    def __str__(self) -> str:
        return PeerError.__str__(self)


class StallError(MpishareError, TimeoutError):
    """Ranks did not come to a collective call within MPISHARE_TIMEOUT.

    Attributes:
        call: The call that waited, and where it was made.
        seconds: How long it waited.
        missing: For each rank that has not come, its host and what it was found to do.
    """

    def __init__(self, call: str, seconds: float, missing: Mapping[int, str]) -> None:
        Exception.__init__(self, call, seconds, dict(missing))  # an OSError would take them for a number and a file
        self.call = call
        self.seconds = seconds
        self.missing = dict(missing)

    def again(self) -> StallError:
        """The same facts, to be raised once more."""
        return StallError(self.call, self.seconds, self.missing)

    def __str__(self) -> str:
        told = "; ".join(f"rank {rank} {words}" for rank, words in self.missing.items())
        unknown = "which ones can be told from the second call on a communicator on"
        head = f"{self.call} has waited {self.seconds:g} s (MPISHARE_TIMEOUT) for ranks that have not come"
        return f"{head}: {told or unknown}"


class TaskError(MpishareError):
    """A task of `map` or of a `Pool` failed, and the others were given up.

    On the rank that failed, its error is the `__cause__`. Elsewhere there is its text alone, so that it may be one that
    cannot be pickled.

    Attributes:
        item: The number of the item, from 0 on.
        rank: Where its task ran.
        host: The host of that rank.
        reason: The class and the words of the error.
        traceback: The traceback as text, frame by frame, as it was on that rank.
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
        return f"{head}\n\nThere:\n{self.traceback}" if self.traceback else head


def place_in(path: str, dataset: str | None) -> str:
    """Names a file, or a dataset of it."""
    return path if dataset is None else f"dataset {dataset!r} of {path}"


def text_of_error(error: BaseException) -> str:
    """The class and the words of an error, also of one that cannot tell itself."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # it must not keep the other ranks waiting
        return f"{type(error).__name__}, which cannot be put in words"


def _name_ranks(ranks: list[int], most: int = 8) -> str:
    """Names ranks as a person would: 'rank 3', 'ranks 0, 2', 'ranks 0, 1, 2 and 509 more'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(str(rank) for rank in ranks[:most])
    return f"ranks {named}" + (f" and {len(ranks) - most} more" if len(ranks) > most else "")
