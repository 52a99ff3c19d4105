"""An open file of one process, opened by another process of this host: through /proc, or sent over a Unix socket."""

from __future__ import annotations

import errno
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import socket

_NAME_BYTES = 12
"""Random bytes in the name of a socket, so that no two have the same."""

_INT = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
"""struct ucred of unix(7): the process, its user and its group when it began to listen."""


class OpenFile(NamedTuple):
    """What another process must know of an open file.

    Attributes:
        path: Its entry in /proc.
        device: The number of its file system.
        inode: Its number there.
    """

    path: str
    device: int
    inode: int

    @classmethod
    def of(cls, descriptor: int) -> OpenFile:
        """The file of a descriptor of this process."""
        status = os.fstat(descriptor)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}", status.st_dev, status.st_ino)

    def open(self) -> int:
        """Opens the file through /proc, for reading and writing; returns a descriptor of this process.

        Raises:
            OSError: It cannot be opened: the processes have different PID or user namespaces, or cannot be traced. Or
                another file is there (ESTALE), as the processes have different /proc.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if self.is_at(descriptor):
            return descriptor
        os.close(descriptor)
        raise OSError(errno.ESTALE, "it is another file, as the processes have different /proc")

    def is_at(self, descriptor: int) -> bool:
        """Whether it is the file of a descriptor of this process."""
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


class Inbox:
    """A Unix socket at which other processes of this host send descriptors to this one.

    Its name is abstract: it is in no folder, and gone with the socket. What was sent waits in it, so that neither side
    waits for the other; the sender must have sent before this process receives.

    Source:
        unix(7), abstract sockets and SCM_RIGHTS. It works across user, PID and mount namespaces, not across network
        namespaces.
    """

    def __init__(self) -> None:
        """Makes it.

        Raises:
            OSError: No socket can be made.
        """
        import socket  # where it is needed: importing it takes milliseconds

        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self.name = b"\0mpishare-" + os.urandom(_NAME_BYTES).hex().encode()
        try:
            self._socket.bind(self.name)
            self._socket.listen()
        except OSError:
            self.close()
            raise

    def receive(self, file: OpenFile) -> int:
        """A descriptor of `file`, which was sent before. What others may have sent is closed.

        It has an open file description of its own. By the sender's, a lock of flock(2) would not keep the two apart.

        Raises:
            OSError: It was not sent (EAGAIN), this process has no open file left (EMFILE), or has no /proc.
        """
        while True:
            connection, _ = self._socket.accept()
            with connection:
                connection.setblocking(False)
                received = _receive(connection)
            if received >= 0:
                try:
                    if file.is_at(received):
                        return os.open(f"/proc/self/fd/{received}", os.O_RDWR | os.O_CLOEXEC)
                finally:
                    os.close(received)

    def close(self) -> None:
        """Ends it, and with it what was sent and not received."""
        self._socket.close()


def _receive(connection: socket.socket) -> int:
    """The descriptor that was sent on a connection; -1 if there is none.

    Raises:
        OSError: This process has no open file left (EMFILE).
    """
    import socket

    try:  # socket.recv_fds passes no flags on
        _, parts, flags, _ = connection.recvmsg(1, socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return -1
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return int(_INT.unpack(parts[0][2])[0]) if parts else -1


def send(descriptor: int, name: bytes) -> None:
    """Sends a descriptor to the process of this user whose `Inbox` has this name. Never waits.

    Raises:
        OSError: There is no such inbox in this network namespace, or it takes no more. Or it is another user's (EPERM):
            a name that is seen in one network namespace can be taken in another.
    """
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.setblocking(False)
        sender.connect(name)
        _, user, _ = _CREDENTIALS.unpack(sender.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if user != os.geteuid():
            raise PermissionError(errno.EPERM, f"the socket is that of user {user}")
        socket.send_fds(sender, [b"\0"], [descriptor])
