"""Every node gets every byte, from any root, in any chunks; the root copies where a rank may not read its memory."""

import errno

import numpy as np
import pytest

import mpishare as ms
from mpishare.memory import syscalls
from mpishare.transfer.cma import MIN_BYTES


@pytest.mark.parametrize("backend", ["", "private"])
@pytest.mark.parametrize("chunk", ["", "100_000", "1G"])
def test_arrays_reach_every_node(configured, chunk, backend):
    duplicate = configured(chunk=chunk.replace("_", ""), backend=backend)
    for count in (1, 5000, 200_000, MIN_BYTES // 8 + 3):
        table = np.arange(2 * count).reshape(2, count)
        for root in range(duplicate.size):
            for array in (table[1], table[:, ::2], np.asfortranarray(table)):
                shared = ms.share(array if duplicate.rank == root else None, root=root, comm=duplicate)
                assert (shared == array).all()


ARRAY = np.arange(MIN_BYTES // 8 + 5)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("refusal", ["", "forbidden", "another process"])
def test_the_root_copies_once_a_rank_may_not_read(refusal, comm, duplicate, monkeypatch):
    calls, usual = [], syscalls.read_process

    def read_process(pid, source, target, length):
        calls.append(pid)
        if refusal == "forbidden" and comm.rank == comm.size - 1:
            raise OSError(errno.EPERM, "not permitted")
        if refusal != "another process" or comm.rank < comm.size - 1:
            usual(pid, source, target, length)

    monkeypatch.setattr(syscalls, "read_process", read_process)
    nodes = ms.topology(duplicate)
    counts = []
    for root in range(comm.size):
        before = len(calls)
        shared = ms.share(ARRAY if comm.rank == root else None, root=root, comm=duplicate, backend="memmap")
        assert (shared == ARRAY).all()
        counts.append(sum(nodes.node_comm.allgather(len(calls) - before)))
    roots = list(nodes.ranks_of(nodes.node))
    tried = [root for root in roots if counts[root]]
    is_refused = refusal != "" and comm.size - 1 in roots
    assert tried == ([] if len(roots) == 1 else roots[:1] if is_refused else roots)
    assert sum(counts) == sum(counts[root] for root in roots)
