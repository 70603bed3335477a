"""What an inquiry asks the leader of a partition: one method for each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kafkasafe.cluster.api import Reply
from kafkasafe.cluster.procedures import Ask
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane

__all__ = ["Leader"]

_PAGE_BYTES: Final = 1024 * 1024


class Leader:
    """The leader of a partition, for one lane.

    Each method returns a request. Its argument `step` is the name that transcripts show.

    Args:
        context: See there.
        lane: The lane.
        topic: Topic name.
        partition: Partition number.
        note: Called before each request.
    """

    def __init__(
        self,
        context: EngineContext,
        lane: Lane,
        topic: str,
        partition: int,
        note: Callable[[str, int], None] | None = None,
    ) -> None:
        self._context = context
        self._cluster = context.cluster
        self._lane = lane
        self._topic = topic
        self._partition = partition
        self._note = note

    def name(self, inquiry: object) -> str:
        """What transcripts show of an inquiry."""
        return f"{type(inquiry).__name__}({self._lane.name} {self._topic}-{self._partition})"

    @property
    def address(self) -> tuple[str, int]:
        """Topic and partition."""
        return self._topic, self._partition

    @property
    def epoch(self) -> int:
        """The leader epoch from the metadata, -1 if unknown."""
        return self._context.leader_epoch(self._topic, self._partition)

    def describe_producers(self, step: str) -> Ask:
        """Ask for the producers that the leader remembers."""
        return self._ask(step, lambda reply: self._cluster.describe_producers(*self.address, reply))

    def offset_for_leader_epoch(self, epoch: int, step: str) -> Ask:
        """Ask where a leader epoch ends."""
        return self._ask(
            step, lambda reply: self._cluster.offset_for_leader_epoch(*self.address, epoch, reply)
        )

    def list_offset(self, timestamp: int, step: str) -> Ask:
        """Ask for an offset by timestamp; `EARLIEST` and `LATEST` are the ends of the log."""
        return self._ask(step, lambda reply: self._cluster.list_offset(*self.address, timestamp, reply))

    def log_end_offset(self, step: str) -> Ask:
        """Ask where the log ends."""
        return self._ask(step, lambda reply: self._cluster.log_end_offset(*self.address, reply))

    def fetch_headers(self, offset: int, step: str) -> Ask:
        """Ask for a page of batch headers."""
        return self._ask(
            step, lambda reply: self._cluster.fetch_headers(*self.address, offset, _PAGE_BYTES, reply)
        )

    def refresh_metadata(self, step: str) -> Ask:
        """Ask for the metadata of the topic."""
        return self._ask(step, lambda reply: self._cluster.refresh_metadata([self._topic], reply))

    def _ask(self, step: str, send: Callable[[Reply[Any]], None]) -> Ask:
        if self._note is not None:
            self._note(*self.address)
        return Ask(send, step)
