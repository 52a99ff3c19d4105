"""Shares argv[1] MiB from rank argv[2]; prints what each host's link received and sent meanwhile, in bytes, as JSON."""

import json
import sys

import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.cluster.programs.counters import link_bytes

comm = MPI.COMM_WORLD
here = ms.topology()
nbytes, root = int(sys.argv[1]) << 20, int(sys.argv[2])
source = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8) if comm.rank == root else None
ms.share(np.arange(3) if comm.rank == root else None, root=root)  # opens the connections
comm.Barrier()
before = link_bytes()
comm.Barrier()
shared = ms.share(source, root=root)
comm.Barrier()
mine = (link_bytes() - before).tolist()
sums = comm.allgather(int(shared.sum(dtype=np.uint64)))
assert len(set(sums)) == 1
links = comm.allgather((here.node, mine))
if comm.rank == 0:
    print(json.dumps({here.hosts[node]: link for node, link in links}))
