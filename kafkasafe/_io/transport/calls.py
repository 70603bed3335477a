"""One request to one broker and its single outcome: what kafka-python encodes, and questions that share a request.

A call makes its frame and replies; where and when it goes is decided elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import LIST_OFFSETS_VERSIONS, Buffer, Failure, Reached, Reply
from kafkasafe.cluster.terms import TopicPartition, safely
from kafkasafe.cluster.versions import newest
from kafkasafe.kafkapython.offsets_wire import OffsetRow, OffsetsHeader, encode_offsets
from kafkasafe.kafkapython.requests import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafkasafe.kafkapython.wire import Frame

__all__ = [
    "Call",
    "EpochsWanted",
    "KafkaCall",
    "OffsetsCall",
    "OffsetsWanted",
    "PartitionQuestion",
    "QuestionsCall",
    "ReachCall",
    "Wanted",
]


class Call:
    """One request to one broker and its single outcome. Each class of calls owns the mark that it has one."""

    __slots__ = ("deadline", "targets", "timeout_s", "written_at")

    identifies = False
    """Its answer says which cluster the broker belongs to."""

    def __init__(self, timeout_s: float, targets: Collection[TopicPartition] = ()) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.targets = targets
        self.written_at = 0.0
        """When its last byte was given to the socket; 0 while some of it was not."""

    def frame(self, versions: Any) -> Frame | None:
        """The request for a broker of these versions, None if nothing is left to send. Raises what prevents it."""
        raise NotImplementedError

    def succeed(self, response: Any, frame: Frame) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException, *, sent: bool) -> None:
        raise NotImplementedError


def _kafka_frame(what: str, request: Any, version: int) -> Frame:
    def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
        request.API_VERSION = version
        request.with_header(correlation_id=correlation_id, client_id=client_id)
        return request.header, [request.encode(framed=True, header=True)]

    return Frame(what, version, encoder)


class KafkaCall(Call):
    """A request that kafka-python encodes."""

    __slots__ = ("_done", "identifies", "maximum", "minimum", "parse", "reply", "request")

    def __init__(
        self,
        request: Any,
        parse: Callable[[Any], Any],
        reply: Reply[Any],
        *,
        timeout_s: float,
        targets: tuple[TopicPartition, ...] = (),
        minimum: int = 0,
        maximum: int = 32767,
        identifies: bool = False,
    ) -> None:
        super().__init__(timeout_s, targets)
        self.identifies = identifies
        self._done = False
        self.request = request
        self.parse = parse
        self.reply = reply
        self.minimum = minimum
        self.maximum = newest(request.name.removesuffix("Request"), maximum)

    def frame(self, versions: Any) -> Frame:
        request = self.request
        version = versions.api_version(request, min_version=self.minimum, max_version=self.maximum)
        return _kafka_frame(request.name, request, version)

    def succeed(self, response: Any, frame: Frame) -> None:  # noqa: ARG002
        if self._done:
            return
        try:
            result = self.parse(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        self._done = True
        safely(self.reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self._done:
            self._done = True
            safely(self.reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class PartitionQuestion:
    """What is asked about one partition; `wanted` are its fields in the request."""

    target: TopicPartition
    wanted: Mapping[str, int]
    parse: Callable[[Any], Any]
    reply: Reply[Any]

    def answer(self, row: Any) -> None:
        """Replies with the answer of the broker, None: it left the partition out."""
        topic, partition = self.target
        try:
            if row is None:
                raise kafka_errors.KafkaProtocolError(  # noqa: TRY301
                    f"The response left {topic}-{partition} out"
                )
            result = self.parse(row)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        safely(self.reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        safely(self.reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class OffsetsWanted:
    """ListOffsets.

    Attributes:
        replica_id: Whom the broker takes the client for.
        isolation_level: Of the request.
        timestamp: The special one that is asked for, 0: times.
    """

    replica_id: int
    isolation_level: int
    timestamp: int

    request: ClassVar[Any] = ListOffsetsRequest
    maximum: ClassVar[int] = newest("ListOffsets")

    @property
    def minimum(self) -> int:
        return LIST_OFFSETS_VERSIONS.get(self.timestamp, 2 if self.isolation_level else 1)

    def make(self, questions: Mapping[str, Sequence[PartitionQuestion]], timeout_s: float) -> Any:
        topic, partition = self.request.ListOffsetsTopic, self.request.ListOffsetsTopic.ListOffsetsPartition
        return self.request(
            replica_id=self.replica_id,
            isolation_level=self.isolation_level,
            topics=[
                topic(name=name, partitions=[partition(**each.wanted) for each in asked])
                for name, asked in questions.items()
            ],
            timeout_ms=int(timeout_s * 1000),
        )

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {
            (topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions
        }


@dataclass(frozen=True, slots=True)
class EpochsWanted:
    """OffsetForLeaderEpoch."""

    request: ClassVar[Any] = OffsetForLeaderEpochRequest
    minimum: ClassVar[int] = 0
    maximum: ClassVar[int] = newest("OffsetForLeaderEpoch")

    def make(self, questions: Mapping[str, Sequence[PartitionQuestion]], timeout_s: float) -> Any:  # noqa: ARG002
        topic = self.request.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition
        topics = [
            topic(topic=name, partitions=[partition(**each.wanted) for each in asked])
            for name, asked in questions.items()
        ]
        return self.request(replica_id=-1, topics=topics)

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions}


Wanted: TypeAlias = OffsetsWanted | EpochsWanted


class QuestionsCall(Call):
    """Questions of one kind, at most one about each partition. What is wrong with one answer concerns only that one."""

    __slots__ = ("_done", "kind", "questions")

    def __init__(
        self, kind: Wanted, questions: Mapping[TopicPartition, PartitionQuestion], timeout_s: float
    ) -> None:
        self.questions = dict(questions)
        super().__init__(timeout_s, self.questions.keys())
        self._done = False
        self.kind = kind

    def frame(self, versions: Any) -> Frame | None:
        kind = self.kind
        version = versions.api_version(kind.request, min_version=kind.minimum, max_version=kind.maximum)
        topics: dict[str, list[PartitionQuestion]] = {}
        for (topic, _), question in self.questions.items():
            topics.setdefault(topic, []).append(question)
        request = kind.make(topics, self.timeout_s)
        return _kafka_frame(f"{request.name}({len(self.questions)} partitions)", request, version)

    def succeed(self, response: Any, frame: Frame) -> None:  # noqa: ARG002
        if self._done:
            return
        try:
            answers = self.kind.answers(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
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
        """Questions about these partitions fail, before they were sent. Returns whether others are left."""
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

    def frame(self, versions: Any) -> Frame:
        kind = self.kind
        version = versions.api_version(kind.request, min_version=kind.minimum, max_version=kind.maximum)

        def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
            encoded = encode_offsets(
                version,
                correlation_id,
                client_id,
                self.numbers,
                self.timestamp,
                kind.isolation_level,
                int(self.timeout_s * 1000),
            )
            return OffsetsHeader(version, correlation_id), [encoded]

        return Frame(f"ListOffsetsRequest({len(self.targets)} partitions)", version, encoder)

    def succeed(self, response: Any, frame: Frame) -> None:  # noqa: ARG002
        if not self._done:
            self._done = True
            safely(self.reply, response.rows)

    def fail(self, error: BaseException, *, sent: bool) -> None:  # noqa: ARG002  # left out of the answer
        if not self._done:
            self._done = True
            safely(self.reply, ())


class ReachCall(Call):
    """No request at all: it only waits for the connection."""

    __slots__ = ("_done", "node_id", "reply")

    def __init__(self, node_id: int, reply: Reply[Reached], timeout_s: float, target: TopicPartition) -> None:
        super().__init__(timeout_s, (target,))
        self._done = False
        self.node_id = node_id
        self.reply = reply

    def frame(self, versions: Any) -> None:  # noqa: ARG002
        self._done = True
        safely(self.reply, Reached(self.node_id))

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self._done:
            self._done = True
            safely(self.reply, Failure(error, sent))
