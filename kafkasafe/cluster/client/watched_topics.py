"""The topics that metadata requests name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import kafka.errors as kafka_errors
from kafka.util import ensure_valid_topic_name

from kafkasafe.cluster.api import TopicInfo
from kafkasafe.codes.numbers import UNKNOWN_TOPIC_OR_PARTITION


class WatchedTopics:
    """The topics whose metadata the client requests. A topic is *new* until a metadata request has named it."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._new: set[str] = set()
        self._may_create: Callable[[str], bool] = lambda _: True

    @property
    def new(self) -> AbstractSet[str]:
        """The topics that no metadata request has named yet."""
        return self._new

    def add(self, topic: str) -> None:
        if topic not in self.names:
            self.names.add(topic)
            self._new.add(topic)

    def discard(self, topic: str) -> None:
        self.names.discard(topic)
        self._new.discard(topic)

    def take(self, *, of_new: bool) -> list[str]:
        """Returns the topics for a request: all, or only the new ones. From now on, no topic is new."""
        names = sorted(self._new if of_new else self.names)
        self._new = set()
        return names

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        self._may_create = may_create

    def to_create(self, answered: Mapping[str, TopicInfo]) -> list[str]:
        """Returns the topics that the answer reports as missing, and that the brokers may create."""
        return sorted(
            name
            for name, info in answered.items()
            if info.error_code == UNKNOWN_TOPIC_OR_PARTITION and name in self.names and self._may_create(name)
        )


def invalid_topic(topic: str) -> BaseException | None:
    """Returns the error of an invalid topic name; None for a valid name."""
    try:
        ensure_valid_topic_name(topic)
    except (TypeError, ValueError) as error:
        invalid: BaseException = kafka_errors.InvalidTopicError(str(error))
        return invalid
    return None
