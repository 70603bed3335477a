"""Decides how many batches of a partition may be in flight at once: several only if the leader surely has our state."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe.history.identity import BatchId

__all__ = ["InFlight", "SendWindow"]


@dataclass(slots=True)
class InFlight:
    """The batches of a partition in flight, as far as they limit the next one.

    Attributes:
        any: There is one.
        old: One of them is old: when the leader appends it, the leader may drop our producer state.
    """

    any: bool = False
    old: bool = False

    def add(self, *, old: bool) -> None:
        """Count a batch."""
        self.any = True
        self.old |= old


@dataclass(slots=True)
class SendWindow:
    """The producer state that the leader is known to have.

    1. A broker without state of a producer id accepts any base sequence.
    2. Batches 1 and 2 are sent. Batch 1 fails. Batch 2 arrives at a leader without our state, which appends it.
    3. The journal sends batch 1 again, and the leader appends it after batch 2.

    So the first batch under an id goes alone, and so does the first one after a pause.

    Attributes:
        confirmed: The (producer id, epoch) for which the leader has state.
        until: The time (seconds) until which the leader surely keeps this state.
        answered: The leader has just acknowledged a batch, so batches that still wait only wait for their turn.
    """

    confirmed: tuple[int, int] = (-1, -1)
    until: float = 0.0
    answered: bool = False

    def takes(self, identity: BatchId, in_flight: InFlight, now: float) -> bool:
        """Whether this batch may be sent now: alone, or behind others if the leader surely keeps our state."""
        return not in_flight.any or (not in_flight.old and self.is_open(identity, now))

    def is_open(self, identity: BatchId, now: float) -> bool:
        """Whether this batch may be sent while others are in flight."""
        return self.confirmed == (identity.producer_id, identity.producer_epoch) and now < self.until

    def open(self, identity: BatchId, until: float) -> None:
        """Note an acknowledgement: the leader has state of the batch's producer id and epoch until the time `until`."""
        self.confirmed, self.until = (identity.producer_id, identity.producer_epoch), until

    def close(self) -> None:
        """Close the window after a failure: the next batch goes alone."""
        self.until = 0.0
        self.answered = False

    def forget(self) -> None:
        """Close the window: the lane writes to another cluster, which has no state of our producer id."""
        self.confirmed, self.until = (-1, -1), 0.0

    def note_answer(self) -> None:
        """Note that the leader acknowledged a batch while the partition is flowing."""
        self.answered = True

    def use_answer(self) -> None:
        """Reset `answered`: the journal has acted on it, or no batch waits any more."""
        self.answered = False
