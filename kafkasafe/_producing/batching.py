"""Accept an atomic batch: first its records, which other threads do not see yet, then the whole batch in one step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors

from kafkasafe._producing.accepting import Accepting
from kafkasafe._producing.accumulator import NEVER
from kafkasafe._producing.chunk import MAX_RECORDS, Chunk
from kafkasafe.atomic import AtomicBatch, BatchOutcome
from kafkasafe.errors import SpoolFullError

if TYPE_CHECKING:
    from kafkasafe.producer import RecordFuture

__all__ = ["Batching"]

_GIVE_WAY_S: Final = 1.0
"""How long a commit waits at most until the pump has taken earlier batches, seconds."""


class Batching(Accepting):
    """Part of `SafeProducer`."""

    def _send_into(
        self,
        batch: AtomicBatch,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
        chunk: Chunk | None = None,
        index: int = -1,
    ) -> tuple[RecordFuture, int]:
        """Put a record into an atomic batch, which no other thread uses yet. Return its future and its size.

        If `index` is not negative, the record has this number in `chunk` already, but no list entry yet.
        """
        key, value, special, size = self._checked(topic, value, key, headers, partition, timestamp_ms)
        self._check_topic(topic)
        if size > self._accumulator.max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(
                f"The record has {size} bytes, more than max_request_size={self._config.max_record_bytes} allows"
            )
        if size > batch._room:
            most = batch._most
            raise SpoolFullError(
                f"An atomic batch may hold {most:,} bytes (spool_segment_bytes): this record was not added. Commit the"
                " batch without it, or raise spool_segment_bytes"
            )
        if index < 0:
            chunk = batch._open.get(topic)
            if chunk is not None and chunk.open and chunk.left >= size:
                index = next(chunk.numbers)
        if chunk is None or not 0 <= index < MAX_RECORDS - 1:
            chunk = Chunk(
                topic,
                time.time_ns() // 1_000_000,
                NEVER,
                self._accumulator.chunk_bytes,
                self._delivery.callbacks,
            )
            chunk.atomic = batch
            # The order matters: a Ctrl-C in between leaves an empty chunk, not a forgotten one.
            batch._chunks.append(chunk)
            batch._open[topic] = chunk
            index = next(chunk.numbers)
        chunk.left -= size
        chunk.put(index, key, value, special)
        return self._future(chunk, index), size

    def _submit_unit(self, outcome: BatchOutcome, size: int) -> None:
        """Wait for room for an atomic batch, and accept it as one unit, unless it was dropped meanwhile."""
        self._lifecycle.check_fork()
        pump = self._pump
        if pump.crowded() and not pump.is_current_thread():
            # Otherwise a program that commits without a pause takes nearly all of the interpreter's time, and no batch
            # is delivered.
            pump.wait(lambda: not pump.crowded(), min(_GIVE_WAY_S, self._config.max_block_s))
        if pump.ledger.ahead.is_far:
            self._wait_for_deliveries()
        deadline: float | None = None
        while True:
            self._lifecycle.raise_closed()
            pump.ledger.raise_undecidable()
            self._delivery.raise_wrong_cluster()
            self._delivery.raise_loss()
            self._delivery.raise_failure()
            with pump.ledger.lock:
                if pump.ledger.room(size + self._accumulator.needed_bytes()):
                    break
            deadline = self._wait_for_room(deadline, size)
        self._accumulator.accept_unit(outcome)
