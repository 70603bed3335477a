"""The state that all parts of the engine share: ports, lanes, timers, counters, and how the engine ends."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Final

from kafkasafe import events
from kafkasafe.cluster.api import NO_TOPIC_ID, Clock, Cluster, PartitionInfo
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.clock import SleepingClock
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import Message
from kafkasafe.errors import WrongClusterError
from kafkasafe.journal import Moment
from kafkasafe.limits.patience import Patience
from kafkasafe.logs import EventLog
from kafkasafe.spool.files import Files
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.stats import Stats

log = EventLog("producer")

_REFUSED_PAUSE_S: Final = 30.0
"""Longest pause between two attempts if only an operator can end a refusal: by granting a permission or creating a
topic.
"""


class DeletedTopics:
    """The deleted topics for which no records wait, with the time of the first report that each topic is missing.
    `TopicKeeper` changes them.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._since

    def note(self, topic: str, now: float) -> float:
        """Note that, at the time `now`, brokers reported the topic as unknown. Return the time of the first such
        report.
        """
        return self._since.setdefault(topic, now)

    def forget(self, topic: str) -> None:
        """Remove a topic, because the topic exists again, records wait for it, or the journal has forgotten it."""
        self._since.pop(topic, None)


class Timers:
    """Messages to process after a delay. Messages that are due at the same time are processed in the order in which
    they were added.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count()

    @property
    def next_at(self) -> float:
        """Monotonic time, in seconds, at which the next message is due; infinity if none exists."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def add(self, delay_s: float, message: Message) -> None:
        """Process `message` after `delay_s`."""
        heapq.heappush(self._waiting, (self._clock.monotonic() + delay_s, next(self._numbers), message))

    def take(self, now: float) -> Message | None:
        """Remove and return the next message, if it is due at the time `now`; otherwise return None."""
        if not self._waiting or self._waiting[0][0] > now:
            return None
        return heapq.heappop(self._waiting)[2]


class OwnCluster:
    """The producer's own cluster, for which it accepts records. `Binding` changes this object; any thread may read it.

    Attributes:
        cluster_id: Id of this cluster; None until brokers of this cluster have answered, and the spool directory is
            bound to the cluster.
        stranger: The error that ends the producer if the brokers belong to another cluster; None otherwise.
        answered: Whether a metadata answer has come, and was not from a stranger. Before that, the engine asks the
            brokers for nothing but metadata: a producer id of another cluster could be the id of a batch in this
            cluster, and another cluster's log does not show what this cluster's log has.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.stranger: WrongClusterError | None = None
        self.answered = False
        self._held: list[tuple[Lane, Callable[[], None]]] = []

    def bind(self, cluster_id: str) -> None:
        """Note that the brokers and the spool directory belong to this cluster."""
        self.cluster_id = cluster_id

    def meet_stranger(self, error: WrongClusterError) -> None:
        """End the producer, because the brokers belong to a different cluster than the spool directory."""
        self.stranger = error
        self._held.clear()

    def hold(self, lane: Lane, send: Callable[[], None]) -> None:
        """Call `send`, which sends a lane's requests, when the brokers have turned out to be this cluster's."""
        self._held.append((lane, send))

    def forget(self, lane: Lane) -> None:
        """Forget the requests of a lane that this producer hands back."""
        self._held = [held for held in self._held if held[0] is not lane]

    def note_answer(self) -> None:
        """Record that a metadata answer has come, and was not from a stranger. Send the requests that were held."""
        self.answered = True
        held, self._held = self._held, []
        for _, send in held:
            send()


class DeliveryProgress:
    """When deliveries last made progress. This decides how long callers wait. Any thread may call `patience_ends`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        """Time of the last progress: news about a batch, a producer id, or a topic's metadata. Monotonic seconds."""
        self._pause_until = 0.0
        """Monotonic time, in seconds, at which the longest pause with a known end is over."""
        self._read_to: dict[tuple[str, int], int] = {}
        """How far the log of each partition was read (exclusive)."""

    def note(self) -> None:
        """Note that deliveries have just made progress."""
        self._last = self._clock.monotonic()

    def note_read(self, topic: str, partition: int, next_offset: int) -> None:
        """Note that a partition's log was read up to `next_offset` (exclusive).

        1. A broker refuses a batch each time. After each refusal, the producer reads the end of the log, and does not
           find the batch there.
        2. If reading the same offsets again counted as progress, a caller in `close` would wait for ever.
        """
        if next_offset > self._read_to.get((topic, partition), -1):
            self._read_to[topic, partition] = next_offset
            self.note()

    def pause(self, until: float) -> None:
        """Note a pause that ends at the monotonic time `until`, in seconds."""
        self._pause_until = max(self._pause_until, until)

    def patience_ends(self, patience: Patience, began: float, *, paused: bool = False) -> float:
        """The time, in monotonic seconds, at which a caller should stop waiting for deliveries.

        Args:
            patience: The caller's patience.
            began: When the caller began to wait.
            paused: Whether a pause with an unknown end is under way.
        """
        until = float("inf") if paused else self._pause_until
        return patience.ends_at(began, self._last, until)


class CloseState:
    """How far the closing of a producer has progressed. Any thread may read this object.

    Attributes:
        closing: Whether `close` was called, after which the engine begins no work that takes long.
        stop: Whether the pump ends after its current work.
        abandon: Whether the engine should begin no more work, because the current work takes too long after `close`.
        close_by: Monotonic time, in seconds, until which the engine waits for a failing disk.
    """

    def __init__(self) -> None:
        self.closing = False
        self.stop = False
        self.abandon = False
        self.close_by = float("inf")

    def close(self, close_by: float | None) -> None:
        """Note that `close` was called. If `close_by` is None, the former deadline remains."""
        if close_by is not None:
            self.close_by = close_by
        self.closing = True
        self.stop = True

    def end(self) -> None:
        """End the pump after its current work, because everything is delivered or the time for deliveries is over."""
        self.stop = True

    def give_up(self) -> None:
        """Begin nothing more."""
        self.abandon = True


class EngineContext:
    """See the module.

    Args:
        config: Options.
        cluster: The brokers.
        directory: The opened spool directory.
        files: The disk.
        post: Puts a message into the inbox, from any thread.
        is_own_thread: Whether the current thread is the thread that runs the engine.
        clock: The clock.
        sleep: Waits for this many seconds. The engine calls this function only where it must wait for a successful
            write.
        random_fraction: Returns a number in [0, 1), for the length of pauses.
        beside: Runs a slow function on a thread of its own.
    """

    def __init__(
        self,
        config: ProducerConfig,
        cluster: Cluster,
        directory: SpoolDirectory,
        files: Files,
        *,
        post: Callable[[Message], None],
        is_own_thread: Callable[[], bool],
        clock: Clock,
        sleep: Callable[[float], None],
        random_fraction: Callable[[], float],
        beside: Callable[[Callable[[], None]], None],
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.directory = directory
        self.files = files
        self.post = post
        self._is_own_thread = is_own_thread
        self.log = log.bind(client_id=config.client_id)
        self.clock = clock
        self.sleep = sleep
        self.beside = beside
        self._sleeping = SleepingClock(self._slept, elapsed=clock.elapsed, awake=clock.monotonic)
        self.backoff = Backoff(config.retry_backoff_s, 1.0, random_fraction=random_fraction)
        self.slow_backoff = Backoff(config.retry_backoff_s, _REFUSED_PAUSE_S, random_fraction=random_fraction)
        self.own: Lane
        self.lanes: list[Lane] = []
        self.timers = Timers(clock)
        self.close_state = CloseState()
        self.own_cluster = OwnCluster()
        self.stats = Stats()
        self.progress = DeliveryProgress(clock)

    def now(self) -> float:
        """The journal's time, in seconds, which includes the time of suspensions of the machine."""
        return self._sleeping.now()

    def moment(self) -> Moment:
        """The current time, in a form that a later incarnation can compare with its own time."""
        return Moment(self.clock.wall_ms(), self.clock.boot_id(), int(self.clock.monotonic() * 1000))

    def timer(self, delay_s: float, message: Message) -> None:
        """Process `message` after `delay_s`."""
        self.timers.add(delay_s, message)

    def open(self, own: Lane) -> None:
        """Note the producer's own lane."""
        self.own = own
        self.lanes.append(own)

    def leader(self, topic: str, partition: int) -> PartitionInfo | None:
        """A partition's leader from the metadata, None if unknown."""
        info = self.cluster.topic(topic)
        return info.partitions.get(partition) if info is not None and not info.error_code else None

    def topic_id(self, topic: str) -> bytes:
        """A topic's id from the metadata, `NO_TOPIC_ID` if unknown."""
        info = self.cluster.topic(topic)
        return NO_TOPIC_ID if info is None else info.topic_id

    def leader_epoch(self, topic: str, partition: int) -> int:
        """A partition's leader epoch from the metadata, -1 if unknown."""
        info = self.cluster.topic(topic)
        return info.partitions[partition].leader_epoch if info and partition in info.partitions else -1

    def refresh_topics(self, topics: Iterable[str]) -> None:
        """Ask for the metadata of topics."""
        self.cluster.refresh_metadata(sorted(set(topics)), lambda _: None)

    def _slept(self, seconds: float, now: float) -> None:
        for lane in list(self.lanes):
            lane.journal.slept(seconds, now)
        self.log.info("This machine slept for %.0f s", seconds, seconds=seconds, event="machine_slept")

    def emit(self, event: events.Event) -> None:
        """Call the user's hook `on_event`, if there is one."""
        if self.config.on_event is None:
            return
        try:
            self.config.on_event(event)
        except BaseException as error:
            self.raise_interrupt(error)
            # An error in the user's hook must not stop delivery.
            self.log.exception("on_event failed for %s", event, event="hook_failed")

    def raise_interrupt(self, error: BaseException) -> None:
        """Raise KeyboardInterrupt to the constructor's caller. On the engine's own thread, raise nothing, because the
        exception would reach no caller and would end delivery.
        """
        if not isinstance(error, Exception) and not self._is_own_thread():
            raise error


def another_topic(former_id: bytes, topic_id: bytes) -> bool:
    """Whether the topic was deleted and created again: both topic ids are known, and they differ."""
    return former_id != topic_id and NO_TOPIC_ID not in {former_id, topic_id}


def text(error: BaseException) -> str:
    """The name and the message of an error, as text."""
    return f"{type(error).__name__}: {error}"
