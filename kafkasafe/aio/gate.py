"""Where coroutines hand over their records: one after the other, without a wait that the loop would notice.

A record is accepted in one step of the loop, between two awaits: whoever is cancelled while waiting for that step has
nothing accepted, and after it nothing is awaited. What a step needs of others (an open batch that is full is encoded,
the spool is full) is waited for in front of it. It takes no lock that another thread has for long, and none that a
Ctrl-C could leave taken.

The step that most records take is in `SafeProducer.send` itself: the topic has an open batch, nobody waits in front of
it, and this iteration of the loop has something left.

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
from kafkasafe._producing.chunk import MAX_RECORDS, Chunk
from kafkasafe.aio.futures import RecordFuture, waits_of
from kafkasafe.aio.threads import Worker, place_of

if TYPE_CHECKING:
    from kafkasafe.aio.producer import SafeProducer

__all__ = ["Gate"]

_QUOTA: Final = 512
_ROOM_S: Final = 0.25
"""Room is looked for this often, should nobody tell."""


class _Obstacle(enum.Enum):
    """Why a record cannot be accepted in this step."""

    FULL = enum.auto()
    """The topic's open batch is to be encoded first, or is just now."""
    ROOM = enum.auto()
    """There is no room in the spool."""


class _Turn:
    __slots__ = ("awake", "waiter")

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None
        self.awake = False


class _Line:
    """Those who wait to send to one topic, in the order in which they came."""

    def __init__(self) -> None:
        self.turns: collections.OrderedDict[_Turn, None] = collections.OrderedDict()
        self.awake = 0

    def enter(self, turn: _Turn) -> None:
        self.turns[turn] = None
        turn.awake = True
        self.awake += 1

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
        self.producer = producer
        self.lines: dict[str, _Line] = {}
        """Those who wait, by topic."""
        self.left = 0
        """How many more records this iteration of the loop takes; 0 as well in front of its first one."""
        self.place = place_of(loop)
        self._loop = loop
        self._worker = worker
        self._counting = False
        self._iteration = 0

    def try_now(
        self, owner: SafeProducer, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture | None:
        """Accept a record in this step; None: it has to wait (`wait_and_accept`)."""
        if self.left <= 0 and self._counting:
            return None
        if self.lines and topic in self.lines:
            return None
        accepted = self._accept(owner, topic, key, value, special, size)
        return None if isinstance(accepted, _Obstacle) else accepted

    async def wait_and_accept(
        self, owner: SafeProducer, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture:
        """Accept it after those to the same topic that came before."""
        turn = _Turn()
        line = self.lines.setdefault(topic, _Line())
        deadline: float | None = None
        try:
            line.enter(turn)
            while True:
                if next(iter(line.turns)) is not turn:
                    line.sleep(turn)
                    turn.waiter = self._loop.create_future()
                    await turn.waiter
                    turn.waiter = None
                    continue
                if self.left <= 0 and self._counting:
                    iteration = self._iteration
                    await asyncio.sleep(0)
                    if self._iteration == iteration:  # a Ctrl-C came in front of it
                        self._count_anew()
                    continue
                accepted = self._accept(owner, topic, key, value, special, size)
                if not isinstance(accepted, _Obstacle):
                    return accepted
                deadline = await self._clear(accepted, topic, deadline)
        finally:
            try:
                self._leave(topic, line, turn)
            except BaseException:  # a Ctrl-C in the middle of it, and the others would wait for ever
                self._leave(topic, line, turn)
                raise

    def _leave(self, topic: str, line: _Line, turn: _Turn) -> None:
        """What was done of it before is not done again."""
        line.turns.pop(turn, None)
        line.sleep(turn)
        if line.turns:
            line.wake()
        elif self.lines.get(topic) is line:
            del self.lines[topic]

    async def _clear(self, obstacle: _Obstacle, topic: str, deadline: float | None) -> float | None:
        """Wait for what is in the way; returns when to give up waiting for room."""
        producer = self.producer
        if obstacle is _Obstacle.FULL:
            chunk = producer._chunks.get(topic)
            if chunk is not None:
                await self._worker.run(lambda: producer._seal_chunk(chunk))
        else:
            now = time.monotonic()
            if deadline is None:
                deadline = now + producer._config.max_block_s
            if now >= deadline:
                producer._raise_no_room(producer._needed())
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
        producer = self.producer
        if size > producer._max_record_bytes:
            raise kafka_errors.MessageSizeTooLargeError(producer._too_large(size))
        chunk = producer._chunks.get(topic)
        if chunk is None:
            chunk = producer._begin_chunk(topic)
            if chunk is None:
                return _Obstacle.ROOM
        # A new one takes a record of any size.
        if not chunk.open or chunk.left < min(size, producer._chunk_bytes):
            return _Obstacle.FULL
        index = next(chunk.numbers)
        chunk.left -= size
        if self.put(chunk, index, key, value, special):
            return self.future(owner, chunk, index)
        # It is sealed just now, without this record.
        return _Obstacle.FULL

    def put(self, chunk: Chunk, index: int, key: bytes | None, value: bytes | None, special: Any) -> bool:
        """Put a record at its number, for which there may be no room yet. False: it is not accepted."""
        if index < MAX_RECORDS:
            chunk.put(index, key, value, special)
            if not chunk.open:
                return chunk.took(index)
        if index >= MAX_RECORDS - 1 or chunk.left <= 0:
            chunk.left = -1
            producer = self.producer
            self._worker.put(lambda: producer._seal_chunk(chunk))
        return index < MAX_RECORDS

    def future(self, owner: SafeProducer, chunk: Chunk, index: int) -> RecordFuture:
        """Of a record that was accepted just now, which is counted."""
        if not self._counting:
            # In this order: a Ctrl-C in between must not leave nobody who counts anew.
            self._loop.call_soon(self._count_anew)
            self.left = _QUOTA
            self._counting = True
        self.left -= 1
        future: RecordFuture = RecordFuture()
        future._owner, future._chunk, future._index = owner, chunk, index
        return future

    def _count_anew(self) -> None:
        self.left = 0
        self._counting = False
        self._iteration += 1
