"""A message of an array from rank to rank: ours beside MPI's into known buffers, a probed receive, and pickles.

    python -m benchmarks.messages [--rounds 9] [--powers 3,10,16,20,24,28] [--hosts 0]

Rank 0 sends to rank 1, which sends back; half of that is the time of one message. Each message is another array. Where
the receiver does not know what comes, as with ours, MPI's own means are Mprobe, a new array and Recv. `--hosts 2` puts
the ranks on two hosts that are namespaces of this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import MEDIAN, Place

OURS, OURS_OUT = "mpishare.send, recv", "mpishare.send, recv with out="
KNOWN, PROBED = "Send, Recv into known buffers", "Send, Mprobe, Recv into a new array"
_TAG = 7
Array = NDArray[np.float64]
Way = tuple[Callable[[Array], object], Callable[[Array], object]]
"""How an array is sent, and how one is received where there is room for it."""


def main() -> None:
    """Measures on one node or on two hosts, prints and keeps."""
    options = harness.options(__doc__, powers="3,10,16,20,24,28", hosts=0)
    if options.inside:
        inside(options)
        return
    place = Place(f"{options.hosts} hosts", 1, hosts=options.hosts) if options.hosts else Place("one node", 2)
    figures = {place.title: place.run("messages", "--rounds", str(options.rounds), "--powers", options.powers)}
    for size, table in figures[place.title].items():
        harness.show(f"{size}, {place.title}", table)
    harness.keep("messages-hosts" if options.hosts else "messages", figures)


def inside(options: Any) -> None:
    """The row of each way, for all sizes."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    sizes = harness.powers(options.powers)
    harness.tell(comm, {harness.size_of(nbytes): measure(comm, nbytes, options.rounds) for nbytes in sizes})


def measure(comm: Any, nbytes: int, rounds: int) -> harness.Table:
    """The row of each way, for one size."""
    room, arrays = np.ones(nbytes // 8), [np.full(nbytes // 8, float(number)) for number in range(2)]

    def call(way: Way) -> harness.Call:
        send, receive = way

        def turn(number: int) -> None:
            if comm.rank == 0:
                send(arrays[number % 2])
                receive(room)
            else:
                receive(room)
                send(arrays[number % 2])

        return turn

    calls = {name: call(way) for name, way in ways_of(comm).items()}
    times = harness.measure(comm, calls, harness.repeats(nbytes, 1000), rounds)
    table = harness.rows({name: [seconds / 2 for seconds in taken] for name, taken in times.items()})
    for row in table.values():
        row["over known buffers"] = round(row[MEDIAN] / table[KNOWN][MEDIAN], 3)
    return harness.compared(table, OURS, without=[KNOWN])


def ways_of(comm: Any) -> dict[str, Way]:
    """All ways, by name."""
    from mpi4py import MPI
    from mpi4py.util import pkl5

    import mpishare as ms

    peer, buffered = 1 - comm.rank, pkl5.Intracomm(comm)

    def probed(_: Array) -> Array:
        status = MPI.Status()
        message = comm.Mprobe(peer, _TAG, status)
        array = np.empty(status.Get_count(MPI.DOUBLE))
        message.Recv(array)
        return array

    return {
        KNOWN: (lambda array: comm.Send(array, peer, _TAG), lambda room: comm.Recv(room, peer, _TAG)),
        PROBED: (lambda array: comm.Send(array, peer, _TAG), probed),
        OURS: (lambda array: ms.send(array, peer), lambda room: ms.recv(peer)),
        OURS_OUT: (lambda array: ms.send(array, peer), lambda room: ms.recv(peer, out=room)),
        "send, recv, pickled": (lambda array: comm.send(array, peer, _TAG), lambda room: comm.recv(None, peer, _TAG)),
        "mpi4py.util.pkl5": (lambda array: buffered.send(array, peer, _TAG), lambda _: buffered.recv(None, peer, _TAG)),
    }


if __name__ == "__main__":
    main()
