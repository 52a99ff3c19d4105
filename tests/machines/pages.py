"""Counts on which domains of memory the pages of new arrays lie, with a rank bound to each of four: 30 % at most."""

import mmap
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from mpi4py import MPI

import mpishare as ms

MIB = 1 << 20


def arrays(comm, backend):
    """New arrays by the call that makes them, each after the last has gone."""
    yield "share", ms.share(np.ones(64 * MIB, "u1") if comm.rank == 0 else None, backend=backend)
    yield "empty", ms.empty(64 * MIB, "u1", backend=backend)
    path = comm.bcast(Path(mkdtemp(), "table.npy") if comm.rank == 0 else None)
    if comm.rank == 0:
        np.save(path, np.ones(256 * MIB, "u1"))
    comm.Barrier()
    yield "load", ms.load(path, backend=backend)


def main():
    """Each rank reads each array, and asks for its pages."""
    comm = MPI.COMM_WORLD
    for backend in ("window", "memmap"):
        try:
            for name, array in arrays(comm, backend):
                assert array[:: mmap.PAGESIZE].any() or name != "share"  # which needs all pages
                segment = ms.report().segments[0]
                used = segment.bytes_by_domain
                if comm.rank == comm.size - 1:
                    mib = {domain: nbytes / MIB for domain, nbytes in used.items()}
                    print(f"{name}, {segment.backend}, page {segment.page_bytes:,}: MiB by domain {mib}", flush=True)
                assert sum(used.values()) >= array.nbytes == segment.nbytes
                assert max(used.values()) <= 0.3 * array.nbytes
                del array
        except ms.BackendError as error:
            if "older than Linux 5.14" not in str(error):
                raise


if __name__ == "__main__":
    main()
