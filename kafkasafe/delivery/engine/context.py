"""The state that all parts of the engine share: its ports, its lanes, its timers, and its counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from kafkasafe import events
from kafkasafe.cluster.api import Clock, Cluster
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.clock import SleepingClock
from kafkasafe.delivery.engine.close_state import CloseState
from kafkasafe.delivery.engine.delivery_progress import DeliveryProgress
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import Message
from kafkasafe.delivery.engine.own_cluster import OwnCluster
from kafkasafe.delivery.engine.timers import Timers
from kafkasafe.journal import Clock as Moment
from kafkasafe.logs import EventLog
from kafkasafe.spool.files import Files
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.stats import Stats

__all__ = ["EngineContext", "text"]

log = EventLog("producer")

_REFUSED_PAUSE_S: Final = 30.0
"""Longest pause between two tries while an operator has to fix a refusal: grant a permission, create a topic."""


class EngineContext:
    """See the module.

    Args:
        config: Options.
        cluster: The brokers.
        directory: The opened spool directory.
        files: The disk.
        post: Puts a message into the inbox, from any thread.
        is_own_thread: Whether the caller is the thread that runs the engine.
        clock: The clock.
        sleep: Waits for this many seconds. Used where nothing may continue before a write succeeds.
        random_fraction: A number in [0, 1), for the length of pauses.
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
        """The journal's time: seconds, including those during which the machine was suspended."""
        return self._sleeping.now()

    def moment(self) -> Moment:
        """The current time, in a form that another incarnation can compare."""
        return Moment(self.clock.wall_ms(), self.clock.boot_id(), int(self.clock.monotonic() * 1000))

    def timer(self, delay_s: float, message: Message) -> None:
        """Process this message after a delay, in seconds."""
        self.timers.add(delay_s, message)

    def open(self, own: Lane) -> None:
        """Note the producer's own lane."""
        self.own = own
        self.lanes.append(own)

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
        """Call the user's hook."""
        if self.config.on_event is None:
            return
        try:
            self.config.on_event(event)
        except BaseException as error:
            self.raise_interrupt(error)
            # An error in the user's hook must not stop delivery.
            self.log.exception("on_event failed for %s", event, event="hook_failed")

    def raise_interrupt(self, error: BaseException) -> None:
        """Raise KeyboardInterrupt for the constructor's caller. Raise nothing on the engine's own thread, because that
        would only end delivery.
        """
        if not isinstance(error, Exception) and not self._is_own_thread():
            raise error


def text(error: BaseException) -> str:
    """An error with its name."""
    return f"{type(error).__name__}: {error}"
