"""Too little room: runs the function argv[1], with argv[2:], on each rank."""

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.faults.programs.errors import printed

comm = MPI.COMM_WORLD
rank = comm.rank


def share_large() -> None:
    """Shares 256 MiB."""
    array = ms.share(np.full(256 << 20, 7, "u1") if rank == 0 else None)
    assert (array == 7).all()
    print(ms.report())


def share_while_it_fills_up() -> None:
    """Shares 60 arrays of 2 MiB, while somebody else fills /dev/shm."""
    kept = []
    for number in range(60):
        if rank == 0 and number % 3 == 0:
            free = os.statvfs("/dev/shm").f_bavail * 4096
            Path(f"/dev/shm/foreign{number}").write_bytes(bytes(min(5 << 20, free)))
        kept.append(ms.share(np.full(2 << 20, number, "u1") if rank == 0 else None))
    assert all((array == number).all() for number, array in enumerate(kept))
    print(sorted({segment.backend for segment in ms.report().segments}))


def make(nbytes: str) -> None:
    """Makes an array, and prints the error."""
    with printed():
        ms.zeros(int(nbytes), "u1")
    if "MPISHARE_BACKEND" not in os.environ or int(nbytes) > 3:
        assert ms.zeros(9).sum() == 0


def share_without_descriptors() -> None:
    """Shares when no file can be opened any more."""
    ms.share(np.arange(3))
    limit = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = []
    with suppress(OSError):
        while True:
            held.append(os.dup(0))
    shared = ms.share(np.arange(1000))
    assert shared.tolist() == list(range(1000))
    backend = [segment.backend for segment in ms.report().segments]
    os.close(held.pop())
    print(backend)


def save_on_a_full_disk(folder: str) -> None:
    """Replaces files on a disk of 8 MiB."""
    for file, dataset in ((Path(folder, "a.npy"), None), (Path(folder, "a.h5"), "x")):
        ms.save(file, np.ones(1 << 16), dataset, distributed=True)
        before = file.read_bytes()
        with printed():
            ms.save(file, np.ones(7 << 16), dataset, distributed=True)
        assert file.read_bytes() == before
        comm.Barrier()
        assert len(list(Path(folder).iterdir())) == 1
        comm.Barrier()
        if rank == 0:
            file.unlink()


def save_as_nobody(folder: str) -> None:
    """Saves as a user without permission: into a folder, and over a file of another user."""
    names = (("mine/a.npy", None), ("mine/a.h5", "x"), ("open/a.npy", None), ("open/a.h5", "x"))
    for name, dataset in names[:2]:
        ms.save(f"{folder}/{Path(name).name}", np.ones(3), dataset)  # imports what that user may not be able to read
    comm.Barrier()
    os.setegid(65534)
    os.seteuid(65534)
    for name, dataset in names:
        with printed():
            ms.save(f"{folder}/{name}", np.ones(3), dataset)


globals()[sys.argv[1]](*sys.argv[2:])
