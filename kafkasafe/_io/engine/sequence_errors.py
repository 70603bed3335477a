"""Sequence errors of brokers, each counted once, when the cluster's state has proven what it means."""

from __future__ import annotations

from typing import Final

from kafkasafe._io.stats import Stats

__all__ = ["SequenceErrors"]

_NAMES: Final = frozenset(
    {
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "DUPLICATE_SEQUENCE_NUMBER",
        "UNKNOWN_PRODUCER_ID",
        "INVALID_PRODUCER_EPOCH",
    }
)
_UNKNOWN_PRODUCER: Final = "UNKNOWN_PRODUCER_ID"

Address = tuple[str, int]


class SequenceErrors:
    """The last error of each partition, until it is judged.

    Whether batches in doubt are in the log is a judgement about every sequence error. UNKNOWN_PRODUCER_ID mostly puts
    nothing in doubt: it says that the batch was not appended. Of it the question is KAFKA-5793's:

    1. A broker (Kafka 1.0 to 2.4) answers it to a batch, and says where its log starts.
    2. The start is beyond the last acknowledged offset: retention removed the producer's records. Nothing is lost.
    3. Otherwise the log should have them, and is read: they are lost, or they are there.

    Args:
        stats: Counts the verdicts.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._pending: dict[Address, tuple[str, bool]] = {}  # error, whether retention explains it

    def answered(
        self, address: Address, name: str, *, log_start_offset: int = -1, last_acked: int = -1
    ) -> None:
        """The outcome of a Produce request, by its name; one that is no sequence error takes the place of one.

        Args:
            address: Topic and partition.
            name: Of the error.
            log_start_offset: That the broker told, -1 where it did not.
            last_acked: Offset of the partition's last acknowledged record, -1 where there is none.
        """
        if name not in _NAMES:
            self._pending.pop(address, None)
            return
        self._pending[address] = name, 0 <= last_acked < log_start_offset

    def judged(self, address: Address, verdict: str) -> None:
        """It is known whether the partition's batches in doubt are in the log, or that this cannot be known."""
        if found := self._pending.pop(address, None):
            self._stats.sequence_errors[found[0], verdict] += 1

    def absent(self, address: Address) -> None:
        """The batch that was refused is not in the log, as the broker said, and no loss was found."""
        name, trimmed = self._pending.get(address, ("", False))
        if name == _UNKNOWN_PRODUCER:
            self.judged(address, "retention" if trimmed else "none")

    def lost(self, address: Address) -> None:
        """Acknowledged records of the partition are gone from the log."""
        if self._pending.get(address, ("", False))[0] == _UNKNOWN_PRODUCER:
            self.judged(address, "loss")
