"""kafka-python's view of the cluster, in which nothing that was asked for gets lost."""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.future import Future

__all__ = ["Metadata"]


class Metadata(ClusterMetadata):
    """Metadata of which an update asked for while a request for less is under way is another one, which follows.

    kafka-python takes the answer under way for it. That one may have been asked before a topic was added: then nothing
    is known of the topic for `metadata_max_age_ms`, five minutes by default. Kafka's own client compares versions of
    what was asked (`Metadata.requestVersion`).
    """

    def __init__(self, **configs: Any) -> None:
        parent: Any = super()
        parent.__init__(**configs)
        # Both under kafka-python's lock.
        self._asked: frozenset[str] | None = (
            None  # topics of the request under way; None: all, or there is none
        )
        self._next: Future | None = None

    def request_update(self) -> Future:
        """See kafka-python's. The future is done with an answer that speaks of all topics which are wanted now."""
        parent: Any = super()
        with self._lock:
            if self._lacks():
                if self._next is None:
                    self._next = Future()
                return self._next
        asked: Future = parent.request_update()
        return asked

    def _lacks(self) -> bool:
        """Whether a request is under way that does not ask for all that is wanted.

        One that does is shared: polls shorter than a round trip, each with one of its own, would never see an answer.
        """
        if self._asked is None:
            return False
        return self.need_all_topic_metadata or not self._asked.issuperset(self._topics)

    def metadata_request(self) -> Any:
        """See kafka-python's."""
        parent: Any = super()
        with self._lock:
            self._asked = None if self.need_all_topic_metadata else frozenset(self._topics)
        return parent.metadata_request()

    def update_metadata(self, metadata: Any) -> None:
        """See kafka-python's."""
        parent: Any = super()
        try:
            parent.update_metadata(metadata)
        finally:  # listeners raise, of topics that may not be read
            self._go_on()

    def failed_update(self, exception: BaseException) -> None:
        """See kafka-python's."""
        parent: Any = super()
        try:
            parent.failed_update(exception)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """What was asked for meanwhile is the next update."""
        with self._lock:
            self._asked = None
            following, self._next = self._next, None
        if following is not None:
            asked: Any = self.request_update()
            asked.chain(following)
