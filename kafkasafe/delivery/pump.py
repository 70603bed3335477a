"""The pump: the thread that runs the engine, the thread's inbox, and the methods with which callers submit batches and
wait.

Callers submit encoded batches (`Parcel`) through a queue. The network thread posts replies through the same queue. No
other thread uses a journal or a spool. In one turn, the pump takes all messages, lets the engine work
(`engine/engine.py`), and sleeps until a message arrives or a timer is due. The turns also implement group commit: all
batches that arrive during an fsync share the next fsync.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import mmap
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.cluster.api import Cluster, in_words
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.clock import SystemClock
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.engine import Engine
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.left_at_end import LeftAtEnd
from kafkasafe.delivery.engine.messages import (
    AdoptAsked,
    Decided,
    LookAsked,
    Message,
    Preceded,
    SpillAsked,
    TakeOver,
)
from kafkasafe.delivery.engine.names import refused_names
from kafkasafe.delivery.engine.parcels import Choose
from kafkasafe.delivery.process_readings import NUMBERS
from kafkasafe.delivery.pump_state import PumpState, state_of
from kafkasafe.errors import ForkedProcessError, SpoolError, UsageError
from kafkasafe.health.states import DISK_STUCK_S, ProducerSeen
from kafkasafe.limits.patience import Patience
from kafkasafe.logs import apart
from kafkasafe.process.locks import new_lock
from kafkasafe.process.wake_flag import WakeFlag
from kafkasafe.spool.files import Files
from kafkasafe.spool.lanes import LaneLock, SpoolDirectory
from kafkasafe.spool.own_lane import OwnLane
from kafkasafe.spool.refusals import RefusedDestination

_BACKLOG: Final = 64
"""From this number of waiting messages on, callers should pause. A turn of the pump first handles all waiting messages,
so more messages would delay all other work.
"""
_CANCEL_S: Final = 2.0
"""After Ctrl-C at its start, a pump may continue its current work for this long."""
_SPARE_BYTES: Final = 4 * 1024 * 1024
"""Address space that a pump frees when it ends by an error. No page of it is ever touched, so it takes no memory."""


@dataclass(frozen=True, slots=True)
class _Retire:
    """The program dropped the producer, or a hook closed it. The pump ends when all records are delivered, when
    `patience` is over, or at `deadline` (monotonic time in seconds).
    """

    began: float
    patience: Patience
    deadline: float


@dataclass(frozen=True, slots=True)
class _SetPatience:
    """Changes the `patience` of a retiring pump. A caller that waits for the pump to end sends this message."""

    patience: Patience


class Pump:
    """Runs the engine on its own thread.

    Args:
        config: Options.
        cluster: The brokers. The pump starts it.
        directory: The opened spool directory.
        files: The disk.
        choose: (topic, partitions, keys, values) → partition of each record. The engine calls it for records that were
            accepted before their topic was known.
        seal_due: Called in each turn with the current time. Encodes the open batches whose `linger_ms` has passed, and
            returns the time of the next necessary call.
        on_topic: Called with a topic and its partition count, once a partition is chosen for every accepted record of
            the topic.
        released: Context manager that is entered while a caller waits, and releases the locks that the caller's thread
            holds. For example, the caller may be a signal handler that interrupted code with locks.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        directory: SpoolDirectory,
        files: Files,
        *,
        choose: Choose,
        seal_due: Callable[[float], float],
        on_topic: Callable[[str, int], None],
        released: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._seal_due = seal_due
        self._released = released
        self._inbox: collections.deque[Message | _Retire | _SetPatience] = collections.deque()
        self._wake = WakeFlag()
        self._looks = itertools.count(1)
        self._context = EngineContext(
            config,
            cluster,
            directory,
            files,
            post=self._post,
            is_own_thread=self.is_current_thread,
            clock=SystemClock(),
            sleep=time.sleep,
            random_fraction=random.random,
            beside=self._beside,
        )
        self.engine = Engine(
            self._context, choose=choose, on_topic=on_topic, newest_reading=lambda: NUMBERS.newest
        )
        self.ledger = self.engine.ledger
        self._retiring: _Retire | None = None
        self._then: Callable[[], None] = lambda: None
        self.refused_sends = 0
        self._begun = new_lock()
        """Taken once: by the thread when it begins, or by `cancel` before that."""
        # If the process has no memory left, the end of the pump uses this address space. Without it, callers might
        # never get the error, and CPython 3.11 can hang with the GIL: it repeats a jump to an exception handler for
        # ever, because it cannot allocate the int that this jump needs.
        self._spare: mmap.mmap | None = mmap.mmap(
            -1, _SPARE_BYTES, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ
        )
        self._config = config
        self._log = self._context.log
        self.stats = self._context.stats
        self._thread = threading.Thread(
            target=self._run, name=f"kafkasafe-pump-{config.client_id}", daemon=True
        )

    def open(self, lock: LaneLock) -> None:
        """Opens the producer's own lane. Runs on the caller's thread, so that the caller gets the errors.

        Raises:
            SpoolError: The lane cannot be opened.
        """
        self.engine.open(lock)
        own = self._context.own
        self.own_lane = OwnLane(own.spool.lane_id, own.lock.path.absolute(), self._config.in_memory)

    def start(self) -> None:
        """Starts the threads. From this call on, only the pump's thread may use the journal."""
        self.engine.listen()
        self._context.cluster.start()
        self._thread.start()

    def cancel(self) -> bool:
        """Undoes a call of `start` that raised an error: after Ctrl-C, the thread may run, or may still begin. Returns
        whether the thread no longer uses the lanes.
        """
        # A thread that finds the lock taken ends at once.
        return self._begun.acquire(blocking=False) or self.stop(_CANCEL_S)

    @property
    def lane(self) -> str:
        """Name of the producer's own lane."""
        return self._context.own.name

    def unchosen_topics(self) -> list[str]:
        """Topics with records that wait for their partitions to be chosen."""
        return self._context.own.journal.views.unchosen_topics()

    def remembered_topics(self) -> dict[str, int]:
        """The partition counts from earlier incarnations, by topic. Leaves out topics that have waiting records."""
        journal = self._context.own.journal
        return {
            name: topic.partition_count
            for name, topic in journal.views.topics.items()
            if topic.partition_count > 0 and not journal.views.waiting(name)
        }

    def is_backlogged(self) -> bool:
        """Whether callers should pause before they submit more records, because too many messages wait."""
        return len(self._inbox) >= _BACKLOG

    def wake(self) -> None:
        """Wakes the pump."""
        self._wake.set()

    def _post(self, message: Message | _Retire | _SetPatience) -> None:
        self._inbox.append(message)
        # The pump's own thread checks the inbox before it sleeps, so waking it would only cause an idle turn.
        if not self.is_current_thread():
            self._wake.set()

    def _beside(self, job: Callable[[], None]) -> None:
        """Runs a slow job on a thread of its own. If the process cannot start another thread, the job runs on the
        current thread, and callers wait longer.
        """
        thread = threading.Thread(
            target=apart()(job), name=f"kafkasafe-look-{self._config.client_id}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._log.limited(
                logging.WARNING,
                "no_thread",
                "",
                "The process cannot start another thread. The producer works without it, so calls may wait longer",
            )
            try:
                thread.run()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), thread)))

    def wait(self, ready: Callable[[], bool], timeout: float | None, *, choosy: bool = False) -> bool:
        """Waits until `ready()` returns True. Returns False on timeout.

        The caller's thread evaluates `ready` without `lock`. So `ready` may only read values that change atomically.
        The pump may make several changes while it holds `lock`. If one of these changes makes `ready` return True, this
        method returns only after the pump has made all of these changes. With `choosy`, the pump evaluates `ready`
        before it wakes the caller, so the pump must notify callers after each change that can affect `ready`.
        """
        if timeout is not None:
            timeout = min(timeout, threading.TIMEOUT_MAX)
        if self.is_current_thread():
            if ready():
                return True
            raise UsageError(
                "on_event and on_rejected run on the producer's own thread: waiting for deliveries there would never"
                " end. Nothing was changed. send() is possible there; wait for deliveries in another thread"
            )
        with self._released():
            done = (
                self.ledger.waiters.wait_for(
                    lambda: ready() or self.ledger.failure is not None, timeout, choosy=choosy
                )
                and ready()
            )
            with self.ledger.lock:
                return done

    def earlier(self, transactional_id: str) -> tuple[u.Unit, m.Ended] | None:
        """The last atomic batch that an earlier incarnation ended under a user's transactional id. Call it before
        `start`.
        """
        return self._context.own.journal.units.replay.earlier.get(transactional_id)

    def take_over(self, transactional_id: str) -> None:
        """Asks the engine to let the producer's own lane take over a transactional id. `Ledger.names` shows when the
        lane has taken over the id.
        """
        self._post(TakeOver(transactional_id))

    def spill_all(self) -> None:
        """Writes all accepted records to disk now (`spool="on_error"`)."""
        self._post(SpillAsked())

    def ask_look(self) -> int:
        """Ask the engine to check whether the producer's own lane is in its place, where the next start will look for
        it. See `has_looked`.
        """
        number = next(self._looks)
        self._post(LookAsked(number))
        return number

    def has_looked(self, number: int) -> bool:
        """Whether check `number` has succeeded: the producer's own lane was in its place, or the engine restored it.
        After the end of the pump, always True.
        """
        return self.engine.looks.looked >= number or not self._thread.is_alive()

    @property
    def displaced(self) -> int:
        """Number of displaced lanes that the engine could not restore yet. The next start would not find them."""
        return self.engine.places.displaced

    def adopt_now(self) -> None:
        """Asks the engine to adopt lanes now, because a caller waits for records that were left in other lanes."""
        if self.ledger.lanes.left_behind:
            self._post(AdoptAsked())

    def no_room(self) -> None:
        """Counts a send that found no room."""
        self.refused_sends += 1

    def state(self) -> PumpState:
        """The state for a scrape of the metrics. Callable from any thread. Numbers may be slightly out of date."""
        return state_of(self._context, self.engine)

    def seen(
        self, closed: BaseException | None, *, needed_bytes: int, callbacks_behind: bool
    ) -> ProducerSeen:
        """The state for a health probe. Any thread may call this method. The method takes no lock, and asks neither the
        disk nor the brokers.

        Args:
            closed: Why the producer accepts no more records; None while it accepts them.
            needed_bytes: Bytes that the next batch may need, in addition to the bytes of the open batches.
            callbacks_behind: Whether calls of `send` wait for callbacks of earlier records.
        """
        config, ledger = self._config, self.ledger
        failure, stranger, network = ledger.failure, ledger.wrong_cluster, self._context.cluster.last_error
        lanes = list(self._context.lanes)
        displaced = self.engine.places.in_trouble(self._context.own)  # `PlaceKeeper` sets the reason first
        in_memory = sum(parcel.count for parcel in list(ledger.undurable.values()) if not parcel.done)
        on_disk = 0 if config.in_memory else sum(lane.journal.views.spooled_records for lane in lanes)
        return ProducerSeen(
            closed="" if closed is None else str(closed),
            forked=isinstance(closed, ForkedProcessError),
            failure=self._end_of_thread() if failure is None else str(failure),
            wrong_cluster="" if stranger is None else str(stranger),
            undecidable=[error.evidence for _, error in list(ledger.errors.undecided.values())],
            disk_trouble=ledger.room.disk_trouble,
            disk_full=ledger.room.disk_full,
            displaced=displaced,
            undurable_s=ledger.undurable.age_s(),
            disk_patience_s=DISK_STUCK_S + (config.spool_after_s if config.spool == "on_error" else 0.0),
            capacity=ledger.room.capacity,
            needed_bytes=needed_bytes,
            in_memory=config.in_memory,
            spool_bytes=ledger.room.kept_bytes,
            spool_max_bytes=config.spool_max_bytes,
            callbacks_behind=callbacks_behind,
            blocked=[
                *map(str, (*self.refused_topics.values(), *self.refused_partitions.values())),
                *(str(each) for each in refused_names(lanes) if each.confirmed),
            ],
            damaged=[f"{topic}-{partition}" for topic, partition in list(ledger.errors.damage)],
            losses=len(ledger.errors.losses),
            connected=self._context.cluster.connected,
            network_error=None if network is None else in_words(network),
            waiting_records=on_disk + in_memory,
            oldest_s=ledger.oldest_age_s(),
        )

    def _end_of_thread(self) -> str:
        """A text that says that the thread has ended; empty while the thread runs."""
        return "Its thread has ended" if self.ended() else ""

    def resolve_undecidable(self, *, resend: bool) -> None:
        """Decides undecidable batches: sends them again (they may be in the log twice), or treats them as delivered.

        The decision covers the batches that the last UndecidableError named or, if no such error was raised since the
        last decision, all undecidable batches. For a batch that becomes undecidable after that error, call this method
        again.
        """
        # Remove the errors now, because `send` must not raise them any more. The engine handles the decision later.
        decided = self.ledger.errors.take_shown()
        self._post(Decided(decided, resend=resend))

    def stop(self, timeout_s: float, deadline: float | None = None) -> bool:
        """Ends the thread, and closes lanes and network. The lanes' next owner delivers the batches on disk.

        Args:
            timeout_s: How long the pump may continue its current work.
            deadline: Monotonic time, in seconds, after which the pump no longer retries writes to a failing disk.
        """
        self._context.close_state.close(deadline)
        self._wake.set()
        if self.is_current_thread():
            return False
        with self._released():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._context.close_state.give_up()
                self._wake.set()
                self._thread.join(5.0)
        return not self._thread.is_alive()

    def retire(self, patience: Patience, then: Callable[[], None], deadline: float = float("inf")) -> None:
        """Lets the pump end when all records are delivered, or when `patience` ends the wait.

        Takes no lock, because the garbage collector may call it.

        Args:
            patience: How long the pump waits for deliveries, counted from this call.
            then: Called on the pump's thread at its end.
            deadline: Monotonic time, in seconds, at which the wait ends even if records are still being delivered.
        """
        began = time.monotonic()
        self._then = then
        self._post(_Retire(began, patience, deadline))

    def come_after(self, other: Pump) -> None:
        """Holds back this producer's further records until the records that a dropped producer accepted are delivered.

        Takes no lock, because the garbage collector may call it.

        Args:
            other: The pump of the dropped producer.
        """
        predecessor = other.engine.predecessor
        predecessor.follow(lambda: self._post(Preceded(predecessor)))

    def set_patience(self, patience: Patience, timeout_s: float) -> bool:
        """Replaces the `patience` of a retiring pump. The new `patience` counts from the call of `retire`, too. Returns
        whether the pump ended within `timeout_s`.
        """
        self._post(_SetPatience(patience))
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Waits for the end of the thread. Returns whether it has ended."""
        self._thread.join(timeout_s)
        return self.ended()

    def _step(self, message: Message | _Retire | _SetPatience) -> None:
        match message:
            case _Retire():
                # Encode the open batches, because the dropped producer encodes nothing any more.
                self._seal_due(float("inf"))
                if self._config.spool == "on_error":
                    self.engine.disk.spill(0.0)
                self.engine.drop()
                self._retiring = message
            case _SetPatience(patience):
                if self._retiring is not None:
                    self._retiring = replace(self._retiring, patience=patience)
            case _:
                self.engine.step(message)

    def _retired(self) -> bool:
        """Whether a retiring pump should end now."""
        if self._retiring is None:
            return False
        hopeless = self.ledger.errors.undecidable or self.ledger.wrong_cluster is not None
        return (
            (self.idle() and not self._inbox)
            or hopeless
            or self._retires_at(self._retiring) <= time.monotonic()
        )

    def _retires_at(self, retiring: _Retire) -> float:
        return min(self.patience_ends(retiring.patience, retiring.began), retiring.deadline)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the pump's own thread, as hooks and handlers do."""
        return threading.current_thread() is self._thread

    def ended(self) -> bool:
        """Whether the thread has ended. After the end of the thread, records get no outcomes."""
        return not self._thread.is_alive()

    @apart()
    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        orderly = True
        try:
            self.engine.begin()
            while not self._context.close_state.stop:
                self._turn()
            self._last_turn()
        except SpoolError as error:
            try:
                # Log no traceback: the user needs only the message, which says which records are safe, and what to do.
                self._log.error(
                    "The producer ended: %s", error, error=type(error).__name__, event="producer_ended"
                )
            finally:
                self.ledger.fail(error)
        except BaseException as error:
            self._spare = None
            orderly = False
            try:
                self._log.exception(
                    "The producer ended by an error; %s",
                    "unacknowledged records are lost with it, unless the cluster has them"
                    if self._config.in_memory
                    else "everything durable is safe in the spool",
                    event="producer_ended",
                )
            finally:  # without memory, the log fails, too
                self.ledger.fail(error)
        finally:
            self.engine.shut(orderly=orderly)
            self._then()
            self._then = lambda: None

    def _turn(self) -> None:
        self._wake.clear()
        due = self._seal_due(time.monotonic())
        jobs = len(self._inbox)
        for _ in range(jobs):
            self._step(self._inbox.popleft())
        self.engine.turn()
        if self._context.own_cluster.stranger is not None:
            # Write all accepted records to disk, then end this producer.
            self._seal_due(float("inf"))
            if not self._inbox:
                if self._config.spool == "on_error":
                    self.engine.disk.spill(0.0)
                    self.engine.drive(self._context.own)
                raise self._context.own_cluster.stranger
        if self._retired():
            self._context.close_state.end()
        if self._inbox or self._context.close_state.stop:
            return
        if self._retiring is not None:
            due = min(due, self._retires_at(self._retiring))
        due = min(due, self.engine.due)
        self._wake.wait(max(0.0, min(due - time.monotonic(), 5.0)))

    def _last_turn(self) -> None:
        """Writes all accepted records to disk, even if a hook called `close`, or Ctrl-C interrupted `close`."""
        self._seal_due(float("inf"))
        if self._inbox and not self._context.close_state.abandon:
            for _ in range(len(self._inbox)):
                self._step(self._inbox.popleft())
            if self._config.spool == "on_error":
                self.engine.disk.spill(0.0)
            for lane in list(self._context.lanes):
                self.engine.drive(lane)

    @property
    def refused_topics(self) -> Mapping[str, RefusedDestination]:
        """Topics that the cluster refuses as a whole, by name. A second answer has confirmed each refusal."""
        return self.engine.endings.refused_topics

    @property
    def refused_partitions(self) -> Mapping[tuple[str, int], RefusedDestination]:
        """Partitions that the cluster refuses although it accepts their topics. A second answer has confirmed each
        refusal.
        """
        return self.engine.endings.refused_partitions

    @property
    def left(self) -> LeftAtEnd:
        """What the producer left when it ended: pending records on disk, and partitions with possible losses."""
        return self.engine.left

    @property
    def lanes(self) -> Sequence[Lane]:
        """The producer's own lane and the adopted lanes."""
        return tuple(self._context.lanes)

    @property
    def producer_id_refusal(self) -> str:
        """Why the producer's own lane has no producer id, with the remedy. Empty if no request has failed."""
        return self._context.own.producer_id.refusal

    def doubts(self) -> list[str]:
        """The unanswered questions about acknowledged records of the producer's own lane. Each is a text that can
        follow "whether", with the reason why the question is unanswered.
        """
        return [
            f"{topic}-{partition} still has all acknowledged records ({why})"
            for topic, partition, why in self._context.own.journal.views.doubts()
        ]

    def refused(self, topic: str | None = None) -> list[RefusedDestination]:
        """Destinations (of this topic, or of all topics) that wait because the cluster refuses them, oldest first.
        Callable from any thread.
        """
        return self.engine.endings.refused(topic)

    def refresh_topic(self, topic: str) -> None:
        """Requests a topic's metadata. If brokers create topics automatically, this request creates the topic."""
        self.engine.topics.want(topic)

    def idle(self) -> bool:
        """Whether `close` has nothing left to wait for. Any thread may call this method."""
        return self.engine.idle()

    def patience_ends(self, patience: Patience, began: float) -> float:
        """The deadline, in monotonic seconds, of a caller that began to wait for deliveries at `began`."""
        return self.engine.patience_ends(patience, began)
