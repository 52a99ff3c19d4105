"""Every public call, on any ranks, with MPI or without."""

import numpy as np


def everything(ms, comm, folder, n=1 << 17):
    """Makes every public call over `comm` with arrays of `n` rows of 32 bytes; yields what the calls give."""
    nodes, rows, array = ms.topology(comm), np.arange(4.0 * n).reshape(n, 4), ms.zeros((n, 4), comm=comm)
    yield nodes.size, nodes.n_nodes, nodes.is_leader, nodes.ranks_of(0), ms.bcast(array, comm=comm)
    for region in (np.s_[...], np.s_[:, 1:]):
        ms.put(array, region, rows[region], comm=comm)
    kept = ms.share(call=lambda: {"rows": rows, "text": "text"}, comm=comm, backend="memmap")["rows"]
    own = ms.private(kept)
    own += 1
    yield array, kept, kept.flags.writeable, own, ms.handle(kept).get()
    yield ms.full(9, 1, comm=comm), ms.empty(9, comm=comm).shape, ms.ones(9, comm=comm), ms.rows(3, comm=comm)
    yield ms.empty_like(kept, comm=comm).shape, ms.zeros_like(kept, comm=comm), ms.full_like(kept, 2, comm=comm)
    gathered = ms.gather(rows[ms.partition(n, comm=comm)], comm=comm)
    yield gathered, ms.scatter(gathered, comm=comm), ms.distribute(local=rows, comm=comm).take(range(3))
    yield ms.allgather(rows, comm=comm), ms.allreduce(rows, comm=comm)
    for file, dataset in ((folder / "a.npy", None), (folder / "a.h5", "a")):
        ms.save(file, rows, dataset, distributed=True, comm=comm)
        for read, part in (("job", None), ("node", None), ("job", np.s_[1:3, 0])):
            yield read, ms.load(file, dataset, region=part, read=read, comm=comm)
        yield [array.shape for array in ms.stored(file).values()]
    checkpoint = ms.Checkpoint(folder / "run", comm=comm)
    checkpoint.save(1, {"a": rows}, distributed=["a"], values={"dt": 0.1})
    yield checkpoint.latest().step, checkpoint.latest().values, checkpoint.latest().load("a")
    yield ms.map(abs, range(-99, 0), comm=comm, gather="all")
    with ms.Pool(comm) as pool:
        if pool is not None:
            yield pool.map(abs, range(-99, 0)), pool.submit(abs, -1).result(), list(pool.imap(abs, [-1, 2]))
    following, previous = (nodes.rank + 1) % nodes.size, (nodes.rank - 1) % nodes.size
    yield ms.sendrecv({"rows": rows, "text": "text"}, following, source=previous, comm=comm)
    for begin in (ms.isend, ms.send):
        request = ms.irecv(nodes.rank, tag=3, comm=comm)
        sent = [begin(rows[:tag], nodes.rank, tag=tag, comm=comm) for tag in (4, 3)]
        yield request.wait(), ms.recv(nodes.rank, tag=4, comm=comm), [each and each.wait() for each in sent]
    ms.fence(comm=comm, scope="all")
    yield ms.info(probe=True, comm=comm).size, ms.report().bytes_saved
