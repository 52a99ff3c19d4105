"""One copy per node of any array, or object full of arrays, as plain NumPy views on every rank of an MPI job."""

from mpishare._version import VERSION

# Each module is imported when one of its names is first used (PEP 562), so that a job of many ranks reads only the
# files that it needs. No module of this folder is called like a name: its import would take the name's place.
# `__init__.pyi` has the same names for type checkers and editors.
_NAMES = {
    "checkpoints.checkpoint": ("Checkpoint", "Snapshot"),
    "collectives.allgather": ("allgather",),
    "collectives.allreduce": ("allreduce",),
    "collectives.bcast": ("bcast", "fence"),
    "collectives.creation": ("empty", "empty_like", "full", "full_like", "ones", "zeros", "zeros_like"),
    "collectives.distribute": ("distribute",),
    "collectives.gather": ("gather", "scatter"),
    "collectives.info": ("Info", "configure", "info"),
    "collectives.partition": ("partition", "rows"),
    "collectives.put": ("put",),
    "collectives.report": ("Report", "report"),
    "collectives.share": ("private", "share"),
    "comm.context": ("topology",),
    "comm.mpi": ("HAS_MPI", "SELF"),
    "comm.topology": ("Topology",),
    "errors": (
        "ArgumentError",
        "BackendError",
        "CapacityError",
        "FileError",
        "LaunchError",
        "MismatchError",
        "MpishareError",
        "PeerCapacityError",
        "PeerError",
        "PeerFileError",
        "SpecError",
        "StallError",
        "TaskError",
    ),
    "files.listing": ("stored",),
    "files.load": ("load",),
    "files.save": ("Saved", "save"),
    "files.stored": ("Stored",),
    "messages.point_to_point": ("irecv", "isend", "recv", "send", "sendrecv"),
    "messages.requests": ("Request",),
    "objects.distributed": ("Distributed",),
    "objects.handle": ("handle",),
    "tasks.map": ("map",),
    "tasks.pool": ("Pool",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

_CURES = {
    "alltoall": "mpi4py's comm.alltoall or comm.Alltoall, or distribute and its take",
    "array": "share for one copy per node of an array, zeros or empty for a new one",
    "barrier": "fence for the ranks of a node, fence(scope='all') or mpi4py's comm.Barrier() for all ranks",
    "bcast": "share for what one rank has, bcast to refresh an array that all ranks have",
    "reduce": "allreduce, gather, or mpi4py's comm.reduce",
}
"""What to use instead of names that mpi4py or NumPy have, in small letters."""

__version__ = VERSION
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        cure = _CURES.get(name.lower(), name.lower() if name.lower() in _MODULES else "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f". Use {cure}." if cure else ""))
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
