"""How long `poll` waits, and what ends the wait."""

from __future__ import annotations

import contextlib
import time

from kafka.future import Future

from kafkasafe._consuming.ground import Ground

__all__ = ["Waiting"]


class Waiting(Ground):
    """Part of `SafeConsumer`."""

    def _due_s(self) -> float | None:
        """Return the seconds until a pause of a partition or procedure, or a follower's time, ends; else None."""
        now = time.monotonic()
        rests = [until - now for until in list(self._resting.values()) if until > now]
        rests += [due for due in (self._desk.due_s(), self._followers.due_s(now)) if due is not None]
        return min(rests, default=None)

    def _is_busy(self) -> bool:
        return any(part.inquiry is not None for part in self._parts.values())

    def _ring(self) -> None:
        """Wake `poll` after an answer. This runs on our network thread; kafka-python's futures belong to its own."""
        alarm = self._fetcher._reset_task
        if isinstance(alarm, Future) and not alarm.is_done and not self._closed:
            with contextlib.suppress(RuntimeError):  # kafka-python's loop was closed meanwhile
                self._manager.call_soon(_complete, alarm)


def _complete(alarm: Future) -> None:
    if not alarm.is_done:
        alarm.success(None)
