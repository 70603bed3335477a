"""What was fetched: whether kafka-python may have it, and what an error of one partition means. Begins procedures."""

from __future__ import annotations

import time
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.ground import code_error
from kafkasafe._consuming.headers import headers
from kafkasafe._consuming.partition import Part
from kafkasafe._consuming.positions import Positions
from kafkasafe._core.codes import classify_code
from kafkasafe._core.epochs import UNDEFINED, BatchMark, Lineage
from kafkasafe._io.inquiry import pause_s
from kafkasafe._io.lookups import OUT_OF_RANGE, REMOTE
from kafkasafe.errors import RemoteStorageNotReadyError
from kafkasafe.events import PartitionNotReady, PartitionReady

__all__ = ["Fetched"]

_TOPIC_AUTHORIZATION_FAILED: Final = 29
# Each round of asking about an offset out of range is three requests: so ten a second.
_RANGE_PAUSE_S: Final = 0.3
# What a deleted topic answers, and for a moment a broker that just started: UNKNOWN_TOPIC_OR_PARTITION,
# UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID.
_OTHER_TOPIC: Final = frozenset({3, 100, 103})


class Fetched(Positions):
    """Part of `SafeConsumer`."""

    def _on_fetched(self, completed: Any) -> bool:
        """Whether kafka-python may have it."""
        tp, data = completed.topic_partition, completed.partition_data
        part = self._part(tp)
        code: int = data.error_code
        if (
            part is None
            or not part.state.is_fetchable()
            or part.state.position.offset != completed.fetched_offset
        ):
            return code == 0  # of another time; kafka-python throws it away
        if code:
            self._on_fetch_failed(tp, part, data)
            return False
        if part.failures:
            self._resting.pop(tp, None)
            event = PartitionReady(
                tp.topic, tp.partition, time.monotonic() - part.failing_since, part.failures
            )
            part.failures = part.code = 0
            part.remote = None
            self._emit(event)
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            self._suspect(part)
            return False
        if data.records and not self._observe(part, data.records, completed.fetched_offset):
            self._suspect(part)
            return False
        return True

    def _suspect(self, part: Part) -> None:
        part.suspected = True
        part.state._awaiting_validation = True
        self._manager.cluster.request_update()

    def _observe(self, part: Part, records: Any, fetched: int) -> bool:
        """Notes the leader epochs of the batches; False: they contradict what was read before."""
        run_epoch, run_start, run_end = UNDEFINED, -1, -1
        # Later brokers tell the epoch under which they lead, and which topic it is: that is proof enough.
        marked = part.checked is None or part.checked[2] < 0 or part.topic_id is None
        expected = fetched
        with self._lock:
            for batch in headers(records):
                start, end = max(batch.base_offset, fetched), batch.last_offset + 1
                if end <= start:
                    continue
                if marked or batch.epoch < 0:
                    # Of an old compressed message only the last offset is told: it begins behind the one before.
                    base = expected if batch.wrapped else batch.base_offset
                    part.marks.observe(BatchMark(min(base, batch.last_offset), batch.last_offset, batch.crc))
                expected = end
                if batch.wrapped:
                    start = max(min(base, batch.last_offset), fetched)
                if batch.epoch == run_epoch and run_start >= 0:
                    run_end = end
                    continue
                if run_start >= 0 and not _noted(part.lineage, run_epoch, run_start, run_end):
                    return False
                run_epoch, run_start, run_end = batch.epoch, start, end
            return run_start < 0 or _noted(part.lineage, run_epoch, run_start, run_end)

    def _on_fetch_failed(self, tp: TopicPartition, part: Part, data: Any) -> None:
        code: int = data.error_code
        position: int = part.state.position.offset
        if part.state.clear_preferred_read_replica() is not None:
            # A follower: whatever its trouble is, the leader may have none, and is asked at once.
            self._followers.leave([tp], time.monotonic())
            if code != OUT_OF_RANGE and classify_code(code, "fetch").refresh_metadata:
                self._manager.cluster.request_update()
            return
        if code == OUT_OF_RANGE:
            part.position = position
            part.state._awaiting_validation = True
            part.inquiry = self._desk.begin(
                self._examine_range(
                    tp,
                    part.lineage.copy(),
                    part.marks.marks,
                    position,
                    part.topic_id,
                    frozenset(part.former_ids),
                )
            )
            return
        if code == _TOPIC_AUTHORIZATION_FAILED:
            raise kafka_errors.TopicAuthorizationFailedError({tp.topic})
        verdict = classify_code(code, "fetch")
        if not verdict.retriable:
            raise code_error(code, f"{tp.topic}-{tp.partition} at {position}: {verdict.explanation}")
        self._fetcher._maybe_update_current_leader(tp, data)
        if code in _OTHER_TOPIC:
            part.checked = None  # it may be another one when it is there again
        if verdict.refresh_metadata:
            self._manager.cluster.request_update()
        self._rest(tp, part, code, verdict.name, verdict.explanation)

    def _rest(self, tp: TopicPartition, part: Part, code: int, name: str, reason: str) -> None:
        """Fetches from this partition again after a pause."""
        now = time.monotonic()
        pause = _RANGE_PAUSE_S if code == OUT_OF_RANGE else pause_s(part.failures)
        self._resting[tp] = now + pause
        if part.failures == 0:
            part.failing_since = part.overdue_since = now
        part.failures += 1
        part.failing_code, part.failing_reason = code, reason
        self._stats.retries["fetch", name] += 1
        self._stats.backoff_s["fetch"] += pause
        maybe_remote = code in REMOTE or code == OUT_OF_RANGE
        if maybe_remote and part.remote is None and part.inquiry is None:
            part.position = part.state.position.offset
            part.inquiry = self._desk.begin(self._local(tp))
        remote = maybe_remote and bool(part.remote)
        # An ordinary change of leaders is over with the first pause; what it is else may still be asked.
        enough = 5 if maybe_remote and part.remote is None else 1
        if part.code != code and (remote or part.failures > enough or code in _OTHER_TOPIC):
            self._emit_not_ready(tp, part)
        timeout_s = self._safe.remote_storage_timeout_s
        if remote and timeout_s is not None and now - part.overdue_since >= timeout_s:
            part.overdue_since = now
            self._stats.exhausted["fetch"] += 1
            raise RemoteStorageNotReadyError(
                f"{tp.topic}-{tp.partition} cannot be read at {part.state.position.offset} for"
                f" {now - part.failing_since:.3g} s (error code {code}): {reason}. Its position stays; poll again to"
                " wait on.",
                topic=tp.topic,
                partition=tp.partition,
                code=code,
            )

    def _emit_not_ready(self, tp: TopicPartition, part: Part) -> None:
        part.code = part.failing_code
        position = part.state.position.offset
        remote = bool(part.remote)
        self._emit(
            PartitionNotReady(tp.topic, tp.partition, position, part.code, part.failing_reason, remote)
        )


def _noted(lineage: Lineage, epoch: int, start: int, end: int) -> bool:
    return lineage.observe(max(epoch, UNDEFINED), start, end)
