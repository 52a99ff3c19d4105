"""Rows of other nodes: each rank asks one rank of each node for rows of that node, and serves those that ask it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpishare.arrays import slices
from mpishare.arrays.raw import Block, bytes_of
from mpishare.comm.agreement import agree
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import Context
from mpishare.comm.in_flight import InFlight, Tag
from mpishare.host.memory import allocate_buffer
from mpishare.transfer.rows import cut_messages

Numbers = NDArray[np.int64]
"""The numbers of rows."""

Table = NDArray[np.uint8]
"""The bytes of rows in C order, shape (n, bytes of a row)."""

# How rows travel without a deadlock, and in little memory.
#
# In step k each rank asks a rank of the k-th node after its own, and serves ranks of the k-th node before it. A round
# brings one lot of the rows of some steps, such as the first hundred rows of each. All ranks count the same rounds, as
# they have agreed on the largest number of rows that a rank wants of a node. A round without rows takes no message.
#
# A rank begins all messages of a round before it waits for any, and waits for the messages of its oldest round. Take
# the rank that has ended the fewest rounds: all others have begun the round that it waits for, so its messages arrive.
# So there is always a rank that can go on.
#
# Small rows are packed into a stage, from which they are sent, and received into it. The stage has room for the rounds
# that are under way. Large rows are sent from where they lie, and received where they belong.

_ROUND_BYTES = 2 << 20
"""Bytes that a rank receives in a round. They stay in a cache while they are packed, sent and unpacked."""

_ROUNDS_UNDER_WAY = 2
"""While the rows of one round are unpacked, those of the next one arrive."""

_LARGE_ROW_BYTES = 16 << 10
"""Rows of at least this size are messages of their own. Smaller rows share messages of at least this size."""

_COPY_BYTES = 256 << 10
"""Rows of the own node are copied in parts of this size: in between they are in a cache."""

_SHORT_REQUEST_ROWS = 500
"""This many rows are asked for by one message, which MPI sends without asking the receiver first."""


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
        places = numbers.argsort(kind="stable")
        rows = numbers[places]
        is_new = np.ones(len(rows), np.bool_)
        np.not_equal(rows[1:], rows[:-1], out=is_new[1:])
        if is_new.all():
            return cls(rows, places, rows[:0], rows[:0])
        first = places[is_new]
        return cls(rows[is_new], first, places[~is_new], first[np.cumsum(is_new)[~is_new] - 1])

    def cuts(self, starts: Sequence[int]) -> list[int]:
        """Where the rows of each node begin among `rows`, and their number."""
        cuts: list[int] = np.searchsorted(self.rows, starts).tolist()
        return cuts


class _Step(NamedTuple):
    """Whom this rank asks and whom it serves, at one distance between nodes.

    Attributes:
        node: The node whose rows this rank asks for.
        server: The rank of that node that it asks.
        clients: The ranks that ask this rank; they are on one node.
    """

    node: int
    server: int
    clients: tuple[int, ...]


class _Round(NamedTuple):
    """The messages of a round that has begun.

    Attributes:
        n_received: The number of messages to receive.
        n_sent: The number of messages to send.
        staged: Where small rows are received in the stage, and where they go.
    """

    n_received: int
    n_sent: int
    staged: list[tuple[NDArray[np.void], Numbers]]


class Exchange:
    """Whom this rank asks and serves over one communicator, and its stage.

    A rank asks the rank of the same node rank on each other node. Where a node has fewer ranks, each serves several. So
    all ranks of a node send and receive at the same time.
    """

    def __init__(self, context: Context) -> None:
        topology, nodes = context.topology, context.topology.placement.nodes
        self.context = context
        self.steps: list[_Step] = []
        for distance in range(1, len(nodes)):
            node, before = (topology.node + distance) % len(nodes), nodes[topology.node - distance]
            server = nodes[node][topology.node_rank % len(nodes[node])]
            self.steps.append(_Step(node, server, before[topology.node_rank :: topology.node_size]))
        self._stage = np.empty(0, np.uint8)
        self._round_bytes = 0

    def stage(self, round_bytes: int) -> Block:
        """Memory for the rows of the rounds under way. Collective over the communicator.

        Args:
            round_bytes: The bytes that a rank receives in a round, or sends to a client in each step; the same on all
                ranks.

        Raises:
            CapacityError: This process has too little memory.
            PeerError: Another rank has.
        """
        if round_bytes > self._round_bytes:
            with agree(self.context.collective_comm):
                n_blocks = 1 + max(len(step.clients) for step in self.steps)
                cure = "Take fewer rows at a time."
                nbytes = _ROUNDS_UNDER_WAY * n_blocks * round_bytes
                self._stage = allocate_buffer(self.context.topology.host, nbytes, cure)
            self._round_bytes = round_bytes
        return self._stage


def exchange_rows(context: Context, table: Table, starts: Sequence[int], wanted: Wanted, out: Table, most: int) -> None:
    """Brings this rank the rows that it wants, of its own node and of others.

    Args:
        context: The context of the communicator.
        table: The rows of this node.
        starts: The first row of each node, and the number of all rows.
        wanted: The rows that this rank wants.
        out: Where they go.
        most: No rank wants more rows of one other node; the same on all ranks.

    Raises:
        CapacityError: This process has too little memory.
        PeerError: Another rank has.

    Collective:
        Over the communicator, unless `most` is 0.
    """
    cuts, node = wanted.cuts(starts), context.topology.node
    own = slice(cuts[node], cuts[node + 1])
    copy_own = partial(_copy_rows, table, wanted.rows[own] - starts[node], out, wanted.places[own])
    if most:
        exchange = context.cached(Exchange)
        parts = [slice(cuts[step.node], cuts[step.node + 1]) for step in exchange.steps]
        requests = _swap_requests(exchange, [wanted.rows[part] for part in parts], starts[node], most)
        _Rounds(exchange, table, requests, out, [wanted.places[part] for part in parts], most).run(copy_own)
    else:
        copy_own()
    _copy_rows(out, wanted.originals, out, wanted.repeated)


def _swap_requests(exchange: Exchange, wanted: Sequence[Numbers], first: int, most: int) -> list[list[Numbers]]:
    """Asks for rows, and is asked. A message has their number, and the rows themselves if `most` is small.

    Args:
        exchange: Whom this rank asks and serves.
        wanted: For each step the rows that this rank asks for.
        first: The first row of this node.
        most: See `exchange_rows`.

    Returns:
        For each step and each client, which rows of this node it wants, counted from the first.
    """
    comm, servers = exchange.context.collective_comm, [step.server for step in exchange.steps]
    clients = [client for step in exchange.steps for client in step.clients]
    n_short = most if most <= _SHORT_REQUEST_ROWS else 0
    heads = np.empty((len(clients), 1 + n_short), np.int64)
    _swap(comm, clients, heads, servers, [np.concatenate([[len(rows)], rows[:n_short]]) for rows in wanted])
    requests = [head[1 : 1 + head[0]] for head in heads]
    if not n_short:
        with agree(comm):
            requests = [np.empty(head[0], np.int64) for head in heads]
        _swap(comm, clients, requests, servers, wanted)
    each = iter(requests)
    return [[next(each) - first for _ in step.clients] for step in exchange.steps]


def _swap(
    comm: CollectiveComm,
    clients: Sequence[int],
    requests: Iterable[Numbers],
    servers: Sequence[int],
    wanted: Iterable[Numbers],
) -> None:
    """Receives numbers from each client, and sends some to each server."""
    with InFlight(comm, Tag.ROW_REQUEST) as messages:
        for client, numbers in zip(clients, requests, strict=True):
            for block in cut_messages([bytes_of(numbers)]):
                messages.receive(block, client)
        for server, numbers in zip(servers, wanted, strict=True):
            for block in cut_messages([bytes_of(numbers)]):
                messages.send(block, server)


class _Rounds:
    """The rounds of one call."""

    def __init__(
        self,
        exchange: Exchange,
        table: Table,
        requests: Sequence[Sequence[Numbers]],
        out: Table,
        places: Sequence[Numbers],
        most: int,
    ) -> None:
        """In each step, sends the rows of `table` in `requests`, and receives rows for `places` of `out`.

        Collective:
            Over the communicator.
        """
        row_bytes, n_steps = out.shape[1], len(exchange.steps)
        group = min(n_steps, _ROUND_BYTES // _LARGE_ROW_BYTES)
        lot = min(max(_ROUND_BYTES // (group * row_bytes), 1), most)
        self._lots = slices.chunks(n_steps, group), slices.chunks(most, lot)
        self._comm = exchange.context.collective_comm
        self._steps = list(zip(exchange.steps, requests, places, strict=True))
        self._table, self._out = table, out
        self._are_large = row_bytes >= _LARGE_ROW_BYTES
        if not self._are_large:
            self._table_items, self._out_items = _items(table), _items(out)
            stage = exchange.stage(group * lot * row_bytes)
            self._room = stage.nbytes // _ROUNDS_UNDER_WAY // row_bytes
            self._stage = stage[: self._room * _ROUNDS_UNDER_WAY * row_bytes].view(self._out_items.dtype)
        self._used = 0  # of the stage, in rows

    def run(self, copy_own: Callable[[], None]) -> None:
        """Brings all rows, and calls `copy_own` while the first of them are under way."""
        under_way: deque[_Round] = deque()
        with InFlight(self._comm, Tag.ROWS) as receiving, InFlight(self._comm, Tag.ROWS) as sending:
            for number, (steps, lot) in enumerate(product(*self._lots)):
                if len(under_way) == _ROUNDS_UNDER_WAY:
                    self._end_oldest(under_way, receiving, sending)
                if not self._are_large:
                    self._used = number % _ROUNDS_UNDER_WAY * self._room
                under_way.append(self._begin(steps, lot, receiving, sending))
                if not number:
                    copy_own()
            while under_way:
                self._end_oldest(under_way, receiving, sending)

    def _begin(self, steps: slice, lot: slice, receiving: InFlight, sending: InFlight) -> _Round:
        """Begins the messages of a round."""
        n_received, n_sent, staged = 0, 0, []
        for step, requests, places in self._steps[steps]:
            if self._are_large:
                targets = [self._out[place] for place in places[lot].tolist()]
            else:
                staged.append((self._part_of_stage(len(places[lot])), places[lot]))
                targets = [bytes_of(staged[-1][0])]
            for block in cut_messages(targets):
                receiving.receive(block, step.server)
                n_received += 1
            for client, rows in zip(step.clients, requests, strict=True):
                for block in cut_messages(self._sources(rows[lot])):
                    sending.send(block, client)
                    n_sent += 1
        return _Round(n_received, n_sent, staged)

    def _end_oldest(self, under_way: deque[_Round], receiving: InFlight, sending: InFlight) -> None:
        """Ends the oldest round that is under way."""
        oldest = under_way.popleft()
        receiving.wait_until(sum(later.n_received for later in under_way))
        for items, places in oldest.staged:
            self._out_items[places] = items
        sending.wait_until(sum(later.n_sent for later in under_way))

    def _sources(self, rows: Numbers) -> list[Block]:
        """Where rows are sent from: large ones from the memory of the node, others from the stage."""
        if self._are_large:
            return [self._table[row] for row in rows.tolist()]
        items = self._part_of_stage(len(rows))
        self._table_items.take(rows, out=items, mode="clip")  # with "raise", NumPy would copy them twice
        return [bytes_of(items)]

    def _part_of_stage(self, n_rows: int) -> NDArray[np.void]:
        """Memory of the stage for some rows."""
        self._used += n_rows
        return self._stage[self._used - n_rows : self._used]


def _copy_rows(table: Table, rows: Numbers, out: Table, places: Numbers) -> None:
    """Copies `table[rows]` to `out[places]`."""
    row_bytes = out.shape[1]
    if row_bytes >= _LARGE_ROW_BYTES:
        for row, place in zip(rows.tolist(), places.tolist(), strict=True):
            out[place] = table[row]
    elif len(rows):
        items, out_items = _items(table), _items(out)
        for part in slices.chunks(len(rows), _COPY_BYTES // row_bytes):
            out_items[places[part]] = items[rows[part]]


def _items(table: Table) -> NDArray[np.void]:
    """Small rows as items that NumPy copies at once, shape (n,). No copy."""
    return table.view(np.dtype((np.void, table.shape[1])))[:, 0]
