"""One copy per node of any array, or object full of arrays, as plain NumPy views on every rank of an MPI job."""

from __future__ import annotations

from mpishare._version import VERSION
from mpishare.allgather import allgather
from mpishare.allreduce import allreduce
from mpishare.checkpoints.checkpoint import Checkpoint, Snapshot
from mpishare.collectives import bcast, fence, partition
from mpishare.comm.lookup import topology
from mpishare.comm.topology import Topology
from mpishare.creation import empty, full, zeros
from mpishare.errors import (
    ArgumentError,
    BackendError,
    CapacityError,
    FileError,
    LaunchError,
    MismatchError,
    MpishareError,
    PeerCapacityError,
    PeerError,
    SpecError,
    StallError,
    TaskError,
)
from mpishare.files.inspect import stored
from mpishare.files.load import load
from mpishare.files.parts import Stored
from mpishare.files.save import Saved, save
from mpishare.gather_scatter import gather, scatter
from mpishare.info import Info, info
from mpishare.messages.requests import Request
from mpishare.point_to_point import irecv, isend, recv, send, sendrecv
from mpishare.report import Report, report
from mpishare.sharing import private, share
from mpishare.tasks.map import map  # noqa: A004 - like Python's own
from mpishare.tasks.pool import Pool

__version__ = VERSION

__all__ = [
    "ArgumentError",
    "BackendError",
    "CapacityError",
    "Checkpoint",
    "FileError",
    "Info",
    "LaunchError",
    "MismatchError",
    "MpishareError",
    "PeerCapacityError",
    "PeerError",
    "Pool",
    "Report",
    "Request",
    "Saved",
    "Snapshot",
    "SpecError",
    "StallError",
    "Stored",
    "TaskError",
    "Topology",
    "allgather",
    "allreduce",
    "bcast",
    "empty",
    "fence",
    "full",
    "gather",
    "info",
    "irecv",
    "isend",
    "load",
    "map",
    "partition",
    "private",
    "recv",
    "report",
    "save",
    "scatter",
    "send",
    "sendrecv",
    "share",
    "stored",
    "topology",
    "zeros",
]
