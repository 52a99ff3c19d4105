"""All ranks go on together, or all ranks fail together."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn
from zlib import crc32

import numpy as np

from mpishare import mpi
from mpishare.errors import MismatchError, PeerError

__all__ = ["agree"]


class agree:  # noqa: N801 - used as a verb: `with agree(comm):`
    """A block of local work that may fail on any rank of `comm`.

    Leaving the block is collective over `comm`. Where every rank left it well, all go on. A rank whose work raised
    raises that same error; every other rank raises `PeerError` with its words. So no rank waits in a later collective
    for one that will not come.

    When the block sets `call` to a text, the texts of all ranks must be equal, or all ranks raise `MismatchError`.

    The price where all is well is one MPI_Allreduce of three integers: has a rank failed, the largest and the smallest
    checksum of a call. It orders memory as well: what any rank wrote to node memory before is seen by all after.
    """

    def __init__(self, comm: mpi.Intracomm) -> None:
        self._comm = comm
        self.call = ""

    def __enter__(self) -> agree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        key = crc32(self.call.encode(errors="surrogatepass"))
        worst = np.array([error is not None, key, -key], np.int64)
        self._comm.Allreduce(mpi.IN_PLACE, worst, mpi.MAX)
        failed, highest, lowest = worst.tolist()
        if failed:
            _tell_failure(self._comm, error)
        elif highest != -lowest:
            raise MismatchError(dict(enumerate(self._comm.allgather(self.call))))


def _tell_failure(comm: mpi.Intracomm, error: BaseException | None) -> None:
    """Returns on ranks that failed, so that their own error goes on; raises `PeerError` on the others."""
    words = None if error is None else (mpi.Get_processor_name(), _words_of(error))
    failures = {rank: told for rank, told in enumerate(comm.allgather(words)) if told is not None}
    if error is None:
        _raise_peer_error(failures)


def _words_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error that cannot tell itself must not keep the others waiting
        return f"{type(error).__name__}, which cannot be put in words"


def _raise_peer_error(failures: dict[int, tuple[str, str]]) -> NoReturn:
    rank = min(failures)
    host, reason = failures[rank]
    raise PeerError(rank, host, reason, len(failures) - 1)
