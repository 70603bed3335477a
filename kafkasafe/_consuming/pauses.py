"""Pause fetches from a partition after errors, and report the errors."""

from __future__ import annotations

import time
from typing import Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.position_table import PositionEvent
from kafkasafe._consuming.reports import Reports
from kafkasafe.cluster.inquiry import pause_s
from kafkasafe.codes.numbers import OFFSET_OUT_OF_RANGE
from kafkasafe.codes.sets import OTHER_TOPIC_CODES, REMOTE_CODES
from kafkasafe.errors import RemoteStorageNotReadyError
from kafkasafe.events import PartitionNotReady, PartitionReady

# After OFFSET_OUT_OF_RANGE, a check takes three requests. With a pause of 0.3 seconds after each check, a partition
# needs at most ten requests a second.
_RANGE_PAUSE_S: Final = 0.3


class Pauses:
    """Pauses one consumer's partitions after failed fetches.

    Args:
        remote_storage_timeout_s: `poll` raises an error if remote storage is not ready for this many seconds; None: no
            error.
    """

    __slots__ = ("_moves", "_remote_timeout_s", "_reports")

    def __init__(self, moves: Moves, reports: Reports, remote_storage_timeout_s: float | None) -> None:
        self._moves = moves
        self._reports = reports
        self._remote_timeout_s = remote_storage_timeout_s

    def ended(self, tp: TopicPartition, part: AssignedPartition) -> None:
        """Note and report that a fetch has succeeded after failures."""
        failures = part.failures
        event = PartitionReady(tp.topic, tp.partition, time.monotonic() - failures.since, failures.count)
        failures.ended()
        self._reports.emit(event)

    def begin(self, tp: TopicPartition, part: AssignedPartition, code: int, name: str, reason: str) -> None:
        """Note that a fetch has failed. The consumer fetches the partition again after a pause.

        Raises:
            RemoteStorageNotReadyError: Remote storage has taken too long to become ready.
        """
        now = time.monotonic()
        failures, stats = part.failures, self._reports.stats
        pause = _RANGE_PAUSE_S if code == OFFSET_OUT_OF_RANGE else pause_s(failures.count)
        failures.rest(now + pause)
        failures.failed(code, reason, now)
        stats.retries["fetch", name] += 1
        stats.backoff_s["fetch"] += pause
        maybe_remote = code in REMOTE_CODES or code == OFFSET_OUT_OF_RANGE
        if maybe_remote and failures.remote is None and part.is_idle:
            part.place(part.state.position.offset)
            self._moves.on(tp, part, PositionEvent.REMOTE_DUE)
        remote = maybe_remote and bool(failures.remote)
        # Report nothing for an ordinary leader change, which ends within the first pause. Wait longer if a check for
        # remote storage may still run.
        enough = 5 if maybe_remote and failures.remote is None else 1
        if failures.reported_code != code and (
            remote or failures.count > enough or code in OTHER_TOPIC_CODES
        ):
            self._report(tp, part)
        if (
            remote
            and self._remote_timeout_s is not None
            and now - failures.overdue_since >= self._remote_timeout_s
        ):
            failures.raised(now)
            stats.exhausted["fetch"] += 1
            raise RemoteStorageNotReadyError(
                f"{tp.topic}-{tp.partition} has not been readable at {part.state.position.offset} for"
                f" {now - failures.since:.3g} s (error code {code}): {reason}. Its position stays; poll again to"
                " wait longer.",
                topic=tp.topic,
                partition=tp.partition,
                code=code,
            )

    def located(self, tp: TopicPartition, part: AssignedPartition, *, remote: bool) -> None:
        failures = part.failures
        failures.located(remote=remote)
        if remote and failures.count and failures.reported_code != failures.code:
            self._report(tp, part)

    def _report(self, tp: TopicPartition, part: AssignedPartition) -> None:
        failures = part.failures
        failures.reported()
        self._reports.emit(
            PartitionNotReady(
                tp.topic,
                tp.partition,
                part.state.position.offset,
                failures.code,
                failures.reason,
                bool(failures.remote),
            )
        )
