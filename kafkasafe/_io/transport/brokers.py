"""Which cluster the links must lead to, and what is known of its leaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafkasafe._io.transport.ground import Ground
from kafkasafe._io.transport.links import Links
from kafkasafe._io.transport.schedule import RefreshSchedule
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.terms import TopicPartition

__all__ = ["Brokers"]


class Brokers(Ground):
    """Part of `Transport`: brokers and leaders."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._leaders = Leaders()
        self._pin = ClusterPin(self._log)
        self._schedule = RefreshSchedule(
            self._network, self._mailbox, options.get("retry_backoff_ms", 100) / 1000
        )
        self._links = Links(self._network, self._mailbox, self._schedule, self._pin, self._leaders)

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """Speak to one cluster only: the first that answers, until `move` names another. Call before `start`.

        Each new connection is asked for its cluster's id before anything else is written to it (one round trip). One
        that leads elsewhere is closed, with WrongClusterError for what waited for it, and tried again with back-off.
        Brokers that do not say (before 0.10.1) are believed as long as none has said.

        Args:
            on_stranger: Called with the id of another cluster that answered, on the network thread.
            on_home: Called there when a new connection leads to the right cluster, before anything goes out on it.
        """
        self._pin.guard(on_stranger=on_stranger, on_home=on_home)

    def move(self, cluster_id: str) -> None:
        """From now on this is the cluster to speak to (guarded transports only)."""

        def run() -> None:
            self._pin.move(cluster_id)
            self._links.connect_at_once()
            self._schedule.want(urgent=True)

        self._mailbox.post(run, lambda _: None)

    @property
    def at_home(self) -> bool:
        """Whether a broker of the right cluster is connected. From any thread."""
        return self._links.usable

    def _take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        return self._leaders.take_hint(target, hint, self._network.addresses())
