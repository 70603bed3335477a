"""Runs inquiries, makes their requests to a partition's leader, and distinguishes successful answers from errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeGuard, TypeVar

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Answer, Failure, Reply
from kafkasafe.cluster.procedures import Ask, Pause, Procedure, Together
from kafkasafe.delivery.engine.context import EngineContext, text
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import Answered, InquiryDue

_PAGE_BYTES: Final = 1024 * 1024


A = TypeVar("A", bound=Answer)


class RunningInquiry:
    """An inquiry of the engine: a generator that sends requests to the cluster and pauses. A message in the inbox (an
    answer) or a timer (the end of a pause) resumes the generator.

    Args:
        context: See `EngineContext`.
        name: The name of the inquiry in transcripts.
        procedure: A generator that yields an `Ask` or a `Pause`. The inquiry passes each answer to the generator's
            `send` method. At most one request is in flight.
    """

    def __init__(self, context: EngineContext, name: str, procedure: Procedure[None]) -> None:
        self._context = context
        self._name = name
        self._procedure = procedure

    def __repr__(self) -> str:
        return self._name

    def go_on(self) -> None:
        """See `Inquiry`."""
        self.resume(None)

    def resume(self, answer: Any) -> None:
        """See `Inquiry`."""
        try:
            step = self._procedure.send(answer)
        except StopIteration:
            return
        match step:
            case Ask(send, name):
                send(lambda answer: self._context.post(Answered(self, name, answer)))
            case Pause(seconds):
                self._context.timer(seconds, InquiryDue(self))
            case Together():
                raise TypeError(f"{self} may have only one request in flight")


class NoAnswerError(Exception):
    """A request of an inquiry failed: the answer was an error, or no answer came.

    Attributes:
        reason: Why the request failed.
        code: Kafka's error code, or 0.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


def good(result: A | Failure) -> A:
    """Return the answer, unless it is an error.

    Raises:
        NoAnswerError: The request failed, or the answer is an error.
    """
    code, reason = trouble(result)
    if reason or isinstance(result, Failure):
        raise NoAnswerError(reason, code)
    return result


def trouble(result: Answer | Failure) -> tuple[int, str]:
    """(error code, reason) if the request failed or the answer reports an error, otherwise (0, ""). For a failure
    without a Kafka error code, the code is 0.
    """
    if isinstance(result, Failure):
        return result.code or 0, text(result.error)
    code = result.error_code
    return (code, kafka_errors.for_code(code).__name__) if code else (0, "")


def unsupported(result: object) -> TypeGuard[Failure]:
    """Whether the request failed because the brokers are too old for it."""
    return isinstance(result, Failure) and result.unsupported


class LeaderRequests:
    """Makes one lane's requests to the leader of a partition.

    Each method returns a request. The argument `step` is the request's name in transcripts.

    Args:
        context: See `EngineContext`.
        lane: The lane.
        topic: Topic name.
        partition: Partition number.
        note: Called with the topic and the partition before each request.
    """

    def __init__(
        self,
        context: EngineContext,
        lane: Lane,
        topic: str,
        partition: int,
        note: Callable[[str, int], None] | None = None,
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._lane = lane
        self._topic = topic
        self._partition = partition
        self._note = note

    def name(self, inquiry: object) -> str:
        """The name of an inquiry in transcripts."""
        return f"{type(inquiry).__name__}({self._lane.name} {self._topic}-{self._partition})"

    @property
    def address(self) -> tuple[str, int]:
        """Topic and partition."""
        return self._topic, self._partition

    @property
    def epoch(self) -> int:
        """The leader epoch from the metadata, -1 if unknown."""
        return self._context.leader_epoch(self._topic, self._partition)

    def describe_producers(self, step: str) -> Ask:
        """Ask for the producers whose state the leader keeps."""
        return self._ask(step, lambda reply: self._cluster.describe_producers(*self.address, reply))

    def offset_for_leader_epoch(self, epoch: int, step: str) -> Ask:
        """Ask where a leader epoch ends."""
        return self._ask(
            step, lambda reply: self._cluster.offset_for_leader_epoch(*self.address, epoch, reply)
        )

    def list_offset(self, timestamp: int, step: str) -> Ask:
        """Ask for an offset by timestamp. The timestamps `EARLIEST` and `LATEST` mean the two ends of the log."""
        return self._ask(step, lambda reply: self._cluster.list_offset(*self.address, timestamp, reply))

    def log_end_offset(self, step: str) -> Ask:
        """Ask where the log ends."""
        return self._ask(step, lambda reply: self._cluster.log_end_offset(*self.address, reply))

    def fetch_headers(self, offset: int, step: str) -> Ask:
        """Ask for a page of batch headers."""
        return self._ask(
            step, lambda reply: self._cluster.fetch_headers(*self.address, offset, _PAGE_BYTES, reply)
        )

    def topic(self, step: str) -> Ask:
        """Ask the leader for its own metadata of the topic."""
        known = self._context.leader(*self.address)
        node = -1 if known is None else known.leader
        return self._ask(step, lambda reply: self._cluster.topic_at(node, self._topic, reply))

    def refresh_metadata(self, step: str) -> Ask:
        """Ask for the metadata of the topic."""
        return self._ask(step, lambda reply: self._cluster.refresh_metadata([self._topic], reply))

    def _ask(self, step: str, send: Callable[[Reply[Any]], None]) -> Ask:
        if self._note is not None:
            self._note(*self.address)
        return Ask(send, step)
