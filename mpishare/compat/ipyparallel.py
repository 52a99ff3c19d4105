"""push of ipyparallel for MPI engines: the client sends to one of them, and they share what it has sent."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

from ipyparallel import Client, DirectView
from ipyparallel.error import RemoteError

import mpishare as ms

_received: dict[str, dict[str, Any]] = {}
"""On the engine that the client sends to, by key: the objects that it has received, from `_receive` to `_share`."""

_roots: dict[tuple[bytes, ...], int] = {}
"""At the client, the engine of rank 0, by the engines of a job as ipyparallel names them."""


def push(client: Client | DirectView, ns: Mapping[str, Any], *, writable: bool | Literal["private"] = False) -> None:
    """Binds names on all engines of an MPI job, to objects whose arrays each node holds once.

    The client sends the objects to the engine of rank 0 alone; contiguous arrays go as they lie, without a copy. Then
    all engines, where mpishare must be installed, `share` them. The call returns when all engines have the names.
    Memory is released when no engine has the name, or a view, any more.

    Engines take part when they have done all that they were told before. No other client or thread may have an engine
    begin another collective meanwhile: engines in different collectives wait for each other, until MPISHARE_TIMEOUT.

    Args:
        client: A client of ipyparallel, whose engines are an MPI job (`--engines=mpi`), or a view of all of them.
        ns: The objects by their names. pickle pickles them, so the engines must be able to import their classes.
        writable: As for `share`: arrays are read-only unless it is True or "private".

    Raises:
        ArgumentError: A name is no identifier, or the engines are not all ranks of one MPI job.
        ipyparallel.error.RemoteError: An engine raised an error, such as the `CapacityError` of `share`. Of several
            engines, it is one that raised no `PeerError`.

    Collective:
        Over MPI_COMM_WORLD of the engines. The client alone calls it.

    Source:
        The notebooks "MPI Broadcast" and "memmap Broadcast" of ipyparallel: one send for each job or for each host.
    """
    if wrong := [name for name in ns if not (isinstance(name, str) and name.isidentifier())]:
        raise ms.ArgumentError(f"{wrong[0]!r} cannot be the name of a variable.")
    client, targets = (client, "all") if isinstance(client, Client) else (client.client, client.targets)
    uuids, engines = client._build_targets(targets)
    view = client[engines]
    root = _engine_of_rank_0(view, tuple(uuids))
    key, buffers = uuid4().hex, list[pickle.PickleBuffer]()
    pickled = pickle.dumps(dict(ns), protocol=5, buffer_callback=buffers.append)
    client[root].apply_async(_receive, key, memoryview(pickled), *(buffer.raw() for buffer in buffers)).get()
    results = view.apply_async(_share, key, writable).get(return_exceptions=True)
    if errors := [result for result in results if isinstance(result, RemoteError)]:
        raise min(errors, key=lambda error: error.ename == "PeerError")


def _engine_of_rank_0(view: DirectView, job: tuple[bytes, ...]) -> int:
    """The number of an engine. The engines of a job are asked once: all 64 of a machine take 0.3 s to answer.

    Raises:
        ArgumentError: The engines are not all ranks of one MPI job.
    """
    if job not in _roots:
        ranks = view.apply_async(_rank_and_size).get_dict()
        if {*ranks.values()} != {(rank, len(job)) for rank in range(len(job))}:
            found = ", ".join(f"engine {engine} is rank {rank} of {size}" for engine, (rank, size) in ranks.items())
            cure = "Start them by ipcluster start --engines=mpi, and pass a client or a view of all of them."
            raise ms.ArgumentError(f"these engines are not all ranks of one MPI job: {found}. {cure}")
        _roots[job] = min(ranks, key=lambda engine: ranks[engine])
    return _roots[job]


def _rank_and_size() -> tuple[int, int]:
    """Of an engine in its job. No collective, as its other ranks may not be asked."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def _receive(key: str, pickled: memoryview, *buffers: memoryview) -> None:
    """Keeps objects, their arrays in the memory of the message. What fails here fails before any collective."""
    _received.clear()  # of a client that was interrupted
    _received[key] = pickle.loads(pickled, buffers=buffers)  # noqa: S301 - from the user of this engine


def _share(key: str, writable: bool | Literal["private"]) -> None:
    """Shares what rank 0 has received, and binds the names."""
    from IPython import get_ipython

    get_ipython().user_global_ns.update(ms.share(_received.pop(key, None), writable=writable))
