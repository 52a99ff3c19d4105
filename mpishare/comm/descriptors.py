"""Opens a file that one rank has open on the other ranks of its host, whatever namespaces they are in."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mpishare.host.descriptors import Inbox, OpenFile, send

if TYPE_CHECKING:
    from mpishare.comm.communicator import CollectiveComm


def open_file_of(comm: CollectiveComm, owner: int, descriptor: int) -> int | str:
    """A descriptor of the file that rank `owner` has open.

    Args:
        comm: Ranks of one host, or of hosts that must not be taken for one.
        owner: The rank that has the file.
        descriptor: Its descriptor there; ignored on the other ranks.

    Returns:
        On `owner` its descriptor, elsewhere a new one of the same file, or in words why this rank can have none. That
        may differ between ranks, and no rank raises anything.

    Collective:
        Over `comm`.
    """
    file: OpenFile = comm.bcast_obj(OpenFile.of(descriptor) if comm.rank == owner else None, owner)
    result = descriptor if comm.rank == owner else _open(file)
    try:
        if any(comm.allreduce_or(bytes([isinstance(result, str)]))):
            result = _receive(comm, owner, file, result)
    except BaseException:
        if comm.rank != owner and isinstance(result, int):
            os.close(result)
        raise
    return result


def _open(file: OpenFile) -> int | str:
    try:
        return file.open()
    except OSError as error:
        return f"{file.path} cannot be opened: {error.strerror}"


def _receive(comm: CollectiveComm, owner: int, file: OpenFile, result: int | str) -> int | str:
    """The `result` of each rank; where it is a refusal, what comes over a socket. Collective over `comm`."""
    inbox = None
    try:
        if isinstance(result, str):
            with suppress(OSError):
                inbox = Inbox()
        names = comm.allgather_obj(None if inbox is None else inbox.name)
        if comm.rank == owner and isinstance(result, int):
            for name in filter(None, names):
                with suppress(OSError):
                    send(result, name)
        comm.barrier()  # what can come has come
        return result if inbox is None else inbox.receive(file)
    except OSError as error:
        is_missing = isinstance(error, BlockingIOError)
        reason = (
            "does not come, as between network namespaces" if is_missing else f"cannot be received: {error.strerror}"
        )
        return f"{result}; over a Unix socket it {reason}"
    finally:
        if inbox is not None:
            inbox.close()
