"""Where coroutines hand over their records: one after the other, without a wait that the loop would notice.

A record is accepted in one step of the loop, between two awaits: whoever is cancelled while waiting for that step has
nothing accepted, and after it nothing is awaited. What a step needs of others (an open batch that is full is encoded,
the spool is full, another thread has the producer's lock) is waited for in front of it.

One iteration of the loop accepts `_QUOTA` records at most, or a task that only sends would never let another one run.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors

from kafkasafe import producer as threads
from kafkasafe.aio.futures import RecordFuture, waits_of
from kafkasafe.aio.threads import Worker

if TYPE_CHECKING:
    from kafkasafe.aio.producer import SafeProducer

__all__ = ["Gate"]

_QUOTA: Final = 256
_ROOM_S: Final = 0.25
"""Room is looked for this often, should nobody tell."""


class _Obstacle(enum.Enum):
    """Why a record cannot be accepted in this step."""

    BUSY = enum.auto()
    """Another thread has the lock: it encodes."""
    FULL = enum.auto()
    """The topic's open batch is to be encoded first."""
    ROOM = enum.auto()
    """There is no room in the spool."""


class _Turn:
    __slots__ = ("awake", "waiter")

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self.awake = True


class _Line:
    """Those who wait to send to one topic, in the order in which they came."""

    def __init__(self) -> None:
        self.turns: collections.OrderedDict[_Turn, None] = collections.OrderedDict()
        self.awake = 0

    def sleep(self, turn: _Turn) -> None:
        if turn.awake:
            turn.awake = False
            self.awake -= 1

    def wake(self) -> None:
        """The next few, unless some of those woken before have not come to it yet."""
        if self.awake:
            return
        for turn in itertools.islice(self.turns, _QUOTA):
            if turn.waiter is not None and not turn.waiter.done():
                turn.waiter.set_result(None)
                turn.awake = True
                self.awake += 1


class Gate:
    """See the module. On the loop's own thread.

    Args:
        producer: Accepts.
        worker: Encodes.
        loop: The one.
    """

    def __init__(
        self, producer: threads.SafeProducer, worker: Worker, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._producer = producer
        self._worker = worker
        self._loop = loop
        self._lines: dict[str, _Line] = {}
        self._left = 0
        """How many more records this iteration of the loop takes."""
        self._counting = False

    def try_now(
        self, owner: SafeProducer, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture | None:
        """Accept a record in this step; None: it has to wait (`wait_and_accept`)."""
        if self._left <= 0 and self._counting:
            return None
        if self._lines and topic in self._lines:
            return None
        accepted = self._accept(owner, topic, key, value, special, size)
        return None if isinstance(accepted, _Obstacle) else accepted

    async def wait_and_accept(
        self, owner: SafeProducer, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture:
        """Accept it after those to the same topic that came before."""
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = _Line()
        turn = _Turn()
        line.turns[turn] = None
        line.awake += 1
        deadline: float | None = None
        try:
            while True:
                if next(iter(line.turns)) is not turn:
                    line.sleep(turn)
                    turn.waiter = self._loop.create_future()
                    await turn.waiter
                    turn.waiter = None
                    continue
                if self._left <= 0 and self._counting:
                    await asyncio.sleep(0)
                    continue
                accepted = self._accept(owner, topic, key, value, special, size)
                if not isinstance(accepted, _Obstacle):
                    return accepted
                deadline = await self._clear(accepted, topic, deadline)
        finally:
            line.sleep(turn)
            del line.turns[turn]
            if line.turns:
                line.wake()
            elif self._lines.get(topic) is line:
                del self._lines[topic]

    async def _clear(self, obstacle: _Obstacle, topic: str, deadline: float | None) -> float | None:
        """Wait for what is in the way; returns when to give up waiting for room."""
        producer = self._producer
        if obstacle is _Obstacle.BUSY:
            await self._worker.run(lambda: _pass(producer))
        elif obstacle is _Obstacle.FULL:
            chunk = producer._chunks.get(topic)
            if chunk is not None:
                await self._worker.run(lambda: producer._seal_chunk(chunk))
        else:
            now = time.monotonic()
            if deadline is None:
                deadline = now + producer._config.max_block_s
            if now >= deadline:
                producer._raise_no_room()
            # What lingers takes room as well.
            await self._worker.run(producer._seal_all)
            ledger, needed = producer._pump.ledger, producer._needed()
            await waits_of(producer).wait(
                lambda: (
                    ledger.failure is not None
                    or producer._closed is not None
                    or (not producer._callbacks.full() and ledger.room(needed))
                ),
                max(0.0, min(_ROOM_S, deadline - now)),
                about=_Obstacle.ROOM,
            )
        return deadline

    def _accept(
        self, owner: SafeProducer, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture | _Obstacle:
        """One step: the record is in the topic's open batch, or it is not and this says why."""
        producer = self._producer
        if size > producer._max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(producer._too_large(size))
        lock = producer._lock
        try:
            # Whoever seals has it: so while it is ours the open batch stays open.
            if not lock.acquire(blocking=False):
                return _Obstacle.BUSY
            chunk = producer._chunks.get(topic)
            if chunk is None:
                chunk = producer._open_chunk(topic)
                if chunk is None:
                    return _Obstacle.ROOM
            elif not chunk.open or chunk.left < size:
                return _Obstacle.FULL
            index = next(chunk.numbers)
            if index >= threads._MAX_RECORDS:
                chunk.left = -1
                return _Obstacle.FULL
            chunk.left -= size
            try:
                if key is not None:
                    chunk.keys[index] = key
                if special is not None:
                    chunk.special[index] = special
                chunk.values[index] = value
            except IndexError:
                chunk.put(index, key, value, special)
        finally:
            # Also where a Ctrl-C came right after the acquire().
            if lock._is_owned():  # type: ignore[attr-defined]
                lock.release()
        if chunk.left <= 0 or index >= threads._MAX_RECORDS - 1:
            chunk.left = -1
            self._worker.put(lambda: producer._seal_chunk(chunk))
        if not self._counting:
            self._counting, self._left = True, _QUOTA
            self._loop.call_soon(self._count_anew)
        self._left -= 1
        future: RecordFuture = RecordFuture()
        future._owner, future._chunk, future._index = owner, chunk, index
        return future

    def _count_anew(self) -> None:
        self._counting = False


def _pass(producer: threads.SafeProducer) -> None:
    with producer._lock:
        pass
