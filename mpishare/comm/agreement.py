"""Makes one rank's error every rank's error, so that no rank waits for one that has failed."""

# Theory of operation: how one rank's error becomes every rank's, and what an agreement orders.
#
# The rules:
# 1. Local work that can fail stands in the block of an agreement. Between two collectives of a call there is none
#    outside of one.
# 2. Leaving the block is one MPI_Allreduce, which all ranks of the communicator make whatever happened in the block.
#    It brings each rank the same bytes, the bitwise OR of what the ranks gave.
# 3. Each rank decides by these bytes alone what to do next: go on; exchange the errors; or exchange the calls, which
#    differ.
# 4. A rank whose block raised raises its own error after that; the others raise `PeerError`. The error says to how
#    many ranks it is known (`mark_known`), so that code above may try another way where all ranks have it, and only
#    there.
#
# Why no rank waits for one that has failed: by rule 2 the ranks that failed come to the same Allreduce as the others,
# and by rule 3 all take the same branch after it, so that they come to the same collectives there. Work that is
# itself made of collectives, in which other ranks come to the next one whatever happens here, keeps its first error
# until it has called all of them (`Deferred`).
#
# Why comparing calls costs nothing: the checksum of a call and its inverse are both combined by OR. If all ranks gave
# the same one, both come out as they went in. If two differ in a bit, that bit is set in both results, and neither
# rank finds its own.
#
# Why an agreement orders memory: no rank leaves it before all have entered, and data came from each of them. So what
# a rank of a node wrote to node memory before the agreement, every rank of the node sees after it, and what a rank
# read before, nobody has changed (`comm.communicator` says why that holds on any CPU). What is written within a block
# is not yet ordered in it: a rank must not read there what another one writes there.
#
# What is outside of it: an exception that comes from outside, such as a signal's handler, at any instruction. In a
# block of local work alone it is an error like any other. But where this rank has begun something collective in the
# block, the others may be in that, and come to no Allreduce of this agreement: there rule 2 has its one exception, and
# this rank raises at once (`mark_cut_off`). So it does for an exception that comes in the agreement itself. Each thread
# counts the collectives that it begins, for that; those of a public call that has ended are taken off. An exception is
# from outside if it is none of ours, no agreement has made it known, and `Deferred` has not kept it. This rank refuses
# the communicator from then on (`comm.collective`), and its buffers stay alive; the others wait for MPISHARE_TIMEOUT or
# the end of the job. Nothing is repaired: after an interrupt no rank can know which messages are under way.
#
# The weakest point: a handler that raises one of our own errors, in a block in which a collective has begun. It is
# taken for an error of the block, and this rank may come to an Allreduce while the others are in another call of MPI.

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from mpishare.comm import mpi
from mpishare.comm.callsite import call_site
from mpishare.comm.requests import this_thread
from mpishare.errors import (
    CapacityError,
    FileError,
    MismatchError,
    MpishareError,
    PeerCapacityError,
    PeerError,
    PeerFileError,
    StallError,
    name_ranks,
    text_of_error,
)

if TYPE_CHECKING:
    from mpishare.comm.communicator import CollectiveComm

PAYLOAD_BYTES = 64
"""Size of the payload that ranks can exchange with an agreement."""

NO_PAYLOAD = bytes(PAYLOAD_BYTES)

_FLAGS = struct.Struct("<QII")
"""Whether this rank has failed; the checksum of its call; the same checksum with every bit inverted."""

_FLAGS_BYTES = _FLAGS.size

_MOST_TEXTS = 3
"""How many different errors of other ranks an error names."""

_Error = TypeVar("_Error", bound=BaseException)


class Severity(IntEnum):
    """How bad an error is. An agreement tells every rank the worst of all ranks."""

    REFUSAL = 0
    """An error of ours: another way may work."""
    NO_ROOM = 1
    """The same, for lack of memory: it may work when memory has been released."""
    FATAL = 2
    """Any other exception, or one that not all ranks know of."""


_CUT_OFF = 0, Severity.FATAL, False
"""What `known_to` says of an error after which this rank comes to no agreement; see `mark_cut_off`."""

_DEFERRED = 1, Severity.FATAL, True
"""What it says of an error that this rank has kept until it had called all collectives."""


class Agreement:
    """A block of local work that may fail on any rank of `comm`.

    Leaving the block is collective over `comm`. Where every rank left it without an error, all go on. A rank whose work
    raised raises that same error; every other rank raises `PeerError` with its text, or the class below it that is also
    a `CapacityError` or a `FileError`. So no rank waits in a later collective for one that does not come.

    When the block sets `call` to a text, the texts of all ranks must be equal, or all ranks raise `MismatchError`. It
    names the file and line of each call, too. When the block sets `payload`, to `PAYLOAD_BYTES` bytes or to more of one
    number on all ranks, then after it `payload` is the bitwise OR of the payloads of all ranks.

    Without an error it costs one MPI_Allreduce of 80 bytes.
    """

    __slots__ = ("_begun", "_comm", "call", "payload")

    def __init__(self, comm: CollectiveComm) -> None:
        self._comm = comm
        self.call = ""
        self.payload = NO_PAYLOAD

    def __enter__(self) -> Agreement:
        this_thread.begun += 1
        self._begun = this_thread.begun
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or not is_from_outside(error, self._begun):
            self.exchange(error)
        else:
            mark_cut_off(error)

    def exchange(self, error: BaseException | None = None) -> None:
        """Exchanges whether a rank has failed; returns where none has, or where this one raises its own `error`."""
        try:
            flags = _flags(self.call) if error is None else _flags(self.call, has_failed=True)
            sent = flags + self.payload
            result = self._comm.allreduce_or(sent)
            if error is None and result == sent:  # mostly
                return
            self.payload = result[_FLAGS_BYTES:]
            if error is None and result.startswith(flags):
                return
            if _FLAGS.unpack_from(result)[0]:
                _exchange_failures(self._comm, error)
            else:
                calls = self._comm.allgather_obj(f"{self.call} at {call_site()}")
                raise mark_known(self._comm, MismatchError(dict(zip(self._comm.ranks, calls, strict=True))))
        except BaseException as raised:
            if not is_known(raised, self._comm.size) and not isinstance(raised, StallError):  # which comes again
                mark_cut_off(raised)
            raise


def agree(comm: CollectiveComm) -> Agreement:
    """A block of local work that may fail on any rank of `comm`; see `Agreement`."""
    return Agreement(comm)


class Deferred:
    """Local work between collectives, which other ranks call, too: its first error waits until all have been called.

    An agreement of these ranks follows, in which `raise_first` raises it. It is made before the first collective: from
    then on what other code of the agreement raises is taken for an exception from outside.

    Attributes:
        error: The first error; None as long as there is none.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        this_thread.begun += 1

    def __enter__(self) -> None:
        """Begins some of the work."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = self.error or error
        return error is not None

    def raise_first(self) -> None:
        """Raises the first error, if there was one."""
        if self.error is not None:
            vars(self.error).setdefault("known_to", _DEFERRED)
            raise self.error


@lru_cache(maxsize=256)
def _flags(call: str, has_failed: bool = False) -> bytes:
    checksum = crc32(call.encode(errors="surrogatepass"))
    return _FLAGS.pack(has_failed, checksum, ~checksum & 0xFFFFFFFF)


def _exchange_failures(comm: CollectiveComm, error: BaseException | None) -> None:
    """Raises `PeerError` on ranks that did not fail; returns on the others, which raise their own error."""
    own = None if error is None else _failure_of(error, comm.ranks[comm.rank])
    failures = [failure for failure in comm.allgather_obj(own) if failure is not None]
    causes = [failure for failure in failures if not failure[1]] or failures
    peers = [error_class(*args, others=len(causes) - 1) for _, _, error_class, args in causes]
    raised = peers[0] if error is None else error
    vars(raised)["other_errors"] = _other_errors(peers)
    is_first = error is not None and peers[0].rank == comm.ranks[comm.rank]
    mark_known(comm, raised, max(severity for severity, *_ in failures), is_cause=is_first)
    if error is None:
        raise raised


def _other_errors(peers: list[PeerError]) -> str:
    """The errors that differ from the first one, each once with its ranks; "" if there are none."""
    alike: dict[str, list[PeerError]] = {}
    for peer in peers:  # the free bytes differ from rank to rank
        alike.setdefault(peer.where if isinstance(peer, PeerCapacityError) else peer.reason, []).append(peer)
    others = list(alike.values())[1:]
    texts = [f"{name_ranks([peer.rank for peer in same])}: {same[0].reason.splitlines()[0]}" for same in others]
    return "; ".join(texts[:_MOST_TEXTS] + [f"{len(texts) - _MOST_TEXTS} other errors"] * (len(texts) > _MOST_TEXTS))


def _failure_of(error: BaseException, rank: int) -> tuple[Severity, bool, type[PeerError], tuple[Any, ...]]:
    """What this rank, which failed, tells the others.

    Returns:
        The severity; whether another rank has the cause, as an inner agreement of fewer ranks has told; and the class
        and the arguments of the others' error.
    """
    is_of_peer, host = isinstance(error, PeerError), mpi.Get_processor_name()
    if isinstance(error, CapacityError):
        return Severity.NO_ROOM, is_of_peer, PeerCapacityError, (rank, error.without_traceback())
    severity, args = Severity.REFUSAL if isinstance(error, MpishareError) else Severity.FATAL, (rank, host)
    if isinstance(error, FileError):
        return severity, is_of_peer, PeerFileError, (*args, error.errno, error.path, error.dataset, error.reason)
    return severity, is_of_peer, PeerError, (*args, text_of_error(error))


def mark_known(
    comm: CollectiveComm, error: _Error, severity: Severity = Severity.REFUSAL, *, is_cause: bool | None = None
) -> _Error:
    """Marks an error that all ranks of `comm` have.

    Args:
        comm: The communicator.
        error: The error.
        severity: The worst severity among the ranks.
        is_cause: Whether this rank is the first that raised it; None where the first rank of `comm` is.
    """
    known_to = comm.size, severity, comm.rank == 0 if is_cause is None else is_cause
    vars(error)["known_to"] = known_to  # some classes allow no assignment, such as frozen dataclasses
    return error


def mark_cut_off(error: BaseException) -> None:
    """Marks an error that came in messages or collectives of this rank.

    The others may wait for these and come to no agreement, so this rank must not wait for them there: it raises.
    """
    vars(error)["known_to"] = _CUT_OFF


def is_cut_off(error: BaseException) -> bool:
    """Whether it was marked by `mark_cut_off`."""
    return getattr(error, "known_to", None) == _CUT_OFF


def is_from_outside(error: BaseException, begun: int) -> bool:
    """Whether an error came while the other ranks may have been in a collective of this thread.

    Args:
        error: The error.
        begun: How many collectives this thread had begun before.
    """
    if is_cut_off(error):
        return True
    is_local = this_thread.begun == begun or isinstance(error, MpishareError)
    return not is_local and "known_to" not in vars(error)


def is_known(error: BaseException, size: int) -> bool:
    """Whether all of `size` ranks have the error, or a `PeerError` for it."""
    return bool(getattr(error, "known_to", _CUT_OFF)[0] >= size)


def is_cause(error: BaseException, rank: int) -> bool:
    """Whether this rank, `rank` of all, is the first that raised an error, as far as it knows."""
    known_to = getattr(error, "known_to", _CUT_OFF)
    return bool(known_to[2] if known_to[0] else rank == 0)


def severity_of(error: BaseException, size: int) -> Severity:
    """The worst severity that any of `size` ranks met; FATAL if the error is of this rank alone."""
    return Severity(error.known_to[1]) if is_known(error, size) else Severity.FATAL  # type: ignore[attr-defined]
