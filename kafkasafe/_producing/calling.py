"""Callbacks: the thread on which they run, and waits for this thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafkasafe._io.callbacks import CallbackThread
from kafkasafe._producing.batching import Batching
from kafkasafe._producing.chunk import Chunk
from kafkasafe.logs import EventLog

__all__ = ["Calling", "safely"]

log = EventLog("producer")


class Calling(Batching):
    """Part of `SafeProducer`."""

    def _callback_thread(self) -> CallbackThread:
        pump = self._pump
        return CallbackThread(
            f"kafkasafe-callbacks-{self._config.client_id}", wake_senders=pump.nudge, ended=pump.ended
        )

    def _called(self, chunk: Chunk | None, deadline: float | None) -> bool:
        """Wait for due callbacks, of this chunk or of all. Return False if the deadline passed first."""
        if chunk is not None:
            if chunk.firsts or chunk.callbacks or chunk.errbacks:
                # Another thread sealed the chunk, and may not have watched it yet.
                chunk.watch(chunk.parcels or ())
            if not chunk.watched:
                return True
        if self._pump.is_current_thread():
            return True
        with self._accumulator.released():
            return self._callbacks.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


def safely(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:
        # The callback belongs to the application.
        log.exception("Error processing callback", event="callback_failed")
