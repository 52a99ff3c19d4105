"""All ranks go on together, or all ranks fail together."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import TypeVar
from zlib import crc32

from mpishare import mpi
from mpishare.errors import CapacityError, MismatchError, PeerCapacityError, PeerError, words_of

__all__ = ["NOTE_BYTES", "WORDS_BYTES", "agree"]

NOTE_BYTES = 64
"""How much one rank can tell the others with an agreement."""

_WORDS = struct.Struct("<QII")
"""Has this rank failed, the checksum of its call, and the same with each bit turned."""

WORDS_BYTES = _WORDS.size

_Error = TypeVar("_Error", bound=BaseException)


class agree:  # noqa: N801 - used as a verb: `with agree(comm):`
    """A block of local work that may fail on any rank of `comm`.

    Leaving the block is collective over `comm`. Where every rank left it well, all go on. A rank whose work raised
    raises that same error; every other rank raises `PeerError`, or `PeerCapacityError`, with its words. So no rank
    waits in a later collective for one that will not come.

    When the block sets `call` to a text, the texts of all ranks must be equal, or all ranks raise `MismatchError`.
    When it sets `note` on one rank, to `NOTE_BYTES` bytes, all ranks find it there after the block.

    The price where all is well is one MPI_Allreduce of 80 bytes by MPI_BOR: has a rank failed, the checksum of the
    call, the same with each bit turned, and the note. They come out as they went in if all were equal. On one node the
    ranks may have a board for it (`Boarded`), which takes less. Both order memory as well: what any rank wrote to node
    memory before is seen by all after.
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
        told = self._by_allreduce(words) if meet is None else meet(words, self.note)
        if error is not None or not told.startswith(words):
            if _WORDS.unpack_from(told)[0]:
                _tell_failure(self._comm, error)
            else:
                raise _everywhere(MismatchError(dict(enumerate(self._comm.allgather(self.call + self._where)))))
        self.note = told[WORDS_BYTES:]

    def _by_allreduce(self, words: bytes) -> bytes:
        told = bytearray(words + self.note)
        self._comm.Allreduce(mpi.IN_PLACE, [told, mpi.BYTE], mpi.BOR)
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
        raise _everywhere(failures[rank].for_peers(rank, others=len(failures) - 1))
    _everywhere(error)


def _everywhere(error: _Error) -> _Error:
    """Marks an error that all ranks know of."""
    with suppress(AttributeError):
        error.is_everywhere = True  # type: ignore[attr-defined]
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
