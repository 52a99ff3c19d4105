"""Ways to bring an array of rank 0 to every node: ours, MPI's broadcasts, an expert's program, a raw socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.forced import ForcedComms, choices, with_settings

Bytes = NDArray[np.uint8]
Way = Callable[[Any, Bytes], Any]
"""Brings the first array, which rank 0 has, to the others, which may receive into the second. Returns what this rank
then has of it; None on ranks to which nothing comes."""

NEW, AGAIN = "new memory", "memory used again"
"""Of ours on one node, in the names of ways: of MPISHARE_RECYCLE=0, and of a part so large that nothing is new."""
BY_DEFAULT = "mpishare, settings by default"
SHARE = "mpishare.share"
BCAST, ALL = "MPI_Bcast, a rank a host", "MPI_Bcast, all ranks"
HAN = f"{ALL}, HAN"
"""The beginning of the names of those by Open MPI's component for nodes, with segments of different sizes."""
_HAN_SEGMENTS = {"64K": 64 << 10, "512K": 512 << 10, "2M": 2 << 20}
FORCED = f"{BCAST}: "
"""The beginning of the names of those with a forced algorithm."""
EXPERT = "window used again, MPI_Bcast of leaders"
PSHMEM = "pshmem, used again"
SOCKET, SOCKETS = "raw socket, one link", "raw sockets, from host to host"
_FORWARDED_BYTES = 256 << 10
"""What a host takes from its socket at a time, and sends on."""

_PERIOD, _MAX_SOURCES, _MAX_SOURCE_BYTES = 251, 4, 1 << 30


class Sources:
    """Several arrays of `nbytes` on rank 0, each with other contents, of which each call takes the next one."""

    def __init__(self, rank: int, nbytes: int) -> None:
        count = max(2, min(_MAX_SOURCES, _MAX_SOURCE_BYTES // nbytes))
        pattern = np.arange(_PERIOD + count, dtype=np.uint8)
        self._count = count
        self._arrays = [
            np.resize(pattern[first : first + _PERIOD], nbytes) for first in range(count if rank == 0 else 0)
        ]

    def get(self, number: int) -> Bytes | None:
        """The array of a call on rank 0, None elsewhere."""
        return self._arrays[number % self._count] if self._arrays else None

    def check(self, name: str, result: Any, number: int) -> None:
        """Ends the job if `result` is not the array of the call."""
        for index in () if result is None else (0, result.size // 2, result.size - 1):
            expected = (number % self._count + index % _PERIOD) % 256
            if result[index] != expected:
                raise SystemExit(f"{name}: byte {index} is {result[index]}, not {expected}")


def ways_of(comm: Any) -> dict[str, Way]:
    """All but those with a forced algorithm; those to all ranks where a node has several.

    Each ends with a barrier over all ranks, ours too; but for the raw socket, which ends with an answer of a byte.
    """
    import mpishare as ms

    nodes = ms.topology()

    def share(source: Any, room: Bytes) -> Any:
        array = ms.share(source)
        comm.Barrier()
        return array

    ways = {SHARE: share, BCAST: _leaders_bcast(comm, nodes, nodes.leaders)}
    if comm.size > nodes.n_nodes:
        ways[ALL] = _bcast_all(comm, comm)
    if ALL in ways and ForcedComms(comm, "bcast").is_possible:
        for segment, nbytes in _HAN_SEGMENTS.items():
            settings = {"coll_han_priority": 95, "coll_han_bcast_segsize": nbytes}
            ways[f"{HAN}, {segment}"] = _bcast_all(comm, with_settings(comm, settings))
    ways[EXPERT] = _expert(comm, nodes)
    if len(set(comm.allgather(socket.gethostname()))) == nodes.n_nodes > 1:
        ways[SOCKET], ways[PSHMEM] = socket_way(comm, nodes), _pshmem(comm)
    if SOCKET in ways and nodes.n_nodes > 2:
        ways[SOCKETS] = _sockets_way(comm, nodes)
    return ways


_forced: dict[str, ForcedComms] = {}


def forced_ways(comm: Any, nbytes: int) -> dict[str, Way]:
    """MPI_Bcast of the leaders by each of its algorithms. Collective."""
    import mpishare as ms

    nodes = ms.topology()
    if not comm.bcast(nodes.is_leader and _forced_comms(nodes).is_possible):
        return {}
    return {
        f"{FORCED}{name}": _leaders_bcast(comm, nodes, _forced_comms(nodes).get(*choice) if nodes.is_leader else None)
        for name, choice in choices("bcast", nbytes).items()
    }


def _forced_comms(nodes: Any) -> ForcedComms:
    return _forced.get("bcast") or _forced.setdefault("bcast", ForcedComms(nodes.leaders, "bcast"))


def _leaders_bcast(comm: Any, nodes: Any, leaders: Any) -> Way:
    def way(source: Any, room: Bytes) -> Any:
        array = room if source is None else source
        if nodes.is_leader:
            leaders.Bcast(array)
        comm.Barrier()
        return array if nodes.is_leader else None

    return way


def _bcast_all(comm: Any, used: Any) -> Way:
    def way(source: Any, room: Bytes) -> Any:
        array = room if source is None else source
        used.Bcast(array)
        comm.Barrier()
        return array

    return way


def _expert(comm: Any, nodes: Any) -> Way:
    """A window on each node, made once for each size."""
    from mpi4py import MPI

    windows: dict[int, Bytes] = {}

    def way(source: Any, room: Bytes) -> Any:
        if room.nbytes not in windows:
            window = MPI.Win.Allocate_shared(room.nbytes if nodes.is_leader else 0, 1, comm=nodes.node_comm)
            memory: Any = window.Shared_query(0)[0]
            windows[room.nbytes] = np.frombuffer(memory, np.uint8)
        array = windows[room.nbytes]
        if source is not None:
            np.copyto(array, source)
        if nodes.is_leader:
            nodes.leaders.Bcast(array)
        nodes.node_comm.Barrier()
        comm.Barrier()
        return array

    return way


def _pshmem(comm: Any) -> Way:
    """Pshmem's array on each node, made once for each size, and its set, which broadcasts from node to node."""
    arrays: dict[int, Any] = {}

    def way(source: Any, room: Bytes) -> Any:
        from pshmem import MPIShared

        if room.nbytes not in arrays:
            arrays[room.nbytes] = MPIShared(room.shape, room.dtype, comm)
        arrays[room.nbytes].set(source, (0,), fromrank=0)
        comm.Barrier()
        return arrays[room.nbytes][:]

    return way


def socket_way(comm: Any, nodes: Any) -> Way:
    """One TCP connection from rank 0 to the last host, kept open."""
    far = nodes.ranks_of(nodes.n_nodes - 1)[0]
    connection: socket.socket | None = None
    if comm.rank == far:
        with socket.create_server(("", 0)) as server:
            comm.send((socket.gethostname(), server.getsockname()[1]), 0)
            connection = server.accept()[0]
    elif comm.rank == 0:
        connection = socket.create_connection(comm.recv(source=far))
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def way(source: Any, room: Bytes) -> None:
        if comm.rank == 0 and connection is not None:
            connection.sendall(memoryview(room if source is None else source))  # type: ignore[arg-type]
            connection.recv(1)
        elif connection is not None:
            view, got = memoryview(room), 0  # type: ignore[arg-type]
            while got < room.nbytes:
                got += connection.recv_into(view[got:])
            connection.sendall(b"!")

    return way


def _sockets_way(comm: Any, nodes: Any) -> Way:
    """A TCP connection from each host to the next: what the cores of this machine can carry for all hosts."""
    leaders = [nodes.ranks_of(node)[0] for node in range(nodes.n_nodes)]
    place = leaders.index(comm.rank) if comm.rank in leaders else None
    with socket.create_server(("", 0)) as server:
        addresses = comm.allgather((socket.gethostname(), server.getsockname()[1]))
        is_last = place is None or place == len(leaders) - 1
        following = None if is_last or place is None else socket.create_connection(addresses[leaders[place + 1]])
        previous = server.accept()[0] if place else None

    def way(source: Any, room: Bytes) -> Any:
        array = room if source is None else source
        view, got = memoryview(array), 0  # type: ignore[arg-type]
        while got < array.nbytes and place is not None:
            count = array.nbytes if previous is None else previous.recv_into(view[got : got + _FORWARDED_BYTES])
            if following is not None:
                following.sendall(view[got : got + count])
            got += count
        comm.Barrier()
        return None if place is None else array

    return way
