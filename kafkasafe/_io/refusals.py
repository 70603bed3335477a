"""What waits because the cluster refuses it for a reason that may pass: in words, for callers, logs and scrapes."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import kafka.errors as kafka_errors

from kafkasafe._core import journal as j
from kafkasafe._core.codes import Scope, classify_code

__all__ = ["RefusedDestination", "because", "error_for_send", "read_needed", "refused"]

_OF_ID: Final = "transactional id "
_OF_GROUP: Final = "group "
_NAMED: Final = 3
"""How many destinations a sentence names."""


@dataclass(frozen=True, slots=True)
class RefusedDestination:
    """A destination that the cluster refuses, and what waits for it.

    Attributes:
        topic: Topic name; `transactional id NAME` or `group NAME` where that is what is refused.
        partition: Partition, -1 while none is chosen.
        code: Kafka's error code.
        reason: What the cluster said.
        since: `time.monotonic()` of the first such answer.
        batches: How many wait.
        records: In them.
        confirmed: It is no stray answer, and no topic that is merely new.
        whole: All of the destination is refused, not one batch of it, nor a question about it.
    """

    topic: str
    partition: int
    code: int
    reason: str
    since: float
    batches: int
    records: int
    confirmed: bool
    whole: bool

    @property
    def kind(self) -> Literal["topic", "transactional_id", "group"]:
        """What is refused: of a partition, its topic."""
        # No name of a topic has a space.
        if self.topic.startswith(_OF_ID):
            return "transactional_id"
        return "group" if self.topic.startswith(_OF_GROUP) else "topic"

    @property
    def name(self) -> str:
        """Its name."""
        return self.topic.removeprefix(_OF_ID).removeprefix(_OF_GROUP) if self.kind != "topic" else self.topic

    @property
    def error(self) -> str:
        """Kafka's name of the code."""
        return classify_code(self.code).name

    @property
    def age_s(self) -> float:
        """Seconds since the first such answer."""
        return max(0.0, time.monotonic() - self.since)

    def __str__(self) -> str:
        where = self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - self.age_s))
        return f"{where}: {self.error} ({self.code}) since {began}, {counted(self.records, 'record')} waiting"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2 records`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def read_needed(topic: str, batches: int, reason: str) -> str:
    """Why nothing is known of batches in doubt, where the permission is missing to ask (DescribeProducers, Fetch)."""
    return (
        f"READ on topic {topic} is needed to ask what became of {counted(batches, 'batch', 'batches')} that may be in"
        f" the log already ({reason})"
    )


def refused(journals: Iterable[j.Journal]) -> list[RefusedDestination]:
    """What is refused now, oldest first. From any thread."""
    found = []
    for journal in journals:
        for destination, denial, batches, records in journal.views.denials():
            if batches:
                topic, partition = journal.views.address(destination)
                whole = denial.scope is Scope.DESTINATION and not denial.asking
                found.append(
                    RefusedDestination(
                        topic,
                        partition,
                        denial.code,
                        denial.reason,
                        denial.since,
                        batches,
                        records,
                        denial.told,
                        whole,
                    )
                )
    return sorted(found, key=lambda each: each.since)


def because(waiting: Iterable[RefusedDestination]) -> str:
    """For the end of a message about a timeout: what waits and why; nothing where nothing is refused."""
    named = list(waiting)
    if not named:
        return ""
    more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    fixes = dict.fromkeys(classify_code(each.code).explanation for each in named[:_NAMED])
    return f" Blocked by the cluster: {'; '.join(map(str, named[:_NAMED]))}{more}. {' '.join(fixes)}"


def error_for_send(
    refused: RefusedDestination, spool_dir: Path, *, of_topic: bool = True
) -> kafka_errors.KafkaError:
    """kafka-python's exception for the code, to be raised by `send`: a topic is refused, or one partition of it."""
    where = f"Topic {refused.topic}" if of_topic else f"{refused.topic}-{refused.partition}"
    error: kafka_errors.KafkaError = kafka_errors.for_code(refused.code)(
        f"{where} is blocked by the cluster: {refused.reason}. The record was not accepted. What was accepted"
        f" before ({counted(refused.records, 'record')}) is kept in {spool_dir} and delivered as soon as the cluster"
        f" accepts it. {classify_code(refused.code).explanation} on_blocked_topic='accept' takes more records meanwhile"
    )
    return error
