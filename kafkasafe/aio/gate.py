"""The gate through which coroutines pass their records to the producer, one after the other, without blocking the loop.

The gate accepts a record in a single step of the loop, without an await inside the step. If a task is cancelled before
this step, its record is not accepted. All waits, for example for the encoding of a full open batch or for room in the
spool, precede the accepting step. After the step, the gate awaits nothing. The step takes no lock that another thread
holds for long, and no lock that a Ctrl-C could leave locked.

Most records take a fast path in `SafeProducer.send` itself. The fast path requires that the topic has an open batch,
that no other task waits to send, and that the quota of the loop's present iteration is not exhausted.

One iteration of the loop accepts at most `_QUOTA` records, so that a task that only sends does not starve other tasks.
"""

from __future__ import annotations

import asyncio
import collections
import enum
import itertools
import time
from typing import Any, Final

from kafkasafe._producing.admission import STEP_S
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.aio.futures import Owner, RecordFuture, waits_of
from kafkasafe.aio.threads import Worker, place_of

_QUOTA: Final = 512
_ROOM_S: Final = 0.25
"""Without a notification, the gate checks for room after this many seconds."""


class _Obstacle(enum.Enum):
    """Why the gate cannot accept a record in the present step."""

    FULL = enum.auto()
    """The topic's open batch must be encoded first, or is being encoded."""
    ROOM = enum.auto()
    """The spool is full."""
    AHEAD = enum.auto()
    """More than `run_ahead_bytes` are unacknowledged, although the cluster is answering."""


class _Turn:
    """A task's place in a line."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until `wake` is called."""
        self._waiter = loop.create_future()
        await self._waiter
        self._waiter = None

    def wake(self) -> bool:
        """Wake the task if it waits. Return whether it waited.

        If the task's loop is closed, the task cannot run, so do not wake it. When such a task is garbage-collected,
        `SendGate._leave` removes the task from its line and wakes the next tasks.
        """
        if self._waiter is None or self._waiter.done() or self._waiter.get_loop().is_closed():
            return False
        self._waiter.set_result(None)
        return True


class _Line:
    """Tasks that wait to send to one topic, in order of arrival."""

    def __init__(self) -> None:
        self._turns: collections.OrderedDict[_Turn, None] = collections.OrderedDict()
        self._awake: set[_Turn] = set()
        """Queued tasks that are not suspended now: new tasks, and woken tasks that have not begun to wait again."""
        self._full_since: float | None = None
        """Monotonic time, in seconds, at which the first task in the line first found no room; None if there is room.
        """

    def __bool__(self) -> bool:
        return bool(self._turns)

    def is_first(self, turn: _Turn) -> bool:
        """Return whether this task is the first in the line."""
        return next(iter(self._turns)) is turn

    def enter(self, turn: _Turn) -> None:
        self._turns[turn] = None
        self._awake.add(turn)

    def full_since(self, now: float) -> float:
        """Remember that there is no room now. Return the monotonic time at which the lack of room began."""
        if self._full_since is None:
            self._full_since = now
        return self._full_since

    def has_room(self) -> None:
        """Remember that the first task has found room."""
        self._full_since = None

    def leave(self, turn: _Turn) -> None:
        """Remove a task. May be called twice."""
        self._turns.pop(turn, None)
        self._awake.discard(turn)

    async def wait(self, turn: _Turn, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until `wake` wakes this task."""
        self._awake.discard(turn)
        await turn.wait(loop)

    def wake(self) -> None:
        """Wake the next few tasks, unless tasks that were woken earlier have not run yet."""
        if self._awake:
            return
        for turn in itertools.islice(self._turns, _QUOTA):
            if turn.wake():
                self._awake.add(turn)


class SendGate:
    """Accepts records one after the other (see the module's docstring). Its methods run on the loop's own thread."""

    def __init__(self, parts: ProducerParts, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.parts = parts
        self.open_batches = parts.accumulator.open_batches
        self.lines: dict[str, _Line] = {}
        """Waiting tasks, by topic."""
        self.left = 0
        """How many more records the gate accepts in this iteration of the loop. Before the first record of an
        iteration, `left` is 0 and `_counting` is False.
        """
        self.place = place_of(loop)
        self._loop = loop
        self._worker = worker
        self._counting = False
        self._iteration = 0

    def try_now(
        self, owner: Owner, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture | None:
        """Accept a record in this step. Return None if the record must wait; the caller then uses `wait_and_accept`."""
        if self.left <= 0 and self._counting:
            return None
        if self.lines and topic in self.lines:
            return None
        accepted = self._accept(owner, topic, key, value, special, size, patient=True)
        return None if isinstance(accepted, _Obstacle) else accepted

    async def wait_and_accept(
        self, owner: Owner, topic: str, key: bytes | None, value: bytes | None, special: Any, size: int
    ) -> RecordFuture:
        """Wait until all earlier records for the same topic are accepted, and accept this record."""
        turn = _Turn()
        line = self.lines.setdefault(topic, _Line())
        began = time.monotonic()
        patient_until = began + self.parts.config.max_block_s
        try:
            line.enter(turn)
            while True:
                if not line.is_first(turn):
                    await line.wait(turn, self._loop)
                    continue
                if self.left <= 0 and self._counting:
                    iteration = self._iteration
                    await asyncio.sleep(0)
                    if self._iteration == iteration:  # a Ctrl-C prevented `_count_anew`
                        self._count_anew()
                    continue
                patient = time.monotonic() < patient_until
                accepted = self._accept(owner, topic, key, value, special, size, patient=patient)
                if not isinstance(accepted, _Obstacle):
                    line.has_room()
                    return accepted
                if accepted is _Obstacle.AHEAD:
                    await self._wait_for_deliveries(patient_until)
                elif accepted is _Obstacle.FULL:
                    await self._seal(topic)
                else:
                    # This task's wait for room includes the time during which earlier tasks waited for room.
                    since = max(began, line.full_since(time.monotonic()))
                    await self._wait_for_room(since + self.parts.config.max_block_s)
        finally:
            try:
                self._leave(topic, line, turn)
            except BaseException:
                # A Ctrl-C interrupted `_leave`. Without a second call of `_leave`, the waiting tasks would wait for
                # ever.
                self._leave(topic, line, turn)
                raise

    def _leave(self, topic: str, line: _Line, turn: _Turn) -> None:
        """Remove a task from the line and wake the next tasks. May be called twice."""
        line.leave(turn)
        if line:
            line.wake()
        elif self.lines.get(topic) is line:
            del self.lines[topic]

    async def _wait_for_deliveries(self, until: float) -> None:
        """Wait a moment for acknowledgements, as `kafkasafe.SafeProducer` does. The wait only improves throughput."""
        parts = self.parts
        ledger = parts.delivery.pump.ledger
        await self._worker.run(parts.accumulator.seal_all)
        await waits_of(parts).wait(
            lambda: (
                ledger.failure is not None or parts.lifecycle.closed is not None or ledger.ahead.has_eased
            ),
            max(0.0, min(STEP_S, until - time.monotonic())),
            about=_Obstacle.AHEAD,
        )
        with ledger.lock:
            ledger.ahead.expire()

    async def _seal(self, topic: str) -> None:
        """Seal the topic's open batch, or wait until another thread has sealed the open batch."""
        accumulator = self.parts.accumulator
        open_batch = accumulator.open_batches.get(topic)
        if open_batch is not None:
            await self._worker.run(lambda: accumulator.seal_one(open_batch))

    async def _wait_for_room(self, deadline: float) -> None:
        """Wait a while for room in the spool.

        Raises:
            SpoolFullError: The deadline (monotonic, in seconds) has passed.
            KafkaTimeoutError: The deadline has passed, and callbacks of earlier records are too slow.
        """
        parts = self.parts
        now = time.monotonic()
        if now >= deadline:
            parts.admission.raise_no_room(parts.accumulator.needed_bytes())
        # Seal the open batches that linger, because they also occupy room.
        await self._worker.run(parts.accumulator.seal_all)
        ledger, needed = parts.delivery.pump.ledger, parts.accumulator.needed_bytes()
        await waits_of(parts).wait(
            lambda: (
                ledger.failure is not None
                or parts.lifecycle.closed is not None
                or (not parts.delivery.callbacks.full() and ledger.room.takes(needed))
            ),
            max(0.0, min(_ROOM_S, deadline - now)),
            about=_Obstacle.ROOM,
        )

    def _accept(
        self,
        owner: Owner,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        special: Any,
        size: int,
        *,
        patient: bool,
    ) -> RecordFuture | _Obstacle:
        """Put a record into the topic's open batch in one step. If the record has to wait, return the reason."""
        parts = self.parts
        parts.admission.check_size(size)
        open_batch = parts.accumulator.open_batches.get(topic)
        if open_batch is None:
            # Do not wait after `close` was called, because the worker ends soon.
            parts.lifecycle.raise_closed()
            if patient and parts.delivery.pump.ledger.ahead.is_far:
                return _Obstacle.AHEAD
            open_batch = parts.admission.add_open_batch_now(topic)
            if open_batch is None:
                return _Obstacle.ROOM
        # A new batch has room for a record of any size.
        if not open_batch.open or open_batch.left < min(size, parts.accumulator.open_batch_bytes):
            return _Obstacle.FULL
        index = open_batch.enter(size)
        if self.put(open_batch, index, key, value, special):
            return self.future(owner, open_batch, index)
        # Another thread has just sealed the batch without this record.
        return _Obstacle.FULL

    def put(
        self, open_batch: OpenBatch, index: int, key: bytes | None, value: bytes | None, special: Any
    ) -> bool:
        """Put a record into an open batch at this index. Return False if the record is not accepted."""
        if index < open_batch.most:
            open_batch.put(index, key, value, special)
            if not open_batch.open:
                return open_batch.took(index)
        if index >= open_batch.most - 1 or open_batch.left <= 0:
            open_batch.fill()
            parts = self.parts
            self._worker.put(lambda: parts.accumulator.seal_one(open_batch))
        return index < open_batch.most

    def future(self, owner: Owner, open_batch: OpenBatch, index: int) -> RecordFuture:
        """Return the future of a record that was just accepted, and count the record."""
        if not self._counting:
            # Call `call_soon` first: a Ctrl-C between the lines must not leave a quota that is never reset.
            self._loop.call_soon(self._count_anew)
            self.left = _QUOTA
            self._counting = True
        self.left -= 1
        future: RecordFuture = RecordFuture()
        return future.refer_to(owner, open_batch, index)

    def _count_anew(self) -> None:
        self.left = 0
        self._counting = False
        self._iteration += 1
