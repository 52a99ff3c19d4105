"""Opens a file that one rank has open on the other ranks of its host, whatever namespaces they are in."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from mpishare.comm.communicator import CollectiveComm

_NAME_BYTES = 12
"""Random bytes in the name of a socket, so that nobody can guess it."""

_INT = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): a process, its user and its group."""


def open_file_of_leader(comm: CollectiveComm, descriptor: int) -> int | str:
    """A descriptor of the file that rank 0 has open.

    Rank 0 listens at a Unix socket with an abstract name, which is in no folder and gone with the socket. The others
    connect, rank 0 sends each the descriptor, and they receive it. The ranks meet between these steps, so that no
    rank waits at a socket.

    Args:
        comm: Ranks of one host, or of hosts that must not be taken for one.
        descriptor: The file's on rank 0; ignored on the other ranks.

    Returns:
        On rank 0 its descriptor, elsewhere a new one of the same file, or in words why this rank can have none. That
        may differ between ranks, and no rank raises anything. Each descriptor has an open file description of its own:
        else a lock of flock(2) would not keep two ranks apart.

    Collective:
        Over `comm`.

    Source:
        unix(7), abstract sockets and SCM_RIGHTS. They work across user, PID and mount namespaces, not across network
        namespaces.
    """
    with ExitStack() as sockets:
        name = os.urandom(_NAME_BYTES)
        unix = unix_socket(sockets, name, comm.size) if comm.rank == 0 else ""
        name = comm.bcast_obj(b"" if isinstance(unix, str) else name, 0)
        if comm.rank != 0:
            unix = unix_socket(sockets, name) if name else "the rank that has the file can make no Unix socket"
        comm.barrier()
        if comm.rank == 0 and not isinstance(unix, str):
            send_to_all(unix, descriptor)
        comm.barrier()
        if comm.rank == 0:
            return descriptor
        return unix if isinstance(unix, str) else receive(unix)


def unix_socket(sockets: ExitStack, name: bytes, backlog: int = 0) -> socket.socket | str:
    """A Unix socket that never waits, which listens, or without a `backlog` connects; in words why there is none."""
    import socket  # where it is needed: importing it takes milliseconds

    try:
        unix = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        unix.setblocking(False)
        path = b"\0mpishare-" + name.hex().encode()
        if backlog:
            unix.bind(path)
            unix.listen(backlog)
        else:
            unix.connect(path)
    except ConnectionRefusedError:
        return "a Unix socket does not reach the rank that has it, as between network namespaces"
    except OSError as error:
        return f"it cannot be sent over a Unix socket: {error.strerror}"
    return unix


def send_to_all(listening: socket.socket, descriptor: int) -> None:
    """Sends a descriptor to all processes of this user that have connected."""
    import socket

    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # nobody is left
            return
        with connection, suppress(OSError):  # which the other rank notices
            if peer_of(connection)[1] == os.geteuid():
                socket.send_fds(connection, [b"\0"], [descriptor])


def receive(connected: socket.socket) -> int | str:
    """A descriptor of the file that was sent; in words why there is none.

    A name that is seen in one network namespace can be taken in another: so only a process of this user is believed.
    """
    import socket

    try:
        if peer_of(connected)[1] != os.geteuid():
            raise PermissionError(errno.EPERM, "the socket is another user's")
        # socket.recv_fds passes no flags on
        _, parts, flags, _ = connected.recvmsg(1, socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC or not parts:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        received = int(_INT.unpack(parts[0][2])[0])
        try:
            return os.open(f"/proc/self/fd/{received}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(received)
    except OSError as error:
        return f"it cannot be received over a Unix socket: {error.strerror}"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The id and the user of the process at the other end, when it connected or began to listen."""
    import socket

    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return pid, user
