"""Decides which offsets the consumer commits, and which history is stored with each committed offset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.ports import Assignments, Metadata
from kafkasafe.history.epochs import UNDEFINED
from kafkasafe.history.epochs.lineage import METADATA_BYTES
from kafkasafe.process.locks import new_lock

_NOTHING_UNHANDED: Final[Mapping[TopicPartition, int]] = {}


class Commits:
    """Decides about the commits of one consumer. Any thread may call the methods."""

    __slots__ = ("_assignments", "_carries_lineage", "_lock", "_metadata", "_parts")

    def __init__(self, assignments: Assignments, metadata: Metadata, parts: AssignedPartitions) -> None:
        self._assignments = assignments
        self._metadata = metadata
        self._parts = parts
        self._lock = new_lock()
        self._carries_lineage = True

    def stop_describing(self) -> None:
        """From now on, commit offsets without lineages (histories of the records read), because the brokers refuse
        lineages as commit metadata.
        """
        with self._lock:
            self._carries_lineage = False

    def described(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, max_bytes: int = METADATA_BYTES
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Add the history of the records read (the lineage) to offsets, as commit metadata. Metadata that the
        application has set are not changed.

        Args:
            offsets: The offsets to commit.
            max_bytes: Maximum length of the metadata text that is added to an offset.
        """
        with self._lock:
            carries_lineage = self._carries_lineage
        if not carries_lineage or not all(
            isinstance(offset, OffsetAndMetadata) for offset in offsets.values()
        ):
            return dict(offsets)
        return {tp: self._described(tp, offset, max_bytes) for tp, offset in offsets.items()}

    def _described(self, tp: TopicPartition, offset: OffsetAndMetadata, max_bytes: int) -> OffsetAndMetadata:
        part = self._parts.get(tp)
        if part is None:
            return offset
        lineage, topic_id = part.history.for_commit(offset.offset)
        if offset.offset < 0 or not (lineage.entries or topic_id):
            return offset
        epoch = offset.leader_epoch
        if epoch is None or epoch < 0:
            known = lineage.epoch_at(offset.offset - 1)
            epoch = UNDEFINED if known is None else known
        metadata = offset.metadata or lineage.encode(max_bytes, topic_id=topic_id)
        return OffsetAndMetadata(offset.offset, metadata, epoch)

    def committable(
        self, unhanded: Mapping[TopicPartition, int] = _NOTHING_UNHANDED
    ) -> dict[TopicPartition, Any]:
        """Return the positions to commit if the caller names no offsets. Leave out positions that must not be
        committed.

        `unhanded` maps partitions to the first offset that was fetched but not returned to the application.

        If a topic is deleted and created again, the old topic's position could be committed for the new topic:

        1. The consumer reads offsets 0 to 9. The topic is deleted and created again, with 15 records.
        2. `poll` raises LogDivergedError. The application does not seek, and an automatic commit is due.
        3. Both logs have leader epoch 0. After a restart, the program would accept offset 10, and skip 0 to 9.

        So the commit leaves out a position that may be mistaken for a position in the new log, until the application
        has decided where to continue. The commit also leaves out an unchecked position if the metadata already contain
        the new topic's id. While the metadata still contain the old topic's id, the commit metadata name the old id
        (`_described`).
        """
        return self._assignments.consumed(unhanded, self._is_allowed)

    def _is_allowed(self, tp: TopicPartition, offset: int) -> bool:
        return not (self.is_withheld(tp, offset) or self._is_another_topic(tp))

    def is_withheld(self, tp: TopicPartition, offset: int) -> bool:
        """Return whether an offset must not be committed before the application has decided about its partition."""
        part = self._parts.get(tp)
        undecided = None if part is None else part.undecided
        return undecided is not None and undecided.forbids(offset)

    def _is_another_topic(self, tp: TopicPartition) -> bool:
        """Return whether the metadata name a newer topic than the topic that was read."""
        part, leadership = self._parts.get(tp), self._metadata.leadership(tp)
        if part is None or part.history.topic_id is None or leadership is None:
            return False
        return leadership[0] not in {None, part.history.topic_id, *part.history.former.ids}
