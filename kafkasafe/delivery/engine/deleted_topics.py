"""Deleted topics that no records wait for, and since when they are deleted."""

from __future__ import annotations

__all__ = ["DeletedTopics"]


class DeletedTopics:
    """See the module. `TopicKeeper` changes it."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._since

    def note(self, topic: str, now: float) -> float:
        """Record that brokers call a topic unknown. Return since when they do."""
        return self._since.setdefault(topic, now)

    def forget(self, topic: str) -> None:
        """Forget a topic: it exists, records wait for it, or the journal has forgotten it."""
        self._since.pop(topic, None)
