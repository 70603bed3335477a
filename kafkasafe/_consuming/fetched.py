"""Handle fetch responses: decide whether kafka-python may use them, and what errors of one partition mean."""

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
# Checking an offset out of range takes three requests, so this pause allows ten requests a second.
_RANGE_PAUSE_S: Final = 0.3
# UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID: brokers answer them for a deleted topic, and
# briefly after they have started.
_OTHER_TOPIC: Final = frozenset({3, 100, 103})


class Fetched(Positions):
    """Part of `SafeConsumer`."""

    def _on_fetched(self, completed: Any) -> bool:
        """Return whether kafka-python may use a fetch response of one partition."""
        tp, data = completed.topic_partition, completed.partition_data
        part = self._part(tp)
        code: int = data.error_code
        if (
            part is None
            or not part.state.is_fetchable()
            or part.state.position.offset != completed.fetched_offset
        ):
            return code == 0  # outdated; kafka-python discards it
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
        """Record the leader epochs of the batches. Return False if they contradict the records read before."""
        run_epoch, run_start, run_end = UNDEFINED, -1, -1
        # Newer brokers report their leader epoch and the topic id, which is proof enough without checksums.
        marked = part.checked is None or part.checked[2] < 0 or part.topic_id is None
        expected = fetched
        with self._lock:
            for batch in headers(records):
                start, end = max(batch.base_offset, fetched), batch.last_offset + 1
                if end <= start:
                    continue
                if marked or batch.epoch < 0:
                    # An old compressed message has only its last offset. Its first one follows the message before.
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
            # The error came from a follower. The leader may not have this problem, so fetch from it at once.
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
            part.checked = None  # when the topic is back, it may be another one
        if verdict.refresh_metadata:
            self._manager.cluster.request_update()
        self._rest(tp, part, code, verdict.name, verdict.explanation)

    def _rest(self, tp: TopicPartition, part: Part, code: int, name: str, reason: str) -> None:
        """Pause fetches from this partition after an error."""
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
        # An ordinary change of leaders ends within the first pause. A check for remote storage may take longer.
        enough = 5 if maybe_remote and part.remote is None else 1
        if part.code != code and (remote or part.failures > enough or code in _OTHER_TOPIC):
            self._emit_not_ready(tp, part)
        timeout_s = self._safe.remote_storage_timeout_s
        if remote and timeout_s is not None and now - part.overdue_since >= timeout_s:
            part.overdue_since = now
            self._stats.exhausted["fetch"] += 1
            raise RemoteStorageNotReadyError(
                f"{tp.topic}-{tp.partition} has not been readable at {part.state.position.offset} for"
                f" {now - part.failing_since:.3g} s (error code {code}): {reason}. Its position stays; poll again to"
                " wait longer.",
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
