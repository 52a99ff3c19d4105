"""Rows of other nodes: each rank asks one rank of each node for rows of that node, and serves those that ask it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

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

# How rows travel without a deadlock, and in little memory.
#
# A rank asks the rank of the same node rank on each other node. Where a node has fewer ranks, each serves several. So
# all ranks of a node send and receive at the same time.
#
# A round brings one lot of rows from each server: the first 500 wanted of each, say, then the next 500. All ranks have
# the same lot. A rank first begins to send the numbers of all rows that it wants, a message for each lot. Queued
# behind rows on the same link, they would arrive late. Then, in a round, it
#   1. begins to receive a lot of rows from each server;
#   2. receives a message of numbers from each client, and begins to send the rows;
#   3. waits for all rows of the round before, which it has received or sent.
# A client that asks for less than a whole lot has no more to ask, so no other number tells the end.
#
# Take the rank that has gone the least far. If it waits in step 2, its clients have begun to send their numbers. If it
# waits in step 3, all ranks have ended step 2 of the round before: they have begun to send its rows, and to receive
# what it sends. So there is always a rank that can go on.
#
# Small rows are packed into a stage, from which they are sent, and received into it. Each half of it has room for the
# messages of a round. Large rows are sent from where they lie, and received where they belong.

_NUMBER_BYTES = 8

_LOTS_BYTES = 2 << 20
"""Bytes that a rank receives in a round. They stay in a cache while they are packed, sent and unpacked."""

_LARGE_ROW_BYTES = 16 << 10
"""Rows of at least this size are messages of their own. Lots of smaller rows have at least this size."""

_COPY_BYTES = 256 << 10
"""Rows of the own node are copied in parts of this size: in between they are in a cache."""


def rows_in(block: Block, row_bytes: int) -> Rows:
    """The rows whose bytes `block` has. No copy."""
    return block.view(f"V{row_bytes}") if row_bytes < _LARGE_ROW_BYTES else block.reshape(-1, row_bytes)


class Wanted(NamedTuple):
    """The rows that a rank wants, each once.

    Attributes:
        rows: The rows, in rising order.
        places: For each of them where it goes.
        repeated: Where rows go that are wanted once more.
        originals: For each of these where the same row goes first.
    """

    rows: Numbers
    places: Numbers
    repeated: Numbers
    originals: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Wanted:
        """The rows of these numbers; the number at index i goes to place i."""
        places = numbers.argsort()
        rows = numbers[places]
        is_again = rows[1:] == rows[:-1]
        if not is_again.any():
            return cls(rows, places, rows[:0], rows[:0])
        is_new = np.concatenate([[True], ~is_again])
        first = places[is_new]
        return cls(rows[is_new], first, places[~is_new], first[np.cumsum(is_new)[~is_new] - 1])

    def of_nodes(self, starts: Numbers) -> list[tuple[Numbers, Numbers]]:
        """For each node its rows, counted from its first row, and their places; `starts` has the first row of each."""
        cuts = pairwise(self.rows.searchsorted(starts).tolist())
        return [(self.rows[i:j] - start, self.places[i:j]) for (i, j), start in zip(cuts, starts, strict=False)]


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
        staged_bytes = row_bytes if row_bytes < _LARGE_ROW_BYTES else 0
        of_row = len(self._clients) * (_NUMBER_BYTES + staged_bytes) + len(others) * staged_bytes
        self._half = slices.round_up(self._lot * of_row, slices.LINE_BYTES)
        self._context, self._starts, self._row_bytes = context, starts, row_bytes
        self._table = rows_in(local, row_bytes)

    def take(self, wanted: Wanted, block: Block) -> None:
        """Brings this rank the rows that it wants to `block`. All ranks have called `allocate_stage`.

        Collective:
            Over the communicator, but a rank may return before others have come.
        """
        comm, out, stage = self._context.collective_comm, rows_in(block, self._row_bytes), self.allocate_stage()
        of_nodes = wanted.of_nodes(self._starts)
        asked, clients = [(rank, *of_nodes[node]) for node, rank in self._servers], self._clients
        with InFlight(comm, Tag.ROW_REQUEST) as requests, InFlight(comm, Tag.ROWS) as messages:
            for server, numbers, _ in asked:
                for first in range(0, len(numbers) + 1, self._lot):
                    requests.send(bytes_of(numbers[first : first + self._lot]), server)
            this, before = _Round(stage[: self._half], messages, out), _Round(stage[self._half :], messages, out)
            for first in count(0, self._lot):
                lot = slice(first, first + self._lot)
                inbox = [(client, this.part(self._lot * _NUMBER_BYTES)) for client in clients]
                for server, _, places in asked:
                    this.receive(server, places[lot])
                clients = self._serve(inbox, this)
                if not first:
                    _copy_rows(self._table, out, *of_nodes[self._context.topology.node])
                before.end(this.n_messages)
                this, before = before, this
                asked = [each for each in asked if len(each[1]) >= lot.stop]
                if not (asked or clients):
                    break
            before.end(0)
        _copy_rows(out, out, wanted.originals, wanted.repeated)

    def allocate_stage(self) -> Block:
        """Memory for the messages of two rounds. Local.

        Raises:
            CapacityError: This process has too little memory.
        """
        stage = self._context.cached(_Stage)
        if stage.memory.nbytes < 2 * self._half:
            stage.memory = allocate(self._context, 2 * self._half)
        return stage.memory

    def _serve(self, inbox: Sequence[tuple[int, Block]], this: _Round) -> list[int]:
        """Receives the numbers of the clients, and begins to send rows. Returns the clients that have more to ask."""
        left = []
        with InFlight(self._context.collective_comm, Tag.ROW_REQUEST, buffers=inbox) as requests:
            for (client, block), numbers in zip(inbox, requests.receive_all(), strict=True):
                this.send(client, self._table, numbers.view(np.int64))
                if len(numbers) == len(block):
                    left.append(client)
        return left


class _Stage:
    """Memory that all arrays over one communicator use for messages in turn."""

    def __init__(self, _: Context) -> None:
        self.memory = np.empty(0, np.uint8)


class _Round:
    """The messages of every other round, and their memory."""

    def __init__(self, memory: Block, messages: InFlight, out: Rows) -> None:
        self._memory, self._used = memory, 0
        self._messages, self._out = messages, out
        self.n_messages = 0
        self._arriving: list[tuple[Rows, Numbers]] = []

    def part(self, nbytes: int) -> Block:
        """Memory until the round ends."""
        self._used += nbytes
        return self._memory[self._used - nbytes : self._used]

    def receive(self, server: int, places: Numbers) -> None:
        """Begins to receive rows for some places."""
        if self._out.ndim > 1:
            blocks = [self._out[place] for place in places.tolist()]
        else:
            blocks = [self.part(len(places) * self._out.itemsize)]
            self._arriving.append((blocks[0].view(self._out.dtype), places))
        for message in cut_messages(blocks):
            self._messages.receive(message, server)
            self.n_messages += 1

    def send(self, client: int, table: Rows, numbers: Numbers) -> None:
        """Begins to send some rows of `table`."""
        if table.ndim > 1:
            blocks = [table[number] for number in numbers.tolist()]
        else:
            blocks = [self.part(len(numbers) * table.itemsize)]
            table.take(numbers, out=blocks[0].view(table.dtype), mode="clip")  # with "raise", NumPy copies them twice
        for message in cut_messages(blocks):
            self._messages.send(message, client)
            self.n_messages += 1

    def end(self, n_newer: int) -> None:
        """Waits for all messages but the newer ones, and brings rows that came to the stage to their places."""
        self._messages.wait_until(n_newer)
        for rows, places in self._arriving:
            self._out[places] = rows
        self._arriving.clear()
        self._used = self.n_messages = 0


def _copy_rows(table: Rows, out: Rows, numbers: Numbers, places: Numbers) -> None:
    """Copies `table[numbers]` to `out[places]`: large rows straight, small ones in parts that stay in a cache."""
    if table.ndim > 1:
        for number, place in zip(numbers.tolist(), places.tolist(), strict=True):
            out[place] = table[number]
    elif len(numbers):
        for part in slices.chunks(len(numbers), _COPY_BYTES // table.itemsize):
            out[places[part]] = table[numbers[part]]
