"""Look-ups of offsets whose answers may be believed (KIP-207), for `SafeConsumer` and the planner of the Spark source.

Each public method of `LookUps` is a procedure (`_io.inquiry`) about one partition. It asks the leader again for as long
as that helps; its result is the offset to work with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import for_code

from kafkasafe._io.inquiry import Pause, Procedure, insist, pause_s
from kafkasafe._io.stats import ConsumerStats
from kafkasafe.classification import Verdict
from kafkasafe.cluster.api import EARLIEST, LATEST, Cluster, EpochEnd, OffsetListed, Reply, TopicInfo
from kafkasafe.events import OffsetHeld, OffsetLowered
from kafkasafe.offsets import EndOffsetTracker, Held, IsolationLevel, Lowered, Undecidable, Value, Why

__all__ = ["End", "LeaderChangedError", "LookUps", "Note", "id_of"]

Note = Callable[[Exception], None]
"""Gets the error of each failed try."""

# LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE (KIP-207).
_NOT_AVAILABLE: Final = frozenset({5, 78})
# NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH: another leader, or one who knows another epoch.
_OTHER_LEADER: Final = frozenset({6, 74, 75})
# How many answers of a former leader or topic are waited out.
_OLD_ANSWERS: Final = 3


class LeaderChangedError(Exception):
    """The answers to a walk's questions must all be of one leader."""


@dataclass(frozen=True, slots=True)
class End:
    """An end offset that may be worked with.

    Attributes:
        offset: The end.
        leader_epoch: Under which epoch its leader leads, -1 when it does not say.
    """

    offset: int
    leader_epoch: int


def id_of(info: TopicInfo | None) -> bytes | None:
    """The topic's id; None where brokers have none."""
    return info.topic_id if info is not None and any(info.topic_id) else None


class LookUps:
    """Asks, retries, and passes answers through the tracker's rules.

    Args:
        network: Gives the connections; called for each question.
        tracker: What is remembered of earlier answers.
        stats: Counts retries, and the time that leaders were not ready.
        emit: Gets what is to be reported.
        isolation: 1 (read_committed): an end is the last stable offset.
        note: Gets the errors of questions that name no other.
    """

    def __init__(
        self,
        network: Callable[[], Cluster],
        tracker: EndOffsetTracker,
        stats: ConsumerStats,
        emit: Callable[[OffsetHeld | OffsetLowered], None],
        isolation: int,
        note: Note,
    ) -> None:
        self._network = network
        self._tracker = tracker
        self._stats = stats
        self._emit = emit
        self._isolation = isolation
        self._level: IsolationLevel = "read_committed" if isolation else "read_uncommitted"
        self._note = note

    def listed(
        self, topic: str, partition: int, timestamp: int, note: Note | None = None
    ) -> Procedure[OffsetListed]:
        """What the leader answers to ListOffsets, as it is.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: See `Cluster.list_offset`.
            note: Gets the error of each failed try.

        Raises:
            KafkaError: One that no retry helps.
        """
        transport = self._network()
        noted = self._note if note is None else note
        since: float | None = None

        def send(reply: Reply[Any]) -> None:
            transport.list_offset(topic, partition, timestamp, reply, isolation_level=self._isolation)

        def failed(error: Exception, verdict: Verdict) -> None:
            nonlocal since
            if verdict.code in _NOT_AVAILABLE:
                since = time.monotonic() if since is None else since
            noted(error)

        try:
            answer: OffsetListed = yield from insist(
                transport, topic, "list_offsets", send, failed, stats=self._stats
            )
        finally:  # also when time is over
            if since is not None:
                self._stats.unavailable_s[topic] += time.monotonic() - since
        if answer.offset < 0 and timestamp in {EARLIEST, LATEST}:
            wrong: Exception = for_code(-1)(
                f"{topic}-{partition}: the broker answered offset {answer.offset} without an error"
            )
            raise wrong
        return answer

    def epoch_end(
        self, topic: str, partition: int, epoch: int, current: int, note: Note | None = None
    ) -> Procedure[EpochEnd]:
        """Where an epoch ends in the log of the leader that leads under `current`.

        Raises:
            LeaderChangedError: It leads under another one, or not any more.
            KafkaError: One that no retry helps.
        """
        transport = self._network()
        noted = self._note if note is None else note

        def send(reply: Reply[Any]) -> None:
            transport.offset_for_leader_epoch(topic, partition, epoch, reply, current_leader_epoch=current)

        def failed(error: Exception, verdict: Verdict) -> None:
            noted(error)
            if verdict.code in _OTHER_LEADER:
                raise LeaderChangedError

        answer: EpochEnd = yield from insist(
            transport, topic, "offset_for_leader_epoch", send, failed, stats=self._stats
        )
        return answer

    def end(self, topic: str, partition: int, note: Note | None = None) -> Procedure[End]:
        """Where the log ends, as the tracker lets it pass. What was not simply believed is reported."""
        tries = 0
        while True:
            answer = yield from self.listed(topic, partition, LATEST, note)
            result = self._tracker.observe(
                topic,
                partition,
                answer.offset,
                leader_epoch=answer.leader_epoch,
                topic_id=id_of(self._network().topic(topic)),
                isolation_level=self._level,
            )
            if isinstance(result, Held) and result.ask_epoch is not None:
                try:
                    proof = yield from self.epoch_end(
                        topic, partition, result.ask_epoch, answer.leader_epoch, note
                    )
                except LeaderChangedError:
                    yield Pause(pause_s(tries))
                    tries += 1
                    continue
                result = self._tracker.prove(
                    topic,
                    partition,
                    requested_epoch=result.ask_epoch,
                    reply_epoch=proof.leader_epoch,
                    end_offset=proof.end_offset,
                    leader_epoch=answer.leader_epoch,
                    isolation_level=self._level,
                )
            tries += 1
            match result:
                case Value(offset=int(offset)):
                    return End(offset, answer.leader_epoch)
                case Lowered(offset=offset, previous=previous, cause=cause):
                    self._emit(OffsetLowered(topic, partition, offset, previous, cause.value))
                    return End(offset, answer.leader_epoch)
                case Held(offset=int(offset), why=why) if (
                    why not in {Why.FORMER_LEADER, Why.FORMER_TOPIC} or tries >= _OLD_ANSWERS
                ):
                    self._emit(OffsetHeld(topic, partition, offset, answer.offset, why.value))
                    return End(offset, answer.leader_epoch)
                case Undecidable(offset=offset):
                    self._emit(OffsetHeld(topic, partition, offset, answer.offset, "undecidable"))
                    return End(offset, answer.leader_epoch)
                case _:
                    # The answer is of a former leader or topic: metadata say which one to ask now.
                    self._network().refresh_metadata([topic], _ignore)
                    yield Pause(pause_s(tries))


def _ignore(_: object) -> None:
    """The answer is in the metadata."""
