"""The bytes that each host's link carries during a call: runs the function argv[1] with argv[2:], prints JSON."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import h5py
import numpy as np
from mpi4py import MPI

import mpishare as ms
from tests.processes import read_bytes

comm = MPI.COMM_WORLD
topology = ms.topology()
MIB = 1 << 20


def counters():
    """Bytes that this host's link has received and sent, and that this process has read by system calls."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    numbers = next(line for line in lines if "eth0:" in line).partition(":")[2].split()
    return np.array([int(numbers[0]), int(numbers[8]), read_bytes()])


def measure(call):
    """What `call` returns; rank 0 prints the bytes of each host: received, sent, and read by all its ranks."""
    comm.Barrier()
    before = counters()
    comm.Barrier()
    result = call()
    read = counters()[2]
    comm.Barrier()
    moved = counters() - before
    rows = comm.allgather((topology.host, moved[:2].tolist(), int(read - before[2])))
    if comm.rank == 0:
        read_bytes = {host: sum(count for other, _, count in rows if other == host) for host in topology.hosts}
        print(json.dumps({host: [*link, read_bytes[host]] for host, link, _ in rows}))
    return result


def same(array):
    """Checks that all ranks have the same bytes."""
    assert len(set(comm.allgather(int(array.sum(dtype=np.uint64))))) == 1


def noise(nbytes):
    """Bytes that do not compress."""
    return np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)


def share(mib, root):
    """An array from one rank to all."""
    source = noise(int(mib) * MIB) if comm.rank == int(root) else None
    ms.share(np.arange(3) if comm.rank == int(root) else None, root=int(root))  # opens the connections
    same(measure(lambda: ms.share(source, root=int(root))))


def allreduce(mib):
    """A sum over all ranks."""
    for count in (1000, 100_000):  # opens the connections
        ms.allreduce(np.arange(count))
    numbers = np.arange(int(mib) * MIB // 8)
    result = measure(lambda: ms.allreduce(numbers * (comm.rank + 1)))
    assert (result == numbers * (comm.size * (comm.size + 1) // 2)).all()


def allgather(mib):
    """The rows of all ranks."""
    for count in (1000, 100_000):  # opens the connections
        ms.allgather(np.arange(count)[ms.partition(count)])
    numbers = np.arange(int(mib) * MIB // 8)
    result = measure(lambda: ms.allgather(numbers[ms.partition(numbers.size)]))
    assert (result == numbers).all()


def take(mib):
    """Each rank takes all rows, in an order of its own."""
    rows = noise(int(mib) * MIB).reshape(-1, 2048)
    distributed = ms.distribute(rows if comm.rank == 0 else None)
    order = np.random.default_rng(comm.rank).permutation(len(rows))
    distributed.take(order[:9])  # opens the connections
    assert np.array_equal(measure(lambda: distributed.take(order)), rows[order])


@contextmanager
def file_of(mib, *, on_each_host=False):
    """An HDF5 file on the first host, or one of the same name on each, and no connection still to be opened."""
    with TemporaryDirectory() as folder:
        file = Path(comm.bcast(folder), "numbers.h5")
        is_writer = topology.is_leader and (comm.rank == 0 or on_each_host)
        if is_writer:
            file.parent.mkdir(exist_ok=True)
            with h5py.File(file, "w") as new:
                new["numbers"] = noise(int(mib) * MIB)
        ms.load(file, "numbers", region=np.s_[:3], read="node" if on_each_host else "job")
        yield file
        comm.Barrier()
        if is_writer and topology.node:
            file.unlink()
            file.parent.rmdir()


def load(mib, read):
    """A file of the first host, or of each."""
    with file_of(mib, on_each_host=read == "node") as file:
        same(measure(lambda: ms.load(file, "numbers", read=read)))


globals()[sys.argv[1]](*sys.argv[2:])
