"""The requests to one broker. A request contains one or several questions, and has a single outcome.

A `Call` builds its request, and passes the outcome to a callback. Other modules decide to which broker the request
goes, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import LIST_OFFSETS_VERSIONS, Failure, Reached, Reply
from kafkasafe.cluster.coordinators import Question, newest
from kafkasafe.cluster.network import Connection, ManyOffsets, OffsetRow, Request, Sendable
from kafkasafe.cluster.terms import TopicPartition, safely


class Call:
    """One request to one broker, and its single outcome. Each subclass stores whether the call has an outcome."""

    __slots__ = ("_wait_s", "deadline", "targets", "timeout_s", "written_at")

    identifies = False
    """Whether the answer to this call says which cluster the broker belongs to."""

    def __init__(self, timeout_s: float, targets: Collection[TopicPartition] = ()) -> None:
        self._wait_s = timeout_s
        self.timeout_s = timeout_s
        self.deadline = 0.0
        self.targets = targets
        self.written_at = 0.0
        """When the request's last byte was passed to the network; 0 until then."""

    def written(self, now: float) -> None:
        self.written_at = now

    def begin(self, now: float) -> None:
        """Begins the wait for a connection: sets its deadline."""
        self.deadline = now + self._wait_s

    def request(self, conn: Connection) -> Sendable | None:
        """Returns the request for this connection; None if nothing is left to send. Raises an error if the broker does
        not support the request.
        """
        raise NotImplementedError

    def succeed(self, response: Any) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException, *, sent: bool) -> None:
        raise NotImplementedError


class QuestionCall(Call):
    """One question.

    Args:
        question: The request, and how to parse its answer.
        reply: Gets the parsed answer, or `Failure`.
        timeout_s: Limit, in seconds, of each of two waits: first for a connection, then for the answer.
        targets: The partitions that the question is about, if a partition's leader must answer it.
        identifies: Whether the answer says which cluster the broker belongs to.
    """

    __slots__ = ("_done", "_maximum", "_question", "_reply", "identifies")

    def __init__(
        self,
        question: Question,
        reply: Reply[Any],
        *,
        timeout_s: float,
        targets: tuple[TopicPartition, ...] = (),
        identifies: bool = False,
    ) -> None:
        super().__init__(timeout_s, targets)
        self.identifies = identifies
        self._done = False
        self._question = question
        self._reply = reply
        self._maximum = newest(question.name, question.maximum)

    def request(self, conn: Connection) -> Request:
        question = self._question
        version = conn.version(question.name, question.minimum, self._maximum)
        return Request(question.name, version, question.fields)

    def succeed(self, response: Any) -> None:
        if self._done:
            return
        try:
            result = self._question.parse(response)
        except Exception as error:  # whatever a broker sends, the caller must get a reply
            self.fail(error, sent=True)
            return
        self._done = True
        safely(self._reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self._done:
            self._done = True
            safely(self._reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """A question about one partition. `wanted` holds the request's fields for this partition."""

    target: TopicPartition
    wanted: Mapping[str, int]
    parse: Callable[[Any], Any]
    reply: Reply[Any]

    def answer(self, row: Any) -> None:
        """Parses `row`, the broker's answer for the partition, and calls the reply with the result. If `row` is None,
        because the broker left the partition out, the question fails.
        """
        topic, partition = self.target
        try:
            if row is None:
                raise kafka_errors.KafkaProtocolError(  # noqa: TRY301
                    f"The response left {topic}-{partition} out"
                )
            result = self.parse(row)
        except Exception as error:  # whatever a broker sends, the caller must get a reply
            self.fail(error, sent=True)
            return
        safely(self.reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        safely(self.reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class OffsetsWanted:
    """The kind of a ListOffsets question. Questions of the same kind can share a request.

    Attributes:
        replica_id: The replica id of the request: -1 for a client, -2 for a debugging replica.
        timestamp: The special timestamp of the request (such as `LATEST`); 0 for look-ups by time.
    """

    replica_id: int
    isolation_level: int
    timestamp: int

    name: ClassVar[str] = "ListOffsets"
    maximum: ClassVar[int] = newest("ListOffsets")

    @property
    def minimum(self) -> int:
        return LIST_OFFSETS_VERSIONS.get(self.timestamp, 2 if self.isolation_level else 1)

    def fields(
        self, questions: Mapping[str, Sequence[PartitionQuestion]], timeout_s: float
    ) -> Mapping[str, Any]:
        return {
            "replica_id": self.replica_id,
            "isolation_level": self.isolation_level,
            "topics": [
                {"name": name, "partitions": [each.wanted for each in asked]}
                for name, asked in questions.items()
            ],
            "timeout_ms": int(timeout_s * 1000),
        }

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {
            (topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions
        }


@dataclass(frozen=True, slots=True)
class EpochsWanted:
    """The kind of all OffsetForLeaderEpoch questions. They can share a request."""

    name: ClassVar[str] = "OffsetForLeaderEpoch"
    minimum: ClassVar[int] = 0
    maximum: ClassVar[int] = newest("OffsetForLeaderEpoch")

    def fields(
        self,
        questions: Mapping[str, Sequence[PartitionQuestion]],
        timeout_s: float,  # noqa: ARG002
    ) -> Mapping[str, Any]:
        topics = [
            {"topic": name, "partitions": [each.wanted for each in asked]}
            for name, asked in questions.items()
        ]
        return {"replica_id": -1, "topics": topics}

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions}


Wanted: TypeAlias = OffsetsWanted | EpochsWanted


class QuestionsCall(Call):
    """Several questions of one kind, at most one for each partition. An invalid answer fails only its own question."""

    __slots__ = ("_done", "kind", "questions")

    def __init__(
        self, kind: Wanted, questions: Mapping[TopicPartition, PartitionQuestion], timeout_s: float
    ) -> None:
        self.questions = dict(questions)
        super().__init__(timeout_s, self.questions.keys())
        self._done = False
        self.kind = kind

    def request(self, conn: Connection) -> Request:
        kind = self.kind
        version = conn.version(kind.name, kind.minimum, kind.maximum)
        topics: dict[str, list[PartitionQuestion]] = {}
        for (topic, _), question in self.questions.items():
            topics.setdefault(topic, []).append(question)
        return Request(kind.name, version, kind.fields(topics, self.timeout_s))

    def succeed(self, response: Any) -> None:
        if self._done:
            return
        try:
            answers = self.kind.answers(response)
        except Exception as error:  # whatever a broker sends, the caller must get a reply
            self.fail(error, sent=True)
            return
        self._done = True
        for target, question in self.questions.items():
            question.answer(answers.get(target))

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self._done:
            self._done = True
            for question in self.questions.values():
                question.fail(error, sent=sent)

    def drop(self, is_gone: Callable[[TopicPartition], bool], error: BaseException) -> bool:
        """Fails the unsent questions about partitions for which `is_gone` is true. Returns whether other questions are
        left.
        """
        gone = [target for target in self.questions if is_gone(target)]
        failed = [self.questions.pop(target) for target in gone]
        self._done = not self.questions
        for question in failed:
            question.fail(error, sent=False)
        return bool(self.questions)


class OffsetsCall(Call):
    """One ListOffsets request about many partitions, with one timestamp for all of them."""

    __slots__ = ("_done", "kind", "numbers", "reply", "timestamp")

    def __init__(
        self,
        numbers: Mapping[str, Sequence[int]],
        timestamp: int,
        isolation_level: int,
        reply: Callable[[Sequence[tuple[str, Sequence[OffsetRow]]]], None],
        *,
        timeout_s: float,
    ) -> None:
        super().__init__(timeout_s, tuple((topic, number) for topic in numbers for number in numbers[topic]))
        self._done = False
        self.kind = OffsetsWanted(-1, isolation_level, min(timestamp, 0))
        self.numbers = numbers
        self.timestamp = timestamp
        self.reply = reply

    def request(self, conn: Connection) -> ManyOffsets:
        kind = self.kind
        version = conn.version(kind.name, kind.minimum, kind.maximum)
        timeout_ms = int(self.timeout_s * 1000)
        return ManyOffsets(version, self.numbers, self.timestamp, kind.isolation_level, timeout_ms)

    def succeed(self, response: Any) -> None:
        if not self._done:
            self._done = True
            safely(self.reply, response.rows)

    def fail(self, error: BaseException, *, sent: bool) -> None:  # noqa: ARG002  # left out of the answer
        if not self._done:
            self._done = True
            safely(self.reply, ())


class ReachCall(Call):
    """A call that sends no request, but only waits for the connection."""

    __slots__ = ("_done", "node_id", "reply")

    def __init__(self, node_id: int, reply: Reply[Reached], timeout_s: float, target: TopicPartition) -> None:
        super().__init__(timeout_s, (target,))
        self._done = False
        self.node_id = node_id
        self.reply = reply

    def request(self, conn: Connection) -> None:  # noqa: ARG002
        self._done = True
        safely(self.reply, Reached(self.node_id))

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self._done:
            self._done = True
            safely(self.reply, Failure(error, sent))
