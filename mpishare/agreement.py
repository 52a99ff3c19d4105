"""All ranks go on together, or all ranks fail together."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mpishare import meanwhile, mpi
from mpishare.errors import CapacityError, MismatchError, PeerCapacityError, PeerError, words_of

__all__ = ["BROUGHT_BYTES", "NOTE_BYTES", "agree", "any_rank", "known_to"]

NOTE_BYTES = 64
"""How much one rank can tell the others with an agreement."""

_WORDS = struct.Struct("<QII")
"""Has this rank failed, the checksum of its call, and the same with each bit turned."""

BROUGHT_BYTES = _WORDS.size + NOTE_BYTES
"""What each rank brings to an agreement."""

_Error = TypeVar("_Error", bound=BaseException)


class agree:  # noqa: N801 - used as a verb: `with agree(comm):`
    """A block of local work that may fail on any rank of `comm`.

    Leaving the block is collective over `comm`. Where every rank left it well, all go on. A rank whose work raised
    raises that same error; every other rank raises `PeerError`, or `PeerCapacityError`, with its words. So no rank
    waits in a later collective for one that will not come.

    When the block sets `call` to a text, the texts of all ranks must be equal, or all ranks raise `MismatchError`.
    When it sets `note`, to `NOTE_BYTES` bytes, all ranks find there after the block what was set, put together by or.

    The price where all is well is one MPI_Allreduce of 80 bytes by MPI_BOR: has a rank failed, the checksum of the
    call, the same with each bit turned, and the note. They come out as they went in if all were equal. The ranks of a
    node may have a board for it (`Boarded`, `Bridged`), which takes less. All order memory as well: what any rank
    wrote to node memory before is seen by all of the node after.
    """

    call = ""
    note = bytes(NOTE_BYTES)
    _where = ""

    def __init__(self, comm: mpi.Intracomm, begins: str = "") -> None:
        """`begins` names the public call of which this is the first block."""
        self._comm = comm
        self._begins = begins

    def __enter__(self) -> agree:
        enter = getattr(self._comm, "enter", None) if self._begins else None
        if enter is not None:  # a `Watched` communicator
            self._where = f" at {enter(self._begins)}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        words = _words(self.call, error is not None)
        meet = getattr(self._comm, "meet", None)  # of a `Boarded` communicator
        told = _by_allreduce(self._comm, words + self.note) if meet is None else meet(words + self.note)
        if error is not None or not told.startswith(words):
            if _WORDS.unpack_from(told)[0]:
                _tell_failure(self._comm, error)
            else:
                calls = self._comm.allgather(self.call + self._where)
                raise known_to(self._comm, MismatchError(dict(enumerate(calls))))
        self.note = told[_WORDS.size :]


def any_rank(comm: mpi.Intracomm, notes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each of as many places on all ranks whether any rank of `comm` notes True there. Collective over `comm`."""
    mine = np.packbits(notes).tobytes()
    if len(mine) <= NOTE_BYTES:
        with agree(comm) as together:
            together.note = mine.ljust(NOTE_BYTES, b"\0")
        all_notes = together.note
    else:
        all_notes = _by_allreduce(comm, mine)
    return np.unpackbits(np.frombuffer(all_notes, np.uint8), count=notes.size).view(np.bool_)


def _by_allreduce(comm: mpi.Intracomm, mine: bytes) -> bytes:
    told = bytearray(mine)
    meanwhile.call(comm.Allreduce, mpi.IN_PLACE, [told, mpi.BYTE], mpi.BOR)
    return bytes(told)


@lru_cache(maxsize=256)
def _words(call: str, has_failed: bool) -> bytes:
    key = crc32(call.encode(errors="surrogatepass"))
    return _WORDS.pack(has_failed, key, ~key & 0xFFFFFFFF)


def _tell_failure(comm: mpi.Intracomm, error: BaseException | None) -> None:
    """Returns on ranks that failed, so that their own error goes on; raises theirs as a `PeerError` on the others."""
    told = None if error is None else _Failure.of(error)
    failures = {rank: failure for rank, failure in enumerate(comm.allgather(told)) if failure is not None}
    if error is None:
        rank = min(failures)
        raise known_to(comm, failures[rank].for_peers(rank, others=len(failures) - 1))
    known_to(comm, error)


def known_to(comm: mpi.Intracomm, error: _Error) -> _Error:
    """Marks an error with how many ranks know of it: those of a node may, and the others not."""
    with suppress(AttributeError):
        error.known_to = comm.size  # type: ignore[attr-defined]
    return error


@dataclass(frozen=True)
class _Failure:
    """What a rank that failed tells the others."""

    host: str
    words: str
    lack: CapacityError | None

    @classmethod
    def of(cls, error: BaseException) -> _Failure:
        lack = error.alone() if isinstance(error, CapacityError) else None
        return cls(mpi.Get_processor_name(), words_of(error), lack)

    def for_peers(self, rank: int, *, others: int) -> PeerError:
        """The error of the ranks that did not fail. What all can cure in one way, all can catch in one way."""
        if self.lack is not None:
            return PeerCapacityError(rank, self.lack, others)
        return PeerError(rank, self.host, self.words, others)
