"""kafka-python's view of the cluster, in which nothing that was asked for gets lost."""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.future import Future

__all__ = ["Metadata"]


class Metadata(ClusterMetadata):
    """Metadata of which an update asked for while a request is under way is another one, which follows.

    kafka-python takes the answer under way for it. That one may have been asked before a topic was added: then nothing
    is known of the topic for `metadata_max_age_ms`, five minutes by default. Kafka's own client compares versions of
    what was asked (`Metadata.requestVersion`).
    """

    def __init__(self, **configs: Any) -> None:
        parent: Any = super()
        parent.__init__(**configs)
        # Both under kafka-python's lock.
        self._under_way = False
        self._next: Future | None = None

    def request_update(self) -> Future:
        """See kafka-python's. The future is done with the answer to a request made after this call."""
        parent: Any = super()
        with self._lock:
            if self._under_way:
                if self._next is None:
                    self._next = Future()
                return self._next
        asked: Future = parent.request_update()
        return asked

    def metadata_request(self) -> Any:
        """See kafka-python's."""
        parent: Any = super()
        with self._lock:
            self._under_way = True
        return parent.metadata_request()

    def update_metadata(self, metadata: Any) -> None:
        """See kafka-python's."""
        parent: Any = super()
        parent.update_metadata(metadata)
        self._go_on()

    def failed_update(self, exception: BaseException) -> None:
        """See kafka-python's."""
        parent: Any = super()
        parent.failed_update(exception)
        self._go_on()

    def _go_on(self) -> None:
        """What was asked for meanwhile is the next update. On the thread of the refresh loop, which goes on with it."""
        with self._lock:
            self._under_way = False
            following, self._next = self._next, None
            if following is None:
                return
            self._need_update = True
            if self._future is None or self._future.is_done:
                self._future = following
                return
            asked = self._future
        asked.chain(following)
