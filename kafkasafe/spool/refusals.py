"""Describes the destinations that the cluster refuses at present, for callers and for log messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import kafka.errors as kafka_errors

from kafkasafe import journal as j
from kafkasafe.codes.verdicts import Scope, classify_code

_OF_ID: Final = "transactional id "
_OF_GROUP: Final = "group "
_NAMED: Final = 3
"""Maximum number of destinations that a message names."""


@dataclass(frozen=True, slots=True)
class RefusedDestination:
    """A destination that the cluster refuses, and the records that wait for it.

    Attributes:
        topic: Topic name, or `transactional id NAME` or `group NAME`.
        partition: Partition; -1 while none is chosen.
        code: Kafka's error code.
        reason: The cluster's explanation.
        since: `time.monotonic()` of the first refusal.
        confirmed: Whether the refusal is certain: neither a single stray answer nor a new topic can be the cause.
        whole: Whether the cluster refuses the whole destination, not only a single batch or a query.
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
        """The kind of the refused object. A partition counts as its topic."""
        # Names of topics contain no space.
        if self.topic.startswith(_OF_ID):
            return "transactional_id"
        return "group" if self.topic.startswith(_OF_GROUP) else "topic"

    @property
    def name(self) -> str:
        """The name of the refused object."""
        return self.topic.removeprefix(_OF_ID).removeprefix(_OF_GROUP) if self.kind != "topic" else self.topic

    @property
    def error(self) -> str:
        return classify_code(self.code).name

    @property
    def age_s(self) -> float:
        """Seconds since the first refusal."""
        return max(0.0, time.monotonic() - self.since)

    def __str__(self) -> str:
        where = place_of(self.topic, self.partition)
        began = time.strftime("%H:%M:%S", time.localtime(time.time() - self.age_s))
        return f"{where}: {self.error} ({self.code}) since {began}, {counted(self.records, 'record')} waiting"


def place_of(topic: str, partition: int) -> str:
    """Name a partition in a message: `orders-2`, or `orders` if the partition (-1) is not chosen yet."""
    return topic if partition < 0 else f"{topic}-{partition}"


def counted(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun, such as `1 record` or `2 records`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def read_needed(topic: str, batches: int, reason: str) -> str:
    """The message that batches stay in doubt, because the producer lacks the permission for DescribeProducers and
    Fetch.
    """
    return (
        f"READ on topic {topic} is needed to find out the outcome of {counted(batches, 'batch', 'batches')} that may be"
        f" in the log already ({reason})"
    )


def refused(journals: Iterable[j.Journal]) -> list[RefusedDestination]:
    """The destinations that are refused now, oldest refusal first. May be called from any thread."""
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
                        denial.reported,
                        whole,
                    )
                )
    return sorted(found, key=lambda each: each.since)


def because(waiting: Iterable[RefusedDestination]) -> str:
    """The end of a message about a timeout: what the cluster refuses, and why. Empty if nothing is refused."""
    named = list(waiting)
    if not named:
        return ""
    more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    fixes = dict.fromkeys(classify_code(each.code).explanation for each in named[:_NAMED])
    return f" Blocked by the cluster: {'; '.join(map(str, named[:_NAMED]))}{more}. {' '.join(fixes)}"


def error_for_send(
    refused: RefusedDestination, spool_dir: Path, *, of_topic: bool = True
) -> kafka_errors.KafkaError:
    """The error that `send` raises if the topic, or one of its partitions, is refused: kafka-python's exception for the
    error code.
    """
    where = f"Topic {refused.topic}" if of_topic else f"{refused.topic}-{refused.partition}"
    error: kafka_errors.KafkaError = kafka_errors.for_code(refused.code)(
        f"{where} is blocked by the cluster: {refused.reason}. The record was not accepted. Records accepted"
        f" before ({counted(refused.records, 'record')}) are kept in {spool_dir} and delivered as soon as the cluster"
        f" accepts them. {classify_code(refused.code).explanation} With on_blocked_topic='accept', send continues to"
        " accept records for this topic"
    )
    return error
