"""kafka-python's view of the cluster, extended so that no request for an update gets lost."""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.future import Future


class Metadata(ClusterMetadata):
    """Metadata that start another update for topics that the request in flight does not cover.

    kafka-python 3.0.12 counts the response in flight as the answer to a new request (KAFKA-7831 was this fault in
    Kafka's own client). That response may have been requested before a topic was added. Then the topic stays unknown
    for `metadata_max_age_ms`, five minutes by default. Since KAFKA-7831, Kafka's own client counts the changes
    to its set of topics, and so recognises a response that was requested before the latest change
    (`Metadata.requestVersion`).
    """

    def __init__(self, **configs: Any) -> None:
        parent: Any = super()
        parent.__init__(**configs)
        # kafka-python's lock guards both attributes.
        self._asked: frozenset[str] | None = (
            None  # topics of the request in flight; None: all topics, or no request
        )
        self._next: Future | None = None

    def request_update(self) -> Future:
        """See kafka-python's method. The future completes with a response that covers all topics that are wanted at the
        time of this call.
        """
        parent: Any = super()
        with self._lock:
            if self._lacks():
                if self._next is None:
                    self._next = Future()
                return self._next
        asked: Future = parent.request_update()
        return asked

    def _lacks(self) -> bool:
        """Whether the request in flight does not cover all wanted topics.

        A request that covers them is shared. Otherwise, polls that are shorter than a round trip would never see a
        response, because each would start its own request.
        """
        if self._asked is None:
            return False
        return self.need_all_topic_metadata or not self._asked.issuperset(self._topics)

    def metadata_request(self) -> Any:
        parent: Any = super()
        with self._lock:
            self._asked = None if self.need_all_topic_metadata else frozenset(self._topics)
        return parent.metadata_request()

    def update_metadata(self, metadata: Any) -> None:
        parent: Any = super()
        try:
            parent.update_metadata(metadata)
        finally:  # a listener may raise an error, for topics that the user may not read
            self._go_on()

    def failed_update(self, exception: BaseException) -> None:
        parent: Any = super()
        try:
            parent.failed_update(exception)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Starts the next update, if topics were requested meanwhile."""
        with self._lock:
            self._asked = None
            following, self._next = self._next, None
        if following is not None:
            asked: Any = self.request_update()
            asked.chain(following)
