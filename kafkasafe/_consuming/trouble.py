"""Remember why a look-up has no answer yet, for the error if it times out."""

from __future__ import annotations

import math
import time
from typing import Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._core.epochs import UNDEFINED
from kafkasafe._io.inquiry import Desk, Inquiry
from kafkasafe._io.lookups import OUT_OF_RANGE, REMOTE, LookUps
from kafkasafe.errors import OffsetNotAvailableError, RemoteStorageNotReadyError, WaitTimeoutError

__all__ = ["Trouble"]

_OFFSET_NOT_AVAILABLE: Final = 78
# If a leader did not say whether the log has a remote part, ask again after this time, seconds.
_REMOTE_AGAIN_S: Final = 1.0


class Trouble:
    """The reason why one look-up has no answer yet.

    Some errors suggest that remote storage is not ready, but each of them has other causes, too. So the leader is asked
    whether the log has a remote part.
    """

    __slots__ = ("_asked_at", "_desk", "_last", "_lookups", "_remote", "_tp")

    def __init__(self, tp: TopicPartition, desk: Desk, lookups: LookUps) -> None:
        self._tp = tp
        self._desk = desk
        self._lookups = lookups
        self._last: Exception | None = None
        self._remote: Inquiry[bool | None] | None = None
        self._asked_at = -math.inf

    def note(self, error: Exception) -> None:
        """Note a failed attempt."""
        self._last = error
        known = self._remote is not None and (not self._remote.done or self._remote.result is not None)
        if isinstance(error, RemoteStorageNotReadyError):
            return  # the cause is known
        if not known and _code_of(error) in {*REMOTE, OUT_OF_RANGE}:
            now = time.monotonic()
            if now - self._asked_at >= _REMOTE_AGAIN_S:
                self._asked_at = now
                self._remote = self._desk.begin(self._lookups.has_remote_part(*self._tp))

    def too_late(self, timeout_s: float) -> Exception:
        """Return the error of a look-up that timed out."""
        topic, partition = self._tp
        last, code = self._last, _code_of(self._last)
        said = "no answer" if last is None else repr(last) if code is None else f"error code {code}, {last!r}"
        message = f"No offset of {topic}-{partition} within {timeout_s:g} s; last result: {said}"
        error: Exception
        if code == _OFFSET_NOT_AVAILABLE:
            error = OffsetNotAvailableError(
                f"{message}. Its new leader is catching up, so the look-up has no result: call again.",
                topic=topic,
                partition=partition,
            )
        elif isinstance(last, RemoteStorageNotReadyError) or (
            code in {*REMOTE, OUT_OF_RANGE} and self._remote is not None and self._remote.result
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
    """Return Kafka's error code, if a broker answered one."""
    if isinstance(error, RemoteStorageNotReadyError):
        return error.code
    if not isinstance(error, kafka_errors.BrokerResponseError):
        return None
    code: int | None = getattr(error, "errno", None)
    return code
