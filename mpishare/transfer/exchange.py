"""Rows of other nodes: each rank asks one rank of each node for rows of that node, and serves those that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight, Tag
from mpishare.transfer.rows import allocate, cut_messages

Numbers = NDArray[np.int64]
"""The numbers of rows."""

Rows = NDArray[Any]
"""The bytes of rows: small ones as items of shape (n,), which NumPy copies whole; large ones of shape (n, bytes)."""

Lots = list[tuple[int, Numbers]]
"""For each server the places of its rows."""

# How rows travel without a deadlock, and in little memory.
#
# A rank asks the rank of the same node rank on each other node. Where a node has fewer ranks, each serves several. So
# all ranks of a node send and receive at the same time.
#
# A round brings one lot of rows from each server: the first 2000 wanted of each, say, then the next. All ranks have the
# same lot. A rank first begins to send the numbers of all rows that it wants, a message for each lot, so that no server
# waits for them later. Then, in a round, it
#   1. begins to receive a lot of rows from each server;
#   2. receives a message of numbers from each client, and begins to send the rows;
#   3. waits for all rows of the round.
# A client that asks for less than a whole lot has no more to ask, so no other number tells the end.
#
# Take the ranks that are in the earliest round. None waits for ever in step 2, as its clients have begun to send their
# numbers. When all of them are in step 3, each has begun to send what the others wait for, and to receive what they
# send; the ranks in later rounds have done so before. So there is always a rank that can go on.
#
# Small rows are packed into a stage, from which they are sent, and received into it. Large rows are sent from where
# they lie, and received where they belong.

_NUMBER_BYTES = 8

_LOTS_BYTES = 8 << 20
"""Bytes that a rank receives in a round. With 4 MiB, 30 MB over 1 Gbit/s took a quarter longer, with 16 MiB no less."""

_LARGE_ROW_BYTES = 16 << 10
"""Rows of at least this size are messages of their own. Lots of smaller rows have at least this size."""

_COPY_BYTES = 256 << 10
"""Rows of the own node are copied in parts of this size: in between they are in a cache."""


class Exchange:
    """Takes rows of one array that is split over nodes: whom this rank asks and serves, and in what lots."""

    def __init__(self, context: Context, local: Block, starts: Numbers, row_bytes: int) -> None:
        """Local.

        Args:
            context: The context of the communicator.
            local: The bytes of the rows of this node.
            starts: The first row of each node, and the number of all rows.
            row_bytes: The bytes of a row, at least 1.
        """
        topology, nodes = context.topology, context.topology.placement.nodes
        node, node_rank = topology.node, topology.node_rank
        others = [*range(node + 1, len(nodes)), *range(node)]
        self._servers = [(other, nodes[other][node_rank % len(nodes[other])]) for other in others]
        self._clients = [rank for other in others for rank in nodes[other][node_rank :: topology.node_size]]
        lot_bytes = max(_LOTS_BYTES // max(len(others), 1), _LARGE_ROW_BYTES)
        self._lot = max(lot_bytes // max(row_bytes, _NUMBER_BYTES), 1)  # the same on all ranks
        self._context, self._starts, self._row_bytes = context, starts, row_bytes
        self._table = self._rows_in(local)

    def _rows_in(self, block: Block) -> Rows:
        is_small = self._row_bytes < _LARGE_ROW_BYTES
        return block.view(f"V{self._row_bytes}") if is_small else block.reshape(-1, self._row_bytes)

    def allocate_stage(self) -> Block:
        """Memory for the messages of a round: numbers from each client, small rows to each client and from each server.

        Raises:
            CapacityError: This process has too little memory.
        """
        number = 2 * len(self._clients) + len(self._servers)
        nbytes = slices.round_up(self._lot * max(self._table.itemsize, _NUMBER_BYTES), slices.LINE_BYTES)
        return allocate(self._context, number * nbytes).reshape(number, nbytes)

    def take(self, rows: Numbers, places: Numbers, inverse: Numbers, block: Block, stage: Block) -> None:
        """Brings this rank the rows that it wants.

        Args:
            rows: The rows, each once, in rising order.
            places: For each of them where it goes first.
            inverse: For each place which of `rows` goes there.
            block: Where they go.
            stage: What `allocate_stage` returned.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        out, lot, topology = self._rows_in(block), self._lot, self._context.topology
        cuts = zip(pairwise(rows.searchsorted(self._starts).tolist()), self._starts, strict=False)
        of_nodes = [(rows[i:j] - start, places[i:j]) for (i, j), start in cuts]
        own, clients = [of_nodes[topology.node]], self._clients
        goals = [(server, of_nodes[node][1]) for node, server in self._servers]
        with InFlight(self._context.collective_comm, Tag.ROW_REQUEST) as requests:
            for node, server in self._servers:
                for first in range(0, len(of_nodes[node][0]) + 1, lot):
                    requests.send(bytes_of(of_nodes[node][0][first : first + lot]), server)
            while own or goals or clients:
                clients = self._exchange([(server, goal[:lot]) for server, goal in goals], clients, own, out, stage)
                goals = [(server, goal[lot:]) for server, goal in goals if len(goal) >= lot]
        firsts = places[inverse]
        repeated = np.flatnonzero(firsts != np.arange(len(firsts)))
        _copy_rows(out, out, firsts[repeated], repeated)

    def _exchange(
        self, goals: Lots, clients: list[int], own: list[tuple[Numbers, Numbers]], out: Rows, stage: Block
    ) -> list[int]:
        """A round: brings the rows from each server to their places, and sends the clients theirs.

        Meanwhile it copies the `own` rows, and removes them. Returns the clients that have more to ask.
        """
        comm, left, n_clients = self._context.collective_comm, list[int](), len(self._clients)
        inbox, leaving, arriving = stage[:n_clients], stage[n_clients : 2 * n_clients], stage[2 * n_clients :]
        buffers = list(zip(clients, inbox, strict=False))
        with InFlight(comm, Tag.ROWS) as messages, InFlight(comm, Tag.ROW_REQUEST, buffers) as requests:
            for (server, places), part in zip(goals, arriving, strict=False):
                for message in _messages(out, places, part):
                    messages.receive(message, server)
            for client, part, request in zip(clients, leaving, requests.receive_all(), strict=False):
                numbers = request.view(np.int64)
                if out.ndim == 1:  # with mode "raise", NumPy copies twice
                    self._table.take(numbers, out=part[: numbers.size * out.itemsize].view(out.dtype), mode="clip")
                for message in _messages(self._table, numbers, part):
                    messages.send(message, client)
                if numbers.size == self._lot:
                    left.append(client)
            while own:
                _copy_rows(self._table, out, *own.pop())
        for (_, places), part in zip(goals if out.ndim == 1 else (), arriving, strict=False):
            out[places] = part[: places.size * out.itemsize].view(out.dtype)
        return left


def _messages(rows: Rows, numbers: Numbers, part: Block) -> Iterator[Block]:
    """The messages with some rows: large ones themselves, small ones in their part of the stage."""
    return cut_messages(
        [part[: numbers.size * rows.itemsize]] if rows.ndim == 1 else [rows[number] for number in numbers.tolist()]
    )


def _copy_rows(table: Rows, out: Rows, numbers: Numbers, places: Numbers) -> None:
    """Copies `table[numbers]` to `out[places]`: large rows straight, small ones in parts that stay in a cache."""
    if table.ndim > 1:
        for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
            out[place] = table[number]
    elif len(numbers):
        for part in slices.chunks(len(numbers), _COPY_BYTES // table.itemsize):
            out[places[part]] = table[numbers[part]]
