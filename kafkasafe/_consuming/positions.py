"""Find positions: from commits and resets, and check whether they are valid under the present leader."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.ground import ignore
from kafkasafe._consuming.partition import Leadership, Part, ResetReason, ResetTo
from kafkasafe._consuming.walking import Walking
from kafkasafe._core.epochs import UNDEFINED, BatchMemory, Lineage, LineageError, decode_topic_id
from kafkasafe._io.at_once import at_once
from kafkasafe._io.inquiry import Pause, Procedure
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.events import EndOffsetRegressed

__all__ = ["Positions"]

# Pause between look-ups of a held end offset, seconds.
_SETTLE_S: Final = 0.5


class Positions(Walking):
    """Part of `SafeConsumer`."""

    def _decided(self, tp: TopicPartition) -> None:
        """Note that the application has chosen a position, and cancel resets and checks of the old one."""
        self._rereading.moved(tp)
        part = self._part(tp)
        if part is None:
            return
        part.cancel()
        part.reset = part.error = part.checked = part.remote = None
        part.suspected = False
        undecided, part.undecided = part.undecided, None
        if undecided is not None:
            # The application knows of the divergence, so never report it again, whatever position it chose.
            with self._lock:
                part.lineage.truncate(undecided.event.divergent_offset)
                part.marks.truncate(undecided.event.divergent_offset)
                part.adopt(undecided.topic_id)
        elif not part.lineage.entries:
            part.topic_id = None  # the position belongs to the topic that has the name now

    def _part(self, tp: TopicPartition) -> Part | None:
        state = self._subscription.assignment.get(tp)
        part = self._parts.get(tp)
        if state is None or part is None or part.state is not state:
            if part is not None:
                part.cancel()
                self._keep(tp, part)
                del self._parts[tp]
                self._resting.pop(tp, None)
            if state is None:
                return None
            part = self._parts[tp] = Part(state)
            known = self._memory.get(tp.topic, tp.partition)
            if known is not None:
                part.lineage, part.topic_id = known.lineage.copy(), known.topic_id
                for mark in known.marks:
                    part.marks.observe(mark)
        return part

    def _refresh_committed_offsets(self, timeout_ms: float | None = None) -> bool:
        """Like kafka-python's method, but keep the leader epoch and the lineage of a committed offset."""
        self._rereading.settle(timeout_ms)
        if self._subscription.has_all_fetch_positions():
            return True
        missing = self._subscription.missing_fetch_positions()
        if missing and self.config["group_id"] is not None:
            number = self._rereading.draw(missing)
            try:
                committed = self._coordinator.fetch_committed_offsets(missing, timeout_ms=timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return False
            except BaseException:
                self._rereading.answered(missing)
                raise
            self._rereading.answered(missing)
            for tp in missing:
                self._rereading.begin(tp, number, committed[tp].offset if tp in committed else None)
            for tp, offset in committed.items():
                part = self._part(tp)
                if part is None:  # revoked by a rebalance meanwhile
                    continue
                epoch = UNDEFINED if offset.leader_epoch is None else offset.leader_epoch
                self._subscription.seek(tp, OffsetAndMetadata(offset.offset, "", epoch))
                with self._lock:
                    lineage, topic_id = _restored(offset.metadata, epoch, offset.offset, part.lineage)
                    if lineage is not part.lineage:
                        # The member that committed it may have read another topic of this name, or another log.
                        part.lineage, part.topic_id, part.marks = lineage, topic_id, BatchMemory()
        for tp in self._subscription.missing_fetch_positions():
            part = self._part(tp)
            if part is not None:
                part.reset = ("no_position", None)
        self._subscription.reset_missing_positions()
        return bool(self._subscription.has_all_fetch_positions())

    @at_once()
    def _begin_resets(self) -> None:
        for tp in self._subscription.partitions_needing_reset():
            part = self._part(tp)
            if part is not None and part.inquiry is None:
                part.inquiry = self._desk.begin(self._reset(tp, part.state.reset_strategy, part.reset))

    def _reset(self, tp: TopicPartition, strategy: int, reason: ResetReason | None) -> Procedure[ResetTo]:
        start = None
        if strategy == EARLIEST or (reason is not None and reason[0] == "no_position"):
            start = yield from self._start(tp)
        if strategy == EARLIEST and start is not None:
            return ResetTo(strategy, start, start)
        end = yield from self._settled_end(tp)
        return ResetTo(strategy, end, start)

    def _settled_end(self, tp: TopicPartition) -> Procedure[int]:
        """Find an end offset to go on from. A held offset beyond the real end would be out of range at once."""
        began = time.monotonic()
        while True:
            end = yield from self._end(tp, ignore)
            if end <= (yield from self._log_end(tp)):
                return end
            if time.monotonic() - began >= self._safe.offsets_hold_timeout_s:
                lowered = self._tracker.accept(tp.topic, tp.partition, isolation_level=self._isolation)
                if lowered is not None:
                    event = EndOffsetRegressed(
                        tp.topic, tp.partition, lowered.offset, lowered.previous, lowered.reason.value
                    )
                    self._emit(event)
                    return lowered.offset
            yield Pause(_SETTLE_S)

    @at_once()
    def _begin_checks(self) -> None:
        """Check positions after a change of leaders: the new leader may have another log than the former one."""
        self._doubt(self._fetcher.take_lost_nodes())
        assigned = list(self._assigned())
        for tp in [tp for tp in self._parts if tp not in self._subscription.assignment]:
            self._part(tp)
        for tp in assigned:
            part = self._part(tp)
            if part is None or part.inquiry is not None or part.error is not None:
                continue
            if part.state.position is None:
                continue
            leadership = self._leadership(tp)
            if leadership is not None and leadership[0] in part.former_ids:
                # The metadata are older than what this consumer knows.
                self._manager.cluster.request_update()
                part.state._awaiting_validation = True
            elif leadership is None:
                if part.checked is None and part.lineage.entries:
                    # New metadata may arrive before the fetch is sent, and no record may be read unchecked. Request
                    # metadata here, because kafka-python only does so when it fetches a partition without a leader.
                    part.state._awaiting_validation = True
                    self._manager.cluster.request_update()
            elif (
                part.suspected or part.doubted or part.checked is None or _is_newer(leadership, part.checked)
            ):
                self._check(tp, part, leadership)

    def _doubt(self, nodes: Collection[int]) -> None:
        """Check positions again that were found valid at one of these brokers, without a leader epoch."""
        for part in self._parts.values():
            if part.checked is not None and part.checked[2] < 0 and part.checked[1] in nodes:
                part.doubted = True

    def _check(self, tp: TopicPartition, part: Part, leadership: Leadership) -> None:
        position = part.state.position.offset
        part.doubted = False
        if not part.lineage.entries or part.lineage.start_offset >= position:
            # Nothing was read before the position, so no record can be lost.
            if part.suspected:
                with self._lock:
                    part.lineage = Lineage((), position)
                part.suspected = False
            is_another = None not in {part.topic_id, leadership[0]} and part.topic_id != leadership[0]
            part.adopt(leadership[0])
            part.checked = leadership
            part.state._awaiting_validation = False
            if is_another and position > 0:
                self._begin_at_its_start(tp, part)
            return
        part.position = position
        part.state._awaiting_validation = True
        part.inquiry = self._desk.begin(
            self._walk(
                tp, part.lineage.copy(), part.marks.marks, position, part.topic_id, frozenset(part.former_ids)
            )
        )

    def _begin_at_its_start(self, tp: TopicPartition, part: Part) -> None:
        """Go to the start of a recreated topic, if nothing was read of the former one.

        1. The consumer begins at the end of the log, offset 10. The topic is deleted and created again.
        2. The new topic gets 15 records. All of them are newer than the position.
        3. Offset 10 exists in the new log, too. Reading on there would skip the records 0 to 9.
        """
        position = part.state.position.offset
        strategy = self._subscription._default_offset_reset_strategy
        if strategy not in {EARLIEST, LATEST}:
            part.position = position
            part.state._awaiting_validation = True
            part.error, part.told = kafka_errors.OffsetOutOfRangeError({tp: position}), 0.0
            return
        with self._lock:
            part.lineage, part.marks = Lineage(), BatchMemory()
        part.reset = ("recreated", position)
        self._subscription.request_offset_reset(tp, EARLIEST)


def _restored(
    metadata: str | None, epoch: int, offset: int, remembered: Lineage
) -> tuple[Lineage, bytes | None]:
    """Return the history that a committed offset carries, and the topic id (None if it has none).

    If the stored history is the better one, return `remembered` itself.
    """
    try:
        lineage, topic_id = Lineage.decode(metadata or ""), decode_topic_id(metadata or "")
    except LineageError:
        pass  # the application's own metadata, or none
    else:
        lineage.truncate(offset)
        return lineage, topic_id
    if remembered.entries and (
        remembered.epoch_at(offset - 1) == epoch or (epoch == UNDEFINED and offset <= remembered.end_offset)
    ):
        return remembered, None
    # Other members have read the partition since then.
    return Lineage.resumed(epoch, offset), None


def _is_newer(now: Leadership, then: Leadership) -> bool:
    if None not in {now[0], then[0]} and now[0] != then[0]:
        return True  # another topic
    if now[2] >= 0:
        return now[2] > then[2]
    return now[1] != then[1]  # brokers before 2.4 do not report the epoch
