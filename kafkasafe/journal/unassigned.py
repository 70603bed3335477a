"""The state of one topic whose partitions are not known yet: its batches wait there to be divided. Only data.

The cluster never had a batch of such a topic. So no batch here is in flight, in doubt or suspected, and no batch has an
id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.journal.destination import Destination
from kafkasafe.journal.flow import UNASSIGNED_FLOW, Flow
from kafkasafe.journal.progress import Progress
from kafkasafe.journal.states import Batch, BatchState

__all__ = ["UnassignedTopic"]

_DIVIDE_BYTES: Final = 1024 * 1024
"""Bytes to divide at a time: the batches of a long outage fit neither into memory nor twice onto the disk."""

_DIVISIBLE: Final = frozenset({BatchState.SEALED, BatchState.JOINED})


@dataclass(slots=True, eq=False)
class UnassignedTopic(Destination):
    """Batches of one topic that wait until its partitions are known. `partition` is UNCHOSEN."""

    progress: Progress = field(default_factory=lambda: Progress(table=UNASSIGNED_FLOW))

    @property
    def may_divide(self) -> bool:
        """Whether its batches may be divided once the partitions are known. They may not be divided while a batch is
        being rejected or is undecidable.
        """
        return self.flow is Flow.NEW

    def divisible(self) -> Iterator[Batch]:
        """The batches to divide next, in order. The caller stops at a batch that is not on disk, so that none overtakes
        it.
        """
        size = 0
        for batch in self.queue:
            if size >= _DIVIDE_BYTES or batch.state not in _DIVISIBLE:
                return
            yield batch
            size += batch.size_bytes

    def stop_rejecting(self) -> None:
        """Keep the batches that are not rejected yet: the topic exists after all."""
        self.rejection.stop()
