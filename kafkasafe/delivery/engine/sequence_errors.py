"""Counts the sequence errors that brokers return. A repeated error counts only once, when the engine knows what the
error means.
"""

from __future__ import annotations

from typing import Final

from kafkasafe.stats import Stats

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
    """Keeps the last sequence error of each partition until the engine knows what the error means.

    The engine knows the meaning of most sequence errors once it knows whether the batches in doubt are in the log.
    UNKNOWN_PRODUCER_ID usually puts no batch in doubt, because the broker did not append the batch. A broker (Kafka 1.0
    to 2.4) that answers a batch with UNKNOWN_PRODUCER_ID reports where its log starts. Like Kafka's own producer
    (KAFKA-5793), the engine distinguishes two cases:

    - The log starts after the last acknowledged offset: retention removed the producer's records. Nothing is lost.
    - The log starts earlier: it should still contain the producer's records. The engine reads the log to find out
      whether the records are lost.

    Args:
        stats: Counts the verdicts.
    """

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._pending: dict[Address, tuple[str, bool]] = {}  # error, whether retention explains it

    def answered(
        self, address: Address, name: str, *, log_start_offset: int = -1, last_acked: int = -1
    ) -> None:
        """Note the outcome of a Produce request. An outcome other than a sequence error drops the pending error.

        Args:
            address: Topic and partition.
            name: Name of the outcome.
            log_start_offset: The log start offset that the broker reported; -1 if it reported none.
            last_acked: Offset of the partition's last acknowledged record, or -1.
        """
        if name not in _NAMES:
            self._pending.pop(address, None)
            return
        self._pending[address] = name, 0 <= last_acked < log_start_offset

    def judged(self, address: Address, verdict: str) -> None:
        """Count the partition's pending error, if there is one. `verdict` says what the error meant."""
        if found := self._pending.pop(address, None):
            self._stats.sequence_errors[found[0], verdict] += 1

    def absent(self, address: Address) -> None:
        """Note that the log lacks the refused batch, and that no acknowledged record is lost. This explains a pending
        UNKNOWN_PRODUCER_ID of the partition, so count this error.
        """
        name, trimmed = self._pending.get(address, ("", False))
        if name == _UNKNOWN_PRODUCER:
            self.judged(address, "retention" if trimmed else "none")

    def lost(self, address: Address) -> None:
        """Count a pending UNKNOWN_PRODUCER_ID as a loss: the log lacks acknowledged records of the partition."""
        if self._pending.get(address, ("", False))[0] == _UNKNOWN_PRODUCER:
            self.judged(address, "loss")
