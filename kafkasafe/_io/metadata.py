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
        # All under kafka-python's lock.
        self._under_way = False
        self._asked: frozenset[str] | None = frozenset()  # topics of the request under way; None: all
        self._next: Future | None = None

    def request_update(self) -> Future:
        """See kafka-python's. The future is done with an answer that speaks of all topics which are wanted now."""
        parent: Any = super()
        with self._lock:
            if self._under_way and not self._is_asked():
                if self._next is None:
                    self._next = Future()
                return self._next
        asked: Future = parent.request_update()
        return asked

    def _is_asked(self) -> bool:
        """Whether the request under way asks for all that is wanted.

        Then it is shared: polls shorter than a round trip, each with a request of its own, would never see an answer.
        """
        if self._asked is None:
            return True
        return not self.need_all_topic_metadata and self._asked.issuperset(self._topics)

    def metadata_request(self) -> Any:
        """See kafka-python's."""
        parent: Any = super()
        with self._lock:
            self._under_way = True
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
            self._under_way = False
            following, self._next = self._next, None
            if following is None:
                return
            self._need_update = True  # the refresh loop, on whose thread this is, looks at it next
            if self._future is None or self._future.is_done:
                self._future = following
                return
            asked = self._future
        asked.chain(following)
