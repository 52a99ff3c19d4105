"""Loads argv[1] MiB of compressed chunks, of which the second cannot be expanded, from a file of the first host.

Prints what each host's link received meanwhile, in bytes, and each rank's error, as JSON.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.cluster.programs.counters import link_bytes

comm = MPI.COMM_WORLD
here = ms.topology()
nbytes = int(sys.argv[1]) << 20
with TemporaryDirectory() as mine:
    file = Path(comm.bcast(mine), "broken.h5")
    if comm.rank == 0:
        with h5py.File(file, "w") as made:
            numbers = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
            chunk = made.create_dataset("numbers", data=numbers, chunks=(1 << 20,), shuffle=True, compression="gzip")
            at = chunk.id.get_chunk_info(1).byte_offset
        with file.open("r+b") as written:
            written.seek(at)
            written.write(bytes(1 << 16))
    comm.Barrier()
    ms.load(file, "numbers", region=np.s_[:3])  # opens the connections
    comm.Barrier()
    before = link_bytes()
    comm.Barrier()
    try:
        ms.load(file, "numbers")
        told = "none"
    except ms.MpishareError as error:
        told = f"{type(error).__name__} {error}"
    comm.Barrier()
    gone = (link_bytes() - before).tolist()
    comm.Barrier()
links = dict(comm.allgather((here.hosts[here.node], gone[0])))
errors = comm.allgather(told)
if comm.rank == 0:
    print(json.dumps({"links": links, "errors": errors}))
