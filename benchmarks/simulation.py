"""Plays on paper how chunks pass from node to node, message by message, with given costs of links and ranks."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Step(Protocol):
    """One chunk that a place receives, and what it sends then: `plan.Step`, or any tuple of such fields.

    Attributes:
        chunk: Its bytes.
        parent: The place from which it comes; None at the root.
        sends: To which places chunks go on, in this order.
    """

    @property
    def chunk(self) -> slice: ...  # noqa: D102

    @property
    def parent(self) -> int | None: ...  # noqa: D102

    @property
    def sends(self) -> tuple[tuple[int, slice], ...]: ...  # noqa: D102


@dataclass(frozen=True)
class Fabric:
    """What a message from node to node costs, in seconds, after LogGP.

    Attributes:
        latency_s: From the last node's link to the next one's, while neither is busy.
        byte_s: Of each byte, on the link out of a node and on the link into one.
        eager_s: Besides, on the link, of a message that is sent at once.
        large_s: The same of one that first asks the receiver.
        message_s: In which a rank is busy with a message, on each side, while its links may be busy with others.
        late_s: How much later a rank is with a message, as a mean; drawn for each message from an exponential law.
        eager_bytes: The largest message that is sent at once.

    Source:
        A. Alexandrov, M. F. Ionescu, K. E. Schauser, C. Scheiman, "LogGP: incorporating long messages into the LogP
        model", SPAA 1995.
    """

    latency_s: float
    byte_s: float
    eager_s: float
    large_s: float
    message_s: float
    late_s: float = 0.0
    eager_bytes: int = 60 << 10


class _Place:
    """A node in the play.

    Attributes:
        steps: Its chunks, in its order.
        number_of: Which step a chunk is, by its first byte.
        has_arrived: By step.
        n_handled: Steps that are done.
        is_busy: Whether its rank is at a step.
        is_sending: Whether its link out is taken.
        to_send: Chunks that have not left, with their destinations.
        most_unsent: So many may wait before the rank goes on to its next step.
        waiting: Places that have a message for it which it does not expect yet.
        link_in_free_s: From when on its link in is free.
    """

    def __init__(self, steps: Sequence[Step], in_flight: int) -> None:
        self.steps = steps
        self.number_of = {step.chunk.start: number for number, step in enumerate(steps)}
        self.has_arrived = [step.parent is None for step in steps]
        self.n_handled = 0
        self.is_busy = self.is_sending = False
        self.to_send: deque[tuple[int, slice]] = deque()
        self.most_unsent = in_flight * max((len(step.sends) for step in steps), default=0)
        self.waiting = set[int]()
        self.link_in_free_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether all steps are handled."""
        return self.n_handled == len(self.steps)


class _Play:
    """Events in the order of their times."""

    def __init__(self, schedule: Sequence[Sequence[Step]], fabric: Fabric, in_flight: int, seed: int) -> None:
        self.places = [_Place(steps, in_flight) for steps in schedule]
        self._fabric, self._in_flight, self._random = fabric, in_flight, random.Random(seed)
        self._events: list[tuple[float, int, Callable[[float, int, int], None], int, int]] = []
        self._count = 0
        self.last_s = 0.0

    def run(self) -> None:
        """Plays until nothing happens any more."""
        self._handle(0.0, 0)
        while self._events:
            now, _, event, place, number = heapq.heappop(self._events)
            event(now, place, number)

    def _at(self, time_s: float, event: Callable[[float, int, int], None], place: int, number: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, event, place, number))

    def _handle(self, now: float, place: int) -> None:
        """Has the rank begin with its next chunk, if that is there, and if not too many wait to be sent."""
        node = self.places[place]
        is_full = len(node.to_send) + node.is_sending > node.most_unsent
        if node.is_busy or is_full or node.is_done or not node.has_arrived[node.n_handled]:
            return
        step, fabric = node.steps[node.n_handled], self._fabric
        node.is_busy = True
        late_s = self._random.expovariate(1 / fabric.late_s) if fabric.late_s else 0.0
        taken_s = fabric.message_s * (len(step.sends) + (step.parent is not None)) + late_s
        self._at(now + taken_s, self._handled, place)

    def _handled(self, now: float, place: int, _: int) -> None:
        node = self.places[place]
        node.to_send.extend(node.steps[node.n_handled].sends)
        node.n_handled += 1
        node.is_busy = False
        self.last_s = now
        self._handle(now, place)
        self._send(now, place)
        waiting, node.waiting = node.waiting, set()
        for sender in sorted(waiting):
            self._send(now, sender)

    def _send(self, now: float, place: int) -> None:
        """Has the link out begin with the first message that its receiver expects."""
        node, fabric = self.places[place], self._fabric
        for index in range(0 if node.is_sending else len(node.to_send)):
            dest, chunk = node.to_send[index]
            receiver, nbytes = self.places[dest], chunk.stop - chunk.start
            number, is_eager = receiver.number_of[chunk.start], nbytes <= fabric.eager_bytes
            if not is_eager and number >= receiver.n_handled + self._in_flight:
                receiver.waiting.add(place)
                continue
            del node.to_send[index]
            node.is_sending = True
            start = now + (fabric.eager_s if is_eager else fabric.large_s)
            self._at(start + nbytes * fabric.byte_s, self._sent, place)
            arrived = max(start + fabric.latency_s, receiver.link_in_free_s) + nbytes * fabric.byte_s
            receiver.link_in_free_s = arrived
            self._at(arrived, self._arrived, dest, number)
            return

    def _sent(self, now: float, place: int, _: int) -> None:
        self.places[place].is_sending = False
        self._handle(now, place)
        self._send(now, place)

    def _arrived(self, now: float, place: int, number: int) -> None:
        self.places[place].has_arrived[number] = True
        self._handle(now, place)


def simulate(schedule: Sequence[Sequence[Step]], fabric: Fabric, *, in_flight: int = 4, seed: int = 0) -> float:
    """Seconds until the last place has its last chunk.

    A place receives its chunks in the order of its steps, and sends each to its children before it goes on to the next.
    Each has one link out and one link in, which carry one message at a time. A large message leaves when its receiver
    expects it.

    Args:
        schedule: The steps of each place. Place 0 is the root.
        fabric: What messages cost.
        in_flight: How many messages a place expects at the same time, and how many for each child may wait to be sent.
        seed: Of the times by which ranks are late.

    Raises:
        ValueError: The places wait for each other.
    """
    play = _Play(schedule, fabric, in_flight, seed)
    play.run()
    if not all(place.is_done for place in play.places):
        raise ValueError("the places wait for each other: this schedule never ends")
    return play.last_s
