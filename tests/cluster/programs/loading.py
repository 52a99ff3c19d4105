"""Loads argv[1] MiB, read once a argv[2] ("job" or "node"), from a file of each host or of the first alone.

Prints what each host's link received and sent meanwhile, and what its ranks read, in bytes, as JSON.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.cluster.programs.counters import link_bytes, read_bytes

comm = MPI.COMM_WORLD
here = ms.topology()
nbytes, read = int(sys.argv[1]) << 20, sys.argv[2]
with TemporaryDirectory() as mine:
    file = Path(comm.bcast(mine), "numbers.h5")
    if here.is_leader and (here.node == 0 or read == "node"):
        file.parent.mkdir(exist_ok=True)
        with h5py.File(file, "w") as made:
            made["numbers"] = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
    ms.load(file, "numbers", region=np.s_[:3], read=read)  # opens the connections
    comm.Barrier()
    before = link_bytes()
    comm.Barrier()
    mine_before = read_bytes()
    found = ms.load(file, "numbers", read=read)
    took = read_bytes() - mine_before
    comm.Barrier()
    gone = (link_bytes() - before).tolist()
    sums = comm.allgather(int(found.sum(dtype=np.uint64)))
    if here.is_leader and file.parent.exists():
        file.unlink()
        if here.node:
            file.parent.rmdir()
assert len(set(sums)) == 1
told = comm.allgather((here.hosts[here.node], gone, took))
if comm.rank == 0:
    print(
        json.dumps(
            {
                host: {"link": link, "read": sum(count for one, _, count in told if one == host)}
                for host, link, _ in told
            }
        )
    )
