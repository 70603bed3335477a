"""The state of idempotent and transactional producers, as one replica's log stores it. Pure.

The rules come from measurements on brokers. Some rules differ from Kafka's documentation:

- A broker remembers the last five batches of a producer. After a restart, a broker remembers only the last batch,
  because its snapshot contains no others.
- The broker answers with error code 45 if a batch leaves a gap in the sequences, or repeats a batch that the broker no
  longer remembers.
- An unknown producer id may begin with any sequence.
- A known producer id with a newer epoch must begin with sequence 0.
- Expiry depends on the batches' own timestamps, not on their time of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from kafkasafe.record.batch import BatchHeader
from kafkasafe.testing.fake.checks import RefusedError

OUT_OF_ORDER_SEQUENCE: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48

WINDOW: Final = 5
_LAST_SEQUENCE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """A batch that is recognised if it arrives again."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    """The state of one producer id.

    Attributes:
        epoch: Newest epoch seen.
        window: The producer's latest batches, oldest first, at most five.
        last_timestamp: Timestamp of the producer's latest batch or marker, ms.
        coordinator_epoch: Coordinator epoch of the latest marker; -1 before the first marker.
        txn_first_offset: First offset of the producer's open transaction, or None.
    """

    epoch: int
    window: list[SeenBatch] = field(default_factory=list)
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, or -1."""
        return self.window[-1].last_sequence if self.window else -1

    def appended(self, header: BatchHeader) -> None:
        """Updates the state for a data batch that was appended at the offsets in its header."""
        if self.epoch != header.producer_epoch:
            self.epoch, self.window = header.producer_epoch, []
        self.window = [
            *self.window[-(WINDOW - 1) :],
            SeenBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            ),
        ]
        self.last_timestamp = header.max_timestamp
        if header.is_transactional and self.txn_first_offset is None:
            self.txn_first_offset = header.base_offset

    def marked(self, header: BatchHeader, coordinator_epoch: int) -> int | None:
        """Updates the state for a transaction's marker. Returns the transaction's first offset; None if it has no
        records here.
        """
        if header.producer_epoch > self.epoch:
            self.epoch, self.window = header.producer_epoch, []
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = header.max_timestamp
        first, self.txn_first_offset = self.txn_first_offset, None
        return first

    def restarted(self) -> None:
        """Restores the state from the broker's snapshot, which contains only the last batch."""
        self.window = self.window[-1:]


class Producers:
    """The producers of one log."""

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._known.items())

    def get(self, producer_id: int) -> Producer | None:
        """The state of an id; None if it is unknown."""
        return self._known.get(producer_id)

    def copy(self) -> Producers:
        """An independent copy."""
        made = Producers()
        made._known = {key: replace(entry, window=list(entry.window)) for key, entry in self._known.items()}
        return made

    def duplicate_of(self, header: BatchHeader) -> SeenBatch | None:
        """The batch in the window that has the same epoch and sequences as `header`, or None. As in a broker, the bytes
        are not compared.
        """
        known = self._known.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            return None
        for seen in known.window:
            if (seen.base_sequence, seen.last_sequence) == (header.base_sequence, header.last_sequence):
                return seen
        return None

    def check(self, header: BatchHeader) -> None:
        """Checks whether a batch that is not a duplicate may be appended.

        Raises:
            RefusedError: With code 45 or 47.
        """
        known = self._known.get(header.producer_id)
        if known is None:
            return
        who = f"producer {header.producer_id}"
        if header.producer_epoch < known.epoch:
            raise RefusedError(
                INVALID_PRODUCER_EPOCH,
                f"Epoch {header.producer_epoch} of {who} is older than the last seen, {known.epoch}",
            )
        if header.producer_epoch != known.epoch:
            if header.base_sequence != 0 and known.epoch != -1:
                raise RefusedError(
                    OUT_OF_ORDER_SEQUENCE,
                    f"Sequence {header.base_sequence} at the begin of epoch {header.producer_epoch} of {who}",
                )
            return
        if known.epoch == -1:
            return
        last = known.last_sequence
        if header.base_sequence != (0 if last == _LAST_SEQUENCE else last + 1):
            raise RefusedError(
                OUT_OF_ORDER_SEQUENCE,
                f"Out of order sequence of {who}: {header.base_sequence} after {last}",
            )

    def check_transaction(self, header: BatchHeader) -> None:
        """Checks that the batch belongs to the producer's open transaction, if there is one.

        Raises:
            RefusedError: With code 48: the batch does not belong to the open transaction.
        """
        known = self._known.get(header.producer_id)
        open_one = known is not None and known.txn_first_offset is not None
        if open_one and not header.is_transactional:
            raise RefusedError(INVALID_TXN_STATE)  # a batch outside of the transaction

    def appended(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            self._known.setdefault(header.producer_id, Producer(header.producer_epoch)).appended(header)

    def marked(self, header: BatchHeader, coordinator_epoch: int) -> int | None:
        known = self._known.setdefault(header.producer_id, Producer(header.producer_epoch))
        return known.marked(header, coordinator_epoch)

    def restarted(self) -> None:
        """Restores the state from the broker's snapshot, which contains only the last batch of each producer."""
        for known in self._known.values():
            known.restarted()

    def recall(self, before: Producers, end_offset: int) -> None:
        """After a truncation, restores producers that have no batch in the log any more. (The truncation removed their
        latest batches, and the earlier ones had already been deleted.) A broker restores such producers from its
        snapshot.

        `before` is the state before the truncation, and `end_offset` the end of the log after it.
        """
        for key, old in before:
            window = [seen for seen in old.window if seen.last_offset < end_offset]
            if key not in self._known and window:
                self._known[key] = Producer(
                    old.epoch, window[-1:], window[-1].timestamp, old.coordinator_epoch
                )

    def expire(self, now_ms: int, after_ms: int) -> None:
        """Forgets producers that have no open transaction and whose latest timestamp is at least `after_ms` ago."""
        self._known = {
            key: known
            for key, known in self._known.items()
            if known.txn_first_offset is not None or now_ms - known.last_timestamp < after_ms
        }
