"""Decides whether a batch of a unit is the next one of its partition."""

from __future__ import annotations

from kafkasafe import units as u
from kafkasafe.journal.destinations import Destinations
from kafkasafe.journal.precedence import Precedence

__all__ = ["Turns"]


class Turns:
    """Answers the units' queries about the queues."""

    def __init__(self, destinations: Destinations, precedence: Precedence) -> None:
        self._partitions = destinations.partitions
        self._precedence = precedence

    def is_in_front(self, batch: u.Member) -> bool:
        """Whether the batch may be sent, and only batches of units precede it in its queue."""
        partition = self._partitions.get(batch.destination)
        if partition is None:
            return False  # its topic's partitions are not known: the batch has to be divided first
        for other in partition.queue:
            if other is batch:
                return partition.loss.suspicion is None and not self._precedence.stops(partition, other)
            if other.unit is None:
                return False
        return False
