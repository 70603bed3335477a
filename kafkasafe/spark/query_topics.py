"""The topics and partitions that a query of the source reads."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any, Final

from kafkasafe.classification import Verdict, classify
from kafkasafe.cluster.api import Failure, TopicsListed
from kafkasafe.cluster.inquiry import ask_until_answered, pause_s
from kafkasafe.cluster.lookups import id_of
from kafkasafe.cluster.procedures import Ask, Pause, Procedure
from kafkasafe.codes.numbers import UNKNOWN_TOPIC_OR_PARTITION
from kafkasafe.spark.brokers import MISSING_TOPIC_S, Brokers
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import Assign, Pattern, Subscribe
from kafkasafe.spark.positions import Partition, partition_names

_METADATA_AGE_S: Final = 5.0


class QueryTopics:
    """Finds out which partitions a query reads. Not thread-safe.

    Args:
        what: The partitions to read, as the options name them.
        brokers: The brokers to ask.
    """

    def __init__(self, what: Subscribe | Pattern | Assign, brokers: Brokers) -> None:
        self._what = what
        self._brokers = brokers
        self._looked_at = -1e9
        self._missing: set[str] = (
            set()
        )  # topics that did not appear within MISSING_TOPIC_S; do not wait for them again
        self._matching: tuple[str, ...] = ()

    def partitions(self, *, fresh: bool) -> list[Partition]:
        """Returns all partitions to read, in order. Uses metadata that is at most a few seconds old."""
        now = time.monotonic()
        topics = self._topics_named()
        if fresh or now - self._looked_at > _METADATA_AGE_S or not self._brokers.is_open:
            if topics is None:
                self._matching = self._match()
            names = self._matching if topics is None else topics
            if names:
                self._brokers.gather({"metadata": self._refresh(names)})
            self._looked_at = now
        names = self._matching if topics is None else topics
        what = self._what
        infos = {name: self._brokers.topic(name) for name in names}
        found = [
            (name, number)
            for name, info in infos.items()
            if info is not None
            for number in sorted(info.partitions)
        ]
        if isinstance(what, Assign):
            existing = set(found)
            return [partition for partition in what.partitions if partition in existing]
        return found

    def require(self, partitions: Iterable[Partition]) -> None:
        """Checks that all topics and partitions named in the options exist. A pattern may match no topic.

        Raises:
            ConfigError: A topic or partition does not exist.
        """
        found = set(partitions)
        what = self._what
        if isinstance(what, Assign):
            missing = [
                partition_names([partition]) for partition in what.partitions if partition not in found
            ]
        elif isinstance(what, Subscribe):
            names = {name for name, _ in found}
            missing = [topic for topic in what.topics if topic not in names]
        else:
            missing = []  # matching topics may be created later
        if missing:
            raise error(
                "TOPIC_NOT_FOUND",
                f"The cluster at {self._brokers.servers} does not have {', '.join(missing)}: create it, or correct"
                " subscribe, subscribePattern or assign.",
            )

    def is_wanted(self, partition: Partition) -> bool:
        """Returns whether the options name the partition."""
        match self._what:
            case Subscribe(topics):
                return partition[0] in topics
            case Assign(partitions):
                return partition in partitions
            case Pattern(pattern):
                return re.fullmatch(pattern, partition[0]) is not None

    def ids(self, partitions: Iterable[Partition]) -> dict[str, bytes]:
        """Returns topic → id for the topics of the given partitions. Leaves out topics without an id. Old brokers do
        not report ids.
        """
        infos = {topic: self._brokers.topic(topic) for topic in {topic for topic, _ in partitions}}
        ids = {topic: id_of(info) for topic, info in infos.items() if info is not None}
        return {topic: number for topic, number in ids.items() if number is not None}

    def _topics_named(self) -> tuple[str, ...] | None:
        what = self._what
        if isinstance(what, Subscribe):
            return what.topics
        if isinstance(what, Assign):
            return tuple(dict.fromkeys(topic for topic, _ in what.partitions))
        return None

    def _match(self) -> tuple[str, ...]:
        listed: TopicsListed = self._brokers.gather({"topics": self._list_topics()})["topics"]
        pattern = getattr(self._what, "pattern", "")
        return tuple(sorted(topic for topic in listed.topics if re.fullmatch(pattern, topic)))

    def _refresh(self, names: tuple[str, ...]) -> Procedure[None]:
        transport = self._brokers.network()
        began = time.monotonic()
        tries = 0
        while True:
            answer = yield Ask(lambda reply: transport.refresh_metadata(names, reply))
            if isinstance(answer, Failure):
                problem: Any = answer.error
                self._brokers.note(problem)
                if not classify(problem, "metadata").retriable and not isinstance(problem, OSError):
                    raise problem
            else:
                infos = [transport.topic(name) for name in names]
                waiting = [info for info in infos if info is None or info.error_code]
                for info in waiting:
                    if info is not None and info.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                        verdict = classify(info.error_code, "metadata")
                        if not verdict.retriable:
                            raise _topic_error(info.name, verdict)
                missing = {info.name for info in waiting if info is not None}
                if not waiting or missing == self._missing or time.monotonic() - began > MISSING_TOPIC_S:
                    # A missing topic is not an error here: the caller decides what a missing topic means.
                    self._missing = missing
                    return
            yield Pause(pause_s(tries))
            tries += 1

    def _list_topics(self) -> Procedure[TopicsListed]:
        transport = self._brokers.network()
        answer: TopicsListed = yield from ask_until_answered(
            transport,
            "",
            "metadata",
            transport.list_topics,
            lambda problem, _: self._brokers.note(problem),
            stats=self._brokers.stats,
        )
        return answer


def _topic_error(topic: str, verdict: Verdict) -> Exception:
    return error("TOPIC_REFUSED", f"The cluster refuses topic {topic}: {verdict.explanation}")
