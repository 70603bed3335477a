"""Decides whether the next batch of a partition may be sent while earlier batches have no answer yet.

The decision depends on the producer state that the leader is certain to keep. `machine` asks this module about each
batch of the queue, in order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch


class SendDecision(enum.Enum):
    """The decision about the next batch."""

    SENDS = "sends"
    WAITS = "waits"
    """The journal sends the batch once the batches before it have their answers."""
    HOLDS = "holds"
    """Nothing is in flight, but a late request may still arrive. The journal sends nothing until no late request can
    arrive.
    """

    __hash__ = object.__hash__


@dataclass(slots=True)
class InFlight:
    """The requests in flight at the front of a queue.

    Attributes:
        any: A request is in flight.
        old: A request in flight has a batch so old that the leader may drop our producer state after appending the
            batch.
    """

    any: bool = False
    old: bool = False

    def add(self, *, old: bool) -> None:
        """Add a request in flight."""
        self.any = True
        self.old |= old


@dataclass(slots=True)
class SendWindow:
    """The producer state that the leader is known to have.

    1. A broker without state of a producer id accepts any base sequence.
    2. Batches 1 and 2 are sent. Batch 1 fails. Batch 2 arrives at a leader that has no state of our producer id, so the
       leader appends it.
    3. The journal sends batch 1 again, and the leader appends it after batch 2.

    So the journal sends the first batch under a producer id and epoch alone, and also the first batch after a pause in
    which the leader may have dropped our state.

    Attributes:
        confirmed: The (producer id, epoch) for which the leader has producer state.
        until: The time (seconds) until which the leader is certain to keep our producer state.
        answered: The leader has acknowledged a batch since the journal last looked for batches to merge.
    """

    confirmed: tuple[int, int] = (-1, -1)
    until: float = 0.0
    answered: bool = False

    def admit(
        self, identity: BatchId, in_flight: InFlight, now: float, *, old: bool, late: bool
    ) -> SendDecision:
        """Whether the next batch may be sent now.

        The journal may send the batch if no other batch is in flight, or if the leader is certain to keep our producer
        state.

        Args:
            identity: Id of the batch.
            in_flight: The requests in flight with earlier batches of the queue. The window must have room for another
                batch.
            now: The current time in seconds.
            old: The batch is so old that the leader may drop our producer state after appending the batch. Without
                producer state, the leader would append any late request that is still in transit.
            late: A request whose answer the journal no longer waits for may still be in transit.
        """
        if in_flight.any and (old or in_flight.old or not self.is_open(identity, now)):
            return SendDecision.WAITS
        return SendDecision.HOLDS if old and late else SendDecision.SENDS

    def is_open(self, identity: BatchId, now: float) -> bool:
        """Whether this batch may be sent while other batches are in flight."""
        return self.confirmed == identity.producer and now < self.until

    def open(self, identity: BatchId, until: float) -> None:
        """Note an acknowledgement: the leader keeps its state of the batch's producer id and epoch at least until
        `until`.
        """
        self.confirmed, self.until = identity.producer, until

    def close(self) -> None:
        """Close the window after a failure: the next batch is sent alone."""
        self.until = 0.0
        self.answered = False

    def forget(self) -> None:
        """Close the window: the lane now writes to another log, whose leader has no state of our producer id."""
        self.confirmed, self.until = (-1, -1), 0.0

    def note_answer(self) -> None:
        """Note that the leader acknowledged a batch while the partition's flow was FLOWING."""
        self.answered = True

    def use_answer(self) -> None:
        """Reset `answered`, because the journal has acted on the answer, or because no batch waits any more."""
        self.answered = False


class BrokerClock:
    """How far our clock may be behind the brokers' clocks. Brokers expire producer state by their own clocks, so with a
    slow clock, our batches look older to brokers than to us.

    Attributes:
        state_age_s: For this many seconds after a batch's own timestamp, a broker is certain to keep the producer
            state.
    """

    __slots__ = ("_at_least_ms", "_behind_ms", "state_age_s")

    def __init__(self, state_age_s: float) -> None:
        self.state_age_s = state_age_s
        self._behind_ms = 0
        self._at_least_ms = 0

    def show(self, broker_ms: int, now_ms: int) -> bool:
        """Note a broker's timestamp. Returns whether our clock is so slow that even our newest batches look old to
        brokers, which may then drop our producer state at any moment.
        """
        self._behind_ms = max(0, broker_ms - now_ms)
        self._at_least_ms = 0
        return self._behind_ms > self.state_age_s * 1000

    def show_at_least(self, at_least_ms: int) -> None:
        """Note a lower bound for the current time, from other clients' records."""
        self._at_least_ms = at_least_ms

    def now_ms(self, now_ms: int) -> int:
        """The latest possible time of the brokers' clocks when our clock shows `now_ms`."""
        return max(now_ms + self._behind_ms, self._at_least_ms)

    def age_s(self, batch: Batch, now_ms: int) -> float:
        """The age of a batch for brokers, which count from the batch's timestamp, not from the time of the append."""
        return max(0.0, (self.now_ms(now_ms) - batch.max_timestamp) / 1000)

    def is_old(self, batch: Batch, now_ms: int) -> bool:
        """Whether the batch is so old that a leader without newer batches of ours may drop our producer state."""
        return self.now_ms(now_ms) - batch.max_timestamp > self.state_age_s * 1000
