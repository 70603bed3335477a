"""The links to brokers: which cluster they must belong to, and when they have been silent too long.

What is sent on a link, and when metadata are asked for, is not decided here.
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe._io.transport.ground import Ground
from kafkasafe._io.transport.link import Link
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.preference import preference
from kafkasafe.cluster.terms import (
    SILENCE_S,
    NodeId,
    TopicPartition,
)

__all__ = ["Brokers"]

_TICK_S: Final = 0.5


class Brokers(Ground):
    """Part of `Transport`: brokers and leaders."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._links: dict[NodeId, Link] = {}
        self._asking: list[Link] = []  # those with questions gathered in this turn of the loop
        self._leaders = Leaders()
        self._pin = ClusterPin(self._log)
        self._ticking = False
        self._mailbox.at_end_of_look(self._ask_gathered)

    @abstractmethod
    def _want_metadata(self, *, urgent: bool = False) -> None: ...

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
            for link in self._links.values():
                link.not_before = 0.0
            self._want_metadata(urgent=True)

        self._mailbox.post(run, lambda _: None)

    @property
    def at_home(self) -> bool:
        """Whether a broker of the right cluster is connected. From any thread."""
        return any(link.usable for link in list(self._links.values()))

    def _link(self, node_id: NodeId) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(self, node_id)
        return link

    def _preference(self, link: Link, now: float) -> tuple[object, ...]:
        """Orders links: lowest is best to send to."""
        order = preference(
            suspect=link.suspect_until > now,
            ready=link.ready,
            failures=link.failures,
            bootstrap=isinstance(link.node_id, str),
            in_flight=len(link.in_flight),
        )
        return (*order, random.random())

    def _take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        return self._leaders.take_hint(target, hint, self._network.addresses())

    def _ask_gathered(self) -> None:
        asking, self._asking = self._asking, []
        for link in asking:
            link.ask_gathered()

    def _drop_moved(self) -> None:
        for link in list(self._links.values()):
            link.drop_moved(self._leaders.leader_id)

    # -- Silence -------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        if not self._ticking and not self._mailbox.closing:
            self._ticking = True
            self._network.loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        """A leader that hangs keeps its connection: only other brokers can tell that it leads no more."""
        self._ticking = False
        if self._mailbox.closing:
            return
        now = time.monotonic()
        busy = False
        for link in self._links.values():
            busy = busy or bool(link.in_flight)
            if link.silent_for(now) > SILENCE_S:
                link.suspect_until = now + 2 * SILENCE_S
                self._want_metadata()
        if busy:
            self._watch_silence()

    def _drop_hung(self) -> None:
        """Cuts silent connections whose requests have a new leader to go to."""
        now = time.monotonic()
        for link in list(self._links.values()):
            if link.silent_for(now) <= SILENCE_S:
                continue
            leaders = {self._leaders.leader_id(target) for call in link.in_flight for target in call.targets}
            if leaders - {link.node_id, None}:
                link.hang_up(
                    kafka_errors.KafkaConnectionError(f"Node {link.node_id} is silent and leads no more")
                )
