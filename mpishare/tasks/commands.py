"""What the root of a pool tells a worker to do next."""

from __future__ import annotations

from mpishare.comm import mpi
from mpishare.comm.context import Context
from mpishare.comm.tags import Tag
from mpishare.tasks.object_transport import backoff

MAP, CALL, CLOSE = b"M", b"S", b"C"

_SLEEP_S = 0.0005
"""How long a worker without work sleeps between looks, so that the root has the machine to itself meanwhile."""


def send_command(context: Context, command: bytes, rank: int) -> None:
    """On the root: tells a worker, by rank."""
    context.data_comm.Send([command, mpi.BYTE], rank, Tag.POOL_COMMAND)


def next_command(context: Context, root: int) -> bytes:
    """On a worker: waits for the root, asleep most of the time."""
    comm, pauses, command = context.data_comm, backoff(_SLEEP_S), bytearray(1)
    while not comm.Iprobe(root, Tag.POOL_COMMAND):
        next(pauses)
    comm.Recv([command, mpi.BYTE], root, Tag.POOL_COMMAND)
    return bytes(command)
