"""kafka-python's cluster metadata, changed so that no call of `request_update` gets lost."""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.future import Future


class Metadata(ClusterMetadata):
    """kafka-python's cluster metadata. If the request in flight does not contain all wanted topics, another request
    follows.

    If an update is requested while another request is in flight, kafka-python 3.0.12 sends no new request, but takes
    the response to the earlier one as the answer. If the request in flight was sent before a topic was added, the topic
    is missing for `metadata_max_age_ms`, five minutes by default. Kafka's own client had the same fault (KAFKA-7831).
    Today Kafka's client counts the changes to its set of topics, and so recognises an outdated response
    (`Metadata.requestVersion`).
    """

    def __init__(self, **configs: Any) -> None:
        parent: Any = super()
        parent.__init__(**configs)
        # kafka-python's lock guards `_asked` and `_next`.
        self._asked: frozenset[str] | None = (
            None  # topics of the request in flight; None: all topics, or no request
        )
        self._next: Future | None = None

    def request_update(self) -> Future:
        """See kafka-python's method. The future completes with a response about all topics that are wanted now."""
        parent: Any = super()
        with self._lock:
            if self._lacks():
                if self._next is None:
                    self._next = Future()
                return self._next
        asked: Future = parent.request_update()
        return asked

    def _lacks(self) -> bool:
        """Whether a wanted topic is missing in the request in flight.

        If no topic is missing, further callers share the request in flight. If each poll waited for a new request, a
        poll that is shorter than a round trip would never get a response.
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
        finally:  # a listener may raise an error if the user has no right to read a topic
            self._go_on()

    def failed_update(self, exception: BaseException) -> None:
        parent: Any = super()
        try:
            parent.failed_update(exception)
        finally:
            self._go_on()

    def _go_on(self) -> None:
        """Starts another update if the finished update lacked topics that were requested meanwhile."""
        with self._lock:
            self._asked = None
            following, self._next = self._next, None
        if following is not None:
            asked: Any = self.request_update()
            asked.chain(following)
