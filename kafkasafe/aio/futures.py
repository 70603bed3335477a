"""What `await producer.send(...)` returns."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

from kafka.producer.future import RecordMetadata

from kafkasafe import producer as threads
from kafkasafe._core.patience import timeout_of
from kafkasafe._io.awaiting import LoopWaits
from kafkasafe._io.spelling import Absent, Tidy, called, tidy_dir

if TYPE_CHECKING:
    from kafkasafe.aio.producer import SafeProducer

__all__ = ["RecordFuture"]

_new_tuple: Final[Any] = tuple.__new__
"""A named tuple without the call of a function in Python."""


# What kafka-python's futures have, and what there is instead.
DONE: Final = "as in asyncio it is `done()`, with parentheses; kafka-python's names are those of kafkasafe"
RESULT: Final = "`await` waits for it, `result()` has it if it is there"
EXCEPTION: Final = "as in asyncio `exception()` says it: None after success"
ADD_DONE_CALLBACK: Final = "use `add_done_callback`"


class RecordFuture(metaclass=Tidy):
    """The result of one `send`: `await` it for the record's metadata, or `await future.durable()`.

    Its names are asyncio.Future's; kafka-python's are those of `kafkasafe.RecordFuture`.

    It costs next to nothing until it is asked, and may be awaited any number of times, by several tasks. A task that is
    cancelled while it waits costs neither the record nor another task anything. Of the loop that its producer was
    started on; not thread-safe.
    """

    __slots__ = ("__weakref__", "_chunk", "_index", "_owner")

    __init__ = object.__init__
    _owner: SafeProducer
    _chunk: Any
    _index: int
    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        is_done = Absent(DONE)
        value = Absent(RESULT)
        get = Absent(RESULT)
        succeeded = Absent(EXCEPTION)
        failed = Absent(EXCEPTION)
        retriable = Absent("never: what can be retried is retried")
        add_callback = Absent(ADD_DONE_CALLBACK)
        add_errback = Absent(ADD_DONE_CALLBACK)
        add_both = Absent(ADD_DONE_CALLBACK)

    def _record(self) -> threads.RecordFuture:
        return self._owner._opened._future(self._chunk, self._index)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the cluster's acknowledgement.

        Returns:
            The metadata, as KafkaProducer has them: `topic`, `partition`, `offset`, `timestamp` …

        Raises:
            RejectedError: The cluster rejected it.
            DeliveryTimeoutError: `delivery_timeout_ms` ended. The record is still delivered.
            WrongClusterError: See `kafkasafe.RecordFuture.get`.
            SpoolError: The producer ended by an error.
        """
        chunk = self._chunk
        acked = chunk.acked
        if acked is not None:
            topic, partition, place, base, stamp, keys, values = acked
            fields = topic, partition, place, base + self._index, stamp, None, keys, values, -1
            return _new_tuple(RecordMetadata, fields)  # type: ignore[no-any-return]
        if chunk.parcels is not None:
            parcel, _ = chunk.locate(self._index)
            if parcel.done and parcel.error is None:
                metadata: RecordMetadata = chunk.metadata(self._index)
                return metadata
        record = self._record()
        if not record.is_done:
            owner = self._owner
            owner._seal_soon(chunk)
            yield from record._wait_in_loop(owner._waits_here())
        return record._result(None)

    async def durable(self, timeout: float | None = None) -> RecordFuture:  # noqa: ASYNC109  # as the other future's
        """Wait until the record is on disk (fsynced) or in the cluster: no crash can lose it from here on.

        Args:
            timeout: Seconds, None for ever.

        Returns:
            The future itself.

        Raises:
            KafkaTimeoutError: Not durable in time. It may still become so.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        record = self._record()
        if not record._durable_or_never():
            self._owner._seal_soon(self._chunk)
            await record._wait_in_loop(self._owner._waits_here(), timeout, durable=True)
        record._made_durable(timeout)
        return self

    @called
    def done(self) -> bool:
        """Whether the record was acknowledged, or rejected, or given up."""
        return self._record().is_done

    def result(self) -> RecordMetadata:
        """The metadata of a record that is done, or its error raised.

        Raises:
            InvalidStateError: It is not done.
        """
        record = self._record()
        if not record.is_done:
            raise asyncio.InvalidStateError("The record has no fate yet: await the future")
        return record._result(None)

    @called
    def exception(self) -> BaseException | None:
        """Why a record that is done was not delivered; None when it was.

        Raises:
            InvalidStateError: It is not done.
        """
        record = self._record()
        if not record.is_done:
            raise asyncio.InvalidStateError("The record has no fate yet: await the future")
        return record.exception

    @staticmethod
    def cancel(msg: object = None) -> bool:  # noqa: ARG004  # asyncio's
        """What was accepted is delivered: nothing is cancelled. Cancel the task that waits, or let it give up.

        Returns:
            False, as of a future that can no longer be cancelled.
        """
        return False

    @staticmethod
    def cancelled() -> bool:
        """Never: what was accepted is delivered."""
        return False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The one of its producer."""
        return self._owner._loop_of()

    def add_done_callback(
        self, call: Callable[[RecordFuture], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call `call(future)` on the loop when the record is done; soon if it is."""
        self._owner._call_when_done(self, call, context)

    def remove_done_callback(self, call: Callable[[RecordFuture], object]) -> int:
        """Not to be called any more; returns how many times it would have been."""
        return self._owner._call_no_more(self, call)

    def __repr__(self) -> str:
        return repr(self._record())


def waits_of(producer: threads.SafeProducer) -> LoopWaits:
    """The waits of the running loop for a producer."""
    return LoopWaits.of(producer._pump.ledger.waiters, asyncio.get_running_loop())
