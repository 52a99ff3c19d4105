"""Rows of an array that is split over two nodes: a take, beside an Alltoallv whose buffers and counts are known.

    python -m benchmarks.take [--links pretend,1gbit] [--counts 128,10000] [--row 3072] [--rounds 15] [--name take]

One rank on each of 2 nodes takes rows at random from 100 MB. The rival knows the rows that the other rank wants, and
all counts. It keeps its buffers: it gathers the rows by numpy.take, exchanges them, and puts them in their places.
"pretend" are 2 nodes of this machine; the other links join 2 hosts that are namespaces of it (tests/cluster).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Place

OURS, OURS_NEW, RIVAL = "mpishare take, out=", "mpishare take", "Alltoallv by hand, all known"
TOTAL_BYTES = 100_000_000


def main() -> None:
    """Measures on each link, prints and keeps."""
    options = harness.options(__doc__, 15, links="pretend,1gbit", counts="128,10000", row=3072, name="take")
    if options.inside:
        inside(options)
        return
    figures = {}
    for link in options.links.split(","):
        place = Place("2 pretend nodes of 1", 2, "block:1")
        if link != "pretend":
            place = Place(f"2 hosts of 1, {link}", 1, hosts=2, rate=link)
        args = ["--rounds", str(options.rounds), "--counts", options.counts, "--row", str(options.row)]
        figures[place.title] = place.run("take", *args)
        for count, table in figures[place.title].items():
            harness.show(f"{count} rows of {options.row} bytes, {place.title}", table)
    harness.keep(options.name, figures)


def inside(options: Any) -> None:
    """The rows of each way, for all counts."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    harness.tell(comm, {count: measure(comm, int(count), options) for count in options.counts.split(",")})


def measure(comm: Any, count: int, options: Any) -> harness.Table:
    """The row of each way, for one count."""
    import mpishare as ms

    n_rows = TOTAL_BYTES // options.row // 2
    data = ms.distribute(local=np.random.default_rng(comm.rank).integers(0, 256, (n_rows, options.row), np.uint8))
    indices = [np.random.default_rng([rank, count]).integers(0, len(data), count) for rank in range(comm.size)]
    out = np.empty((count, options.row), np.uint8)
    rival = by_hand(comm, data, indices)
    calls: dict[str, harness.Call] = {
        OURS: lambda _: data.take(indices[comm.rank], out=out),
        OURS_NEW: lambda _: data.take(indices[comm.rank]),
        RIVAL: lambda _: rival(),
    }
    times = harness.measure(comm, calls, harness.repeats(count * options.row), options.rounds)
    if not np.array_equal(rival(), data.take(indices[comm.rank])):
        raise SystemExit("the rows differ")
    return harness.compared(harness.rows(times), OURS)


def by_hand(comm: Any, data: Any, indices: Any) -> Any:
    """What an expert writes who knows the rows that every rank wants, before the clock starts."""
    from mpi4py import MPI

    own = [rows[np.isin(rows, data.rows)] - data.rows.start for rows in indices]
    wanted = indices[comm.rank]
    is_own = np.isin(wanted, data.rows)
    own_places, places = np.flatnonzero(is_own), np.flatnonzero(~is_own)
    other = 1 - comm.rank
    row_bytes = data.shape[1]
    item = np.dtype((np.void, row_bytes))
    out, table = np.empty(len(wanted), item), data.local.view(item)[:, 0]
    sent, received = np.empty(len(own[other]), item), np.empty(len(places), item)
    send_sizes, receive_sizes = [0, 0], [0, 0]
    send_sizes[other], receive_sizes[other] = sent.nbytes, received.nbytes
    sending = [sent.view(np.uint8), send_sizes, [0, 0], MPI.BYTE]
    receiving = [received.view(np.uint8), receive_sizes, [0, 0], MPI.BYTE]

    def call() -> Any:
        table.take(own[other], out=sent, mode="clip")
        comm.Alltoallv(sending, receiving)
        out[places] = received
        out[own_places] = table[own[comm.rank]]
        return out.view(np.uint8).reshape(-1, row_bytes)

    return call


if __name__ == "__main__":
    main()
