"""Store the history of the records read: in files, and as the metadata of committed offsets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.ground import log
from kafkasafe._consuming.partition import Part
from kafkasafe._consuming.reporting import Reporting
from kafkasafe._core.epochs import UNDEFINED
from kafkasafe._core.memory import Remembered

__all__ = ["Keeping"]

# Shortest time between two writes of the file `lineage_path`; then the same after a failed write.
_SAVE_S: Final = 1.0
_SAVE_AGAIN_S: Final = 10.0
_NOTHING_UNHANDED: Final[Mapping[TopicPartition, int]] = {}


class Keeping(Reporting):
    """Part of `SafeConsumer`."""

    def _save_now_and_then(self, records: Mapping[TopicPartition, list[Any]]) -> None:
        self._keep_all(records)
        try:
            self._memory.save()
        except OSError:
            # Reading goes on: a missing file only means that the next run knows less. `close` raises the error.
            log.exception(
                "%s could not be written",
                self._safe.lineage_path,
                client_id=self.client_id,
                path=str(self._safe.lineage_path),
                event="lineage_not_written",
            )
            self.counters["lineage_write_errors"] += 1
            self._save_due = time.monotonic() + _SAVE_AGAIN_S
        else:
            self._save_due = time.monotonic() + _SAVE_S

    def _keep_all(self, records: Mapping[TopicPartition, list[Any]]) -> None:
        """Store the history of all partitions, up to the returned records, including `records`, returned next."""
        for tp, part in self._parts.items():
            some = records.get(tp)
            self._keep(tp, part, some[-1].offset + 1 if some else 0)

    def _keep(self, tp: TopicPartition, part: Part, least: int = 0) -> None:
        position = part.state.position
        with self._lock:
            lineage = part.lineage.copy()
        # Without a position (during a reset) keep the whole history.
        if position is not None:
            lineage.truncate(max(position.offset, least))
        marks = tuple(mark for mark in part.marks.marks if mark.base_offset < lineage.end_offset)
        self._memory.keep(tp.topic, tp.partition, Remembered(part.topic_id, lineage, marks))

    def _save_ends(self) -> None:
        """Save the end offsets before the application gets them: after a kill -9 the next run must not return less."""
        if self._safe.offsets_path is None or time.monotonic() < self._save_ends_due:
            return
        try:
            self._tracker.save(if_changed=True)
        except OSError:
            # The answer is correct. A missing file only means that the next run knows less. `close` raises the error.
            log.exception(
                "%s could not be written",
                self._safe.offsets_path,
                client_id=self.client_id,
                path=str(self._safe.offsets_path),
                event="offsets_not_written",
            )
            self._save_ends_due = time.monotonic() + _SAVE_AGAIN_S

    def _with_lineage(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Add lineages to offsets, on kafka-python's I/O thread. The application's own metadata are not changed."""
        if not self._keeps_lineage or not all(
            isinstance(offset, OffsetAndMetadata) for offset in offsets.values()
        ):
            return dict(offsets)
        return {tp: self._described(tp, offset) for tp, offset in offsets.items()}

    def _described(self, tp: TopicPartition, offset: OffsetAndMetadata) -> OffsetAndMetadata:
        part = self._parts.get(tp)
        if part is None:
            return offset
        with self._lock:
            lineage, topic_id = part.lineage.copy(), part.topic_id
        lineage.truncate(offset.offset)
        if offset.offset < 0 or not (lineage.entries or topic_id):
            return offset
        epoch = offset.leader_epoch
        if epoch is None or epoch < 0:
            known = lineage.epoch_at(offset.offset - 1)
            epoch = UNDEFINED if known is None else known
        metadata = offset.metadata or lineage.encode(topic_id=topic_id)
        return OffsetAndMetadata(offset.offset, metadata, epoch)

    def _committable(
        self, unhanded: Mapping[TopicPartition, int] = _NOTHING_UNHANDED
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions for commits that name no offsets. Any thread may call it.

        `unhanded` has, by partition, the first offset that was fetched and not returned to the application.

        1. The consumer reads offsets 0 to 9. The topic is deleted and created again, with 15 records.
        2. `poll` raises LogDivergedError. The application does not seek, and an automatic commit is due.
        3. Both logs have leader epoch 0. The next incarnation would accept offset 10, and skip 0 to 9.

        So a position is left out while the application has not decided and the position looks like one of the new log.
        It is also left out once the metadata name another topic, until that is checked. A commit that was sent before
        that carries the id of the topic that was read (`_described`).
        """
        found = {}
        with self._subscription._lock:
            for tp, state in self._subscription.assignment.items():
                if not state.has_valid_position:
                    continue
                first, position = unhanded.get(tp), state.position
                if first is not None and first < position.offset:
                    position = OffsetAndMetadata(first, "", UNDEFINED)
                if not (self._is_withheld(tp, position.offset) or self._is_another_topic(tp)):
                    found[tp] = position
        return found

    def _is_withheld(self, tp: TopicPartition, offset: int) -> bool:
        part = self._parts.get(tp)
        undecided = None if part is None else part.undecided
        return undecided is not None and undecided.forbids(offset)

    def _is_another_topic(self, tp: TopicPartition) -> bool:
        """Return whether the metadata name a newer topic than the one that was read."""
        part, leadership = self._parts.get(tp), self._leadership(tp)
        if part is None or part.topic_id is None or leadership is None:
            return False
        return leadership[0] not in {None, part.topic_id, *part.former_ids}
