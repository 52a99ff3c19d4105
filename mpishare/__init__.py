"""One copy per node of any array, or object full of arrays, as plain NumPy views on every rank of an MPI job."""

from __future__ import annotations

from mpishare._version import VERSION

# That of typing, whose import would take longer than all else here. After a plain False, jedi would see no names.
TYPE_CHECKING = bool()  # noqa: UP018
if TYPE_CHECKING:
    from mpishare.checkpoints.checkpoint import Checkpoint, Snapshot
    from mpishare.collectives.allgather import allgather
    from mpishare.collectives.allreduce import allreduce
    from mpishare.collectives.bcast import bcast, fence
    from mpishare.collectives.creation import empty, full, zeros
    from mpishare.collectives.distribute import distribute
    from mpishare.collectives.gather import gather, scatter
    from mpishare.collectives.info import Info, info
    from mpishare.collectives.partition import partition, rows
    from mpishare.collectives.put import put
    from mpishare.collectives.report import Report, report
    from mpishare.collectives.share import private, share
    from mpishare.comm.context import topology
    from mpishare.comm.mpi import SELF
    from mpishare.comm.topology import Topology
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
        PeerFileError,
        SpecError,
        StallError,
        TaskError,
    )
    from mpishare.files.listing import stored
    from mpishare.files.load import load
    from mpishare.files.save import Saved, save
    from mpishare.files.stored import Stored
    from mpishare.messages.point_to_point import irecv, isend, recv, send, sendrecv
    from mpishare.messages.requests import Request
    from mpishare.objects.distributed import Distributed
    from mpishare.objects.handle import handle
    from mpishare.tasks.map import map  # noqa: A004 - like Python's own
    from mpishare.tasks.pool import Pool
else:
    # Each module is imported when one of its names is first used (PEP 562), so that a job of many ranks reads only the
    # files that it needs. No module of this folder is called like a name: its import would take the name's place.
    _NAMES = {
        "collectives.put": ("put",),
        "checkpoints.checkpoint": ("Checkpoint", "Snapshot"),
        "collectives.bcast": ("bcast", "fence"),
        "collectives.distribute": ("distribute",),
        "collectives.partition": ("partition", "rows"),
        "comm.context": ("topology",),
        "comm.mpi": ("SELF",),
        "comm.topology": ("Topology",),
        "collectives.creation": ("empty", "full", "zeros"),
        "files.listing": ("stored",),
        "files.load": ("load",),
        "files.stored": ("Stored",),
        "files.save": ("Saved", "save"),
        "collectives.gather": ("gather", "scatter"),
        "collectives.allgather": ("allgather",),
        "collectives.info": ("Info", "info"),
        "collectives.report": ("Report", "report"),
        "messages.requests": ("Request",),
        "messages.point_to_point": ("irecv", "isend", "recv", "send", "sendrecv"),
        "collectives.allreduce": ("allreduce",),
        "objects.distributed": ("Distributed",),
        "objects.handle": ("handle",),
        "collectives.share": ("private", "share"),
        "tasks.map": ("map",),
        "tasks.pool": ("Pool",),
    }
    _MODULES = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        module = import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = VERSION

__all__ = [
    "SELF",
    "ArgumentError",
    "BackendError",
    "CapacityError",
    "Checkpoint",
    "Distributed",
    "FileError",
    "Info",
    "LaunchError",
    "MismatchError",
    "MpishareError",
    "PeerCapacityError",
    "PeerError",
    "PeerFileError",
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
    "distribute",
    "empty",
    "fence",
    "full",
    "gather",
    "handle",
    "info",
    "irecv",
    "isend",
    "load",
    "map",
    "partition",
    "private",
    "put",
    "recv",
    "report",
    "rows",
    "save",
    "scatter",
    "send",
    "sendrecv",
    "share",
    "stored",
    "topology",
    "zeros",
]
