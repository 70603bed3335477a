"""Applies the cluster's metadata: the partition counts of topics, and topics that are missing, refused or deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import kafka.errors as kafka_errors

from kafkasafe.cluster import api as t
from kafkasafe.codes.numbers import UNKNOWN_TOPIC_OR_PARTITION
from kafkasafe.codes.sets import TOPIC_CODES
from kafkasafe.delivery.engine.binding import Binding
from kafkasafe.delivery.engine.context import DeletedTopics, EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.losses import LossWatch
from kafkasafe.delivery.engine.messages import Chore, ChoreDue

TOPIC_POLL_S: Final = 1.0
_PORTION_BYTES: Final = 8 * 1024 * 1024
"""The engine divides batches without chosen partitions one portion at a time, because a portion's bytes are in memory.
A portion ends once it has this many bytes.
"""
_ASKED_FOR_S: Final = 300.0  # KafkaProducer also remembers a requested topic for five minutes
_FORGET_GONE_S: Final = 600.0  # brokers that have just started answer as if they had no topics


class TopicKeeper:
    """See the module.

    Args:
        drive: Function that carries out the decisions of a lane's journal.
        on_topic: Called with a topic and its partition count, once a partition is chosen for every accepted record of
            the topic.
    """

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        losses: LossWatch,
        binding: Binding,
        deleted: DeletedTopics,
        *,
        drive: Callable[[Lane], None],
        on_topic: Callable[[str, int], None],
    ) -> None:
        self._context = context
        self._log = context.log
        self._ledger = ledger
        self._losses = losses
        self._binding = binding
        self._deleted = deleted
        self._drive = drive
        self._on_topic = on_topic
        self._asked_for: dict[str, float] = {}  # topic → time when a caller last asked for it

    def on_metadata(self, refreshed: t.MetadataRefreshed) -> None:
        """Handle a metadata answer."""
        if refreshed.cluster_id is not None and refreshed.cluster_id != self._context.own_cluster.cluster_id:
            self._context.progress.note()
            self._binding.bind(refreshed.cluster_id)
        if self._context.own_cluster.stranger is not None:
            return  # what another cluster says about topics of the same names must not get into the log
        self._context.own_cluster.note_answer()
        self.learn(refreshed.topics, fresh=True)
        for name, info in refreshed.topics.items():
            self._see_whether_gone(name, info.error_code)
        self._losses.look_again(refreshed)

    def want(self, topic: str) -> None:
        """Ask for a topic's metadata. If brokers create topics automatically, this request creates the topic."""
        self._asked_for[topic] = self._context.clock.monotonic()
        self._context.cluster.refresh_metadata([topic], lambda _: None)

    def may_create(self, topic: str) -> bool:
        """Whether a metadata request may create the topic. A request must neither recreate a deleted topic nor create a
        topic in another cluster. Callable from any thread.
        """
        if not self._context.own_cluster.answered:
            return False
        asked_at = self._asked_for.get(topic, -_ASKED_FOR_S)
        return self._context.clock.monotonic() - asked_at < _ASKED_FOR_S or any(
            lane.journal.views.wants(topic) for lane in list(self._context.lanes)
        )

    def _see_whether_gone(self, topic: str, error_code: int) -> None:
        """Forget a topic that has been unknown for ten minutes. During these minutes, request the topic's metadata only
        rarely.
        """
        if not error_code:
            self._asked_for.pop(topic, None)
        if error_code != UNKNOWN_TOPIC_OR_PARTITION or self.may_create(topic):
            self._deleted.forget(topic)
            return
        since = self._deleted.note(topic, self._context.clock.monotonic())
        self._context.cluster.unwatch(topic)
        if self._context.clock.monotonic() - since < _FORGET_GONE_S:
            return
        self._deleted.forget(topic)
        for lane in self._context.lanes:
            if lane.journal.forget(topic):
                self._log.info(
                    "%s was deleted: the producer forgets which records it delivered there",
                    topic,
                    topic=topic,
                    lane=lane.name,
                    event="topic_forgotten",
                )

    def poll(self) -> None:
        """Request metadata of topics whose waiting records have no partition yet."""
        waiting = {topic for lane in self._context.lanes for topic in lane.journal.views.unchosen_topics()}
        unknown = {topic for topic in waiting if self._context.cluster.topic(topic) is None}
        if unknown:
            self._context.refresh_topics(unknown)
        if self._context.own_cluster.answered:  # otherwise, the metadata may be another cluster's
            self.learn(sorted(waiting - unknown), fresh=False)
        self._context.timer(TOPIC_POLL_S, ChoreDue(Chore.POLL_TOPICS))

    def learn(self, names: Iterable[str], *, fresh: bool) -> None:
        """Apply the metadata of topics. `fresh` says that the metadata have just arrived.

        1. A program uses 5,000 topics, and one answer has the metadata of all these topics.
        2. The engine divides the records that wait for these topics, and writes the parts together: one fsync for each
           8 MiB, not for each topic.
        3. Callers learn a topic's partitions only after the divided records are written, so that no new record
           overtakes a waiting record.
        """
        found: list[tuple[str, t.TopicInfo]] = []
        size = 0
        for name in names:
            info = self._context.cluster.topic(name)
            if info is not None:
                found.append((name, info))
                size += self._note(name, info, fresh=fresh)
                if size >= _PORTION_BYTES:
                    self._settle(found)
                    found, size = [], 0
        self._settle(found)

    def _settle(self, found: Sequence[tuple[str, t.TopicInfo]]) -> None:
        """Divide and write the records that waited for these topics, then publish the partitions to callers."""
        usable = [(name, info) for name, info in found if info.partitions and not info.error_code]
        for lane in self._context.lanes:
            if any(lane.own or lane.journal.views.waiting(name) for name, _ in usable):
                self._drive(lane)
        for name, info in usable:
            if not self._context.own.journal.views.waiting(name):
                self._on_topic(name, max(info.partitions) + 1)
        if found:
            with self._ledger.lock:
                if self._ledger.waiters:
                    self._ledger.waiters.notify_all()

    def _note(self, name: str, info: t.TopicInfo, *, fresh: bool) -> int:
        """Pass a topic's metadata to the journals. Returns the size in bytes of the batches that can now be divided."""
        now = self._context.now()
        size = 0
        for lane in self._context.lanes:
            if info.error_code in TOPIC_CODES and lane.journal.views.waiting(name):
                reason = kafka_errors.for_code(info.error_code).__name__
                if fresh:
                    lane.journal.deny_unchosen(
                        name, info.error_code, f"{reason}: the cluster says so of the topic", now
                    )
            elif info.partitions and not info.error_code and (lane.own or lane.journal.views.waiting(name)):
                size += lane.journal.views.portion_bytes(name)
                if lane.journal.learn_topic(name, info.topic_id, max(info.partitions) + 1):
                    self._context.progress.note()
        return size
