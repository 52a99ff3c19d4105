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
    "collectives.configure": ("configure",),
    "collectives.creation": ("empty", "full", "zeros"),
    "collectives.distribute": ("distribute",),
    "collectives.gather": ("gather", "scatter"),
    "collectives.info": ("Info", "info"),
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

__version__ = VERSION
__all__ = sorted(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__():
    return sorted({*globals(), *__all__})
