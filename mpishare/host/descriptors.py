"""An open file of one process, opened by another process of this host: through /proc, or sent over a Unix socket."""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

_NAME_BYTES = 12
"""Random bytes in the name of a socket, so that no two have the same."""

_INT = struct.Struct("i")


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

        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.name = b"\0mpishare-" + os.urandom(_NAME_BYTES).hex().encode()
        try:
            self._socket.bind(self.name)
        except OSError:
            self.close()
            raise

    def receive(self, file: OpenFile) -> int:
        """A descriptor of `file`, which was sent before.

        Its open file description is the sender's. What others may have sent is closed.

        Raises:
            OSError: It was not sent (EAGAIN), or this process has no open file left (EMFILE).
        """
        import socket

        while True:  # socket.recv_fds passes no flags on
            _, parts, flags, _ = self._socket.recvmsg(1, socket.CMSG_LEN(_INT.size), socket.MSG_CMSG_CLOEXEC)
            for _, _, data in parts:
                (descriptor,) = _INT.unpack(data)
                if file.is_at(descriptor):
                    return int(descriptor)
                os.close(descriptor)
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def close(self) -> None:
        """Ends it, and with it what was sent and not received."""
        self._socket.close()


def send(descriptor: int, name: bytes) -> None:
    """Sends a descriptor to the process whose `Inbox` has this name. Never waits.

    Raises:
        OSError: There is no such inbox in this network namespace, or it takes no more.
    """
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.connect(name)
        socket.send_fds(sender, [b"\0"], [descriptor])
