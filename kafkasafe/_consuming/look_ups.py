"""Look up the offsets of many partitions at the same time, for the consumer's public methods."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndTimestamp, TopicPartition

from kafkasafe._consuming.reports import Reports, log
from kafkasafe.cluster.inquiry import ProcedureRunner, RunningProcedure
from kafkasafe.cluster.lookups import LookUps, Note
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.codes.numbers import OFFSET_NOT_AVAILABLE, OFFSET_OUT_OF_RANGE
from kafkasafe.codes.sets import REMOTE_CODES
from kafkasafe.errors import OffsetNotAvailableError, RemoteStorageNotReadyError, WaitTimeoutError
from kafkasafe.history.epochs import UNDEFINED
from kafkasafe.limits.patience import seconds_of
from kafkasafe.offsets import EndOffsetTracker

# If a leader did not say whether the log has a remote part, the consumer asks again after this many seconds.
_REMOTE_AGAIN_S: Final = 1.0
# Minimum pause, in seconds, after a failed attempt to write the file `offsets_path`.
_SAVE_AGAIN_S: Final = 10.0

Found = tuple[dict[TopicPartition, Any], dict[TopicPartition, Exception]]
"""The offsets by partition, and the errors of partitions without an offset."""


class OffsetLookUps:
    """The look-ups of one consumer. Any thread may call the methods.

    Args:
        path: The option `offsets_path`: the file in which `tracker` stores its offsets.
        timeout_ms: Time-out for calls without a `timeout_ms` of their own.
    """

    __slots__ = ("_client_id", "_lookups", "_path", "_reports", "_save_due", "_timeout_ms", "_tracker")

    def __init__(
        self,
        lookups: LookUps,
        tracker: EndOffsetTracker,
        path: Path | None,
        client_id: str,
        timeout_ms: float,
        reports: Reports,
    ) -> None:
        self._lookups = lookups
        self._tracker = tracker
        self._path = path
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._reports = reports
        self._save_due = 0.0

    def ends(self, partitions: Iterable[TopicPartition], timeout_ms: float | None, *, partial: bool) -> Found:
        procedures = {tp: functools.partial(self._end, tp) for tp in partitions}
        try:
            return self._look_up(procedures, timeout_ms, partial=partial)
        finally:
            self._save()

    def starts(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None, *, partial: bool
    ) -> Found:
        procedures = {tp: functools.partial(self._lookups.start, *tp) for tp in partitions}
        try:
            return self._look_up(procedures, timeout_ms, partial=partial)
        finally:
            self._save()

    def at_times(
        self, times: Mapping[TopicPartition, int], timeout_ms: float | None, *, partial: bool
    ) -> Found:
        """Look up, for each partition, the first record at or after a time (ms). See `_look_up`."""
        procedures = {tp: functools.partial(self._at_time, tp, ms) for tp, ms in times.items()}
        return self._look_up(procedures, timeout_ms, partial=partial)

    def _end(self, tp: TopicPartition, note: Note) -> Procedure[int]:
        return (yield from self._lookups.end(*tp, note)).offset

    def _at_time(
        self, tp: TopicPartition, timestamp: int, note: Note
    ) -> Procedure[OffsetAndTimestamp | None]:
        found = yield from self._lookups.at_time(*tp, timestamp, note)
        return (
            None
            if found.offset < 0
            else OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch)
        )

    def _look_up(
        self,
        procedures: Mapping[TopicPartition, Callable[[Note], Procedure[Any]]],
        timeout_ms: float | None,
        *,
        partial: bool,
    ) -> Found:
        """Run the procedures until all procedures have ended, or until the time-out has passed.

        Raises:
            KafkaError: A partition has no offset, and `partial` is false.
        """
        timeout_s = seconds_of(self._timeout_ms if timeout_ms is None else timeout_ms)
        deadline = time.monotonic() + timeout_s
        # Each call has its own `ProcedureRunner`, because several threads may call at the same time.
        runner = ProcedureRunner()
        troubles = {tp: _Trouble(tp, runner, self._lookups) for tp in procedures}
        begun = runner.begin_all(make(troubles[tp].note) for tp, make in procedures.items())
        inquiries = dict(zip(procedures, begun, strict=True))
        while not all(inquiry.done for inquiry in inquiries.values()):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            runner.wait(left_s)
            runner.work()
        answered: dict[TopicPartition, Any] = {}
        missing: dict[TopicPartition, Exception] = {}
        for tp, inquiry in inquiries.items():
            if not inquiry.done:
                inquiry.cancel()
                missing[tp] = troubles[tp].too_late(timeout_s)
                self._reports.stats.exhausted["list_offsets"] += 1
            elif inquiry.error is not None:
                missing[tp] = inquiry.error
            else:
                answered[tp] = inquiry.result
        if missing and not partial:
            # Prefer an error other than a time-out: a retry may cure a time-out, but none of the other errors.
            raise min(missing.values(), key=lambda error: isinstance(error, kafka_errors.KafkaTimeoutError))
        return answered, missing

    def _save(self) -> None:
        """Save the end offsets before the application gets them, so that the next run returns no lower end offsets,
        even after a kill -9.
        """
        if self._path is None or time.monotonic() < self._save_due:
            return
        try:
            self._tracker.save(if_changed=True)
        except OSError:
            # The answer is correct even if the file was not written: only the next run needs the file. `close` raises
            # the error.
            log.exception(
                "%s could not be written",
                self._path,
                client_id=self._client_id,
                path=str(self._path),
                event="offsets_not_written",
            )
            self._save_due = time.monotonic() + _SAVE_AGAIN_S


class _Trouble:
    """The reason why one look-up has no answer yet.

    Some errors suggest that remote storage is not ready, but can have other causes, too. To tell the causes apart, this
    object asks the leader whether the log has a remote part.
    """

    __slots__ = ("_asked_at", "_last", "_lookups", "_remote", "_runner", "_tp")

    def __init__(self, tp: TopicPartition, runner: ProcedureRunner, lookups: LookUps) -> None:
        self._tp = tp
        self._runner = runner
        self._lookups = lookups
        self._last: Exception | None = None
        self._remote: RunningProcedure[bool | None] | None = None
        self._asked_at = -math.inf

    def note(self, error: Exception) -> None:
        self._last = error
        known = self._remote is not None and (not self._remote.done or self._remote.result is not None)
        if isinstance(error, RemoteStorageNotReadyError):
            return  # the cause is known
        if not known and _code_of(error) in {*REMOTE_CODES, OFFSET_OUT_OF_RANGE}:
            now = time.monotonic()
            if now - self._asked_at >= _REMOTE_AGAIN_S:
                self._asked_at = now
                self._remote = self._runner.begin(self._lookups.has_remote_part(*self._tp))

    def too_late(self, timeout_s: float) -> Exception:
        topic, partition = self._tp
        last, code = self._last, _code_of(self._last)
        said = "no answer" if last is None else repr(last) if code is None else f"error code {code}, {last!r}"
        message = f"No offset of {topic}-{partition} within {timeout_s:g} s; last result: {said}"
        error: Exception
        if code == OFFSET_NOT_AVAILABLE:
            error = OffsetNotAvailableError(
                f"{message}. Its new leader is catching up, so the look-up has no result: call again.",
                topic=topic,
                partition=partition,
            )
        elif isinstance(last, RemoteStorageNotReadyError) or (
            code in {*REMOTE_CODES, OFFSET_OUT_OF_RANGE} and self._remote is not None and self._remote.result
        ):
            error = RemoteStorageNotReadyError(
                f"{message}. Remote storage is not ready, so the look-up has no result: call again.",
                topic=topic,
                partition=partition,
                code=UNDEFINED if code is None else code,
            )
        else:
            error = WaitTimeoutError(message)
        error.__cause__ = last
        return error


def _code_of(error: Exception | None) -> int | None:
    if isinstance(error, RemoteStorageNotReadyError):
        return error.code
    if not isinstance(error, kafka_errors.BrokerResponseError):
        return None
    code: int | None = getattr(error, "errno", None)
    return code
