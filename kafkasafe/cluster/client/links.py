"""The links to the brokers. This module also notices brokers that have been silent too long.

Other modules decide which requests a link sends, and when metadata are requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.backoff import Backoff
from kafkasafe.cluster.client.calls import PartitionQuestion, Wanted
from kafkasafe.cluster.client.link import BrokerLink
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.terms import SILENCE_S, NodeId

_TICK_S: Final = 0.5


class Links:
    """One link to each broker."""

    def __init__(
        self, network: Network, mailbox: Mailbox, schedule: RefreshSchedule, pin: ClusterPin, leaders: Leaders
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._pin = pin
        self._leaders = leaders
        self._backoff = Backoff.around(
            network.reconnect_backoff_s,
            network.reconnect_backoff_max_s,
            random_fraction=network.random_fraction,
        )
        self._links: dict[NodeId, BrokerLink] = {}
        self._asking: list[BrokerLink] = []
        """Links with questions that were gathered in this turn of the event loop."""
        self._ticking = False

    def link(self, node_id: NodeId) -> BrokerLink:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = BrokerLink(
                node_id,
                self._network,
                self._pin,
                self._backoff,
                want_metadata=self._schedule.want,
                watch_silence=self._watch_silence,
            )
        return link

    def best(self, links: Iterable[BrokerLink], now: float) -> BrokerLink:
        """The best of these links for a request. A link to one of `bootstrap_servers` is used only if no other link is
        equally good.
        """
        return min(
            links,
            key=lambda link: (
                link.suspect_until > now,
                not link.ready,
                link.failures,
                isinstance(link.node_id, str),
                len(link.in_flight),
                self._network.random_fraction(),
            ),
        )

    @property
    def usable(self) -> bool:
        """Whether there is a connection to the right cluster. Any thread may read this property."""
        return any(link.usable for link in list(self._links.values()))

    def alive(self, now: float) -> bool:
        """Whether there is a usable connection to a broker that is not suspected to hang."""
        return any(link.alive(now) for link in self._links.values())

    def ask(self, node_id: NodeId, kind: Wanted, question: PartitionQuestion) -> None:
        """Sends the question, together with other questions of its kind, at the end of this turn of the event loop."""
        link = self.link(node_id)
        link.gather(kind, question)
        self._asking.append(link)

    def ask_gathered(self) -> None:
        """Sends the questions that were gathered in this turn of the event loop."""
        asking, self._asking = self._asking, []
        for link in asking:
            link.ask_gathered()

    # -- Giving up -----------------------------------------------------------------------------------------------

    def drop_moved(self) -> None:
        """Fails waiting requests whose partition has another leader now."""
        for link in list(self._links.values()):
            link.drop_moved(self._leaders.leader_id)

    def drop_hung(self) -> None:
        """Closes a silent connection if one of its requests in flight is for a partition that another broker leads
        now.
        """
        now = self._network.now()
        for link in list(self._links.values()):
            if link.silent_for(now) <= SILENCE_S:
                continue
            leaders = {self._leaders.leader_id(target) for call in link.in_flight for target in call.targets}
            if leaders - {link.node_id, None}:
                link.hang_up(
                    kafka_errors.KafkaConnectionError(
                        f"Node {link.node_id} is silent and is not the leader any more"
                    )
                )

    def drop_bootstrap(self) -> None:
        """Closes idle connections to `bootstrap_servers`, which served only to find the other brokers."""
        for node, link in list(self._links.items()):
            if isinstance(node, str) and not link.busy:
                link.hang_up()

    def leave(self, error: BaseException | None) -> None:
        """Closes all usable connections with this error, because their brokers belong to the formerly pinned cluster.
        Does nothing if `error` is None.
        """
        for link in list(self._links.values()) if error is not None else ():
            if link.usable:
                link.hang_up(error)

    def close(self, error: BaseException) -> None:
        """Fails all waiting requests, and closes all connections."""
        for link in list(self._links.values()):
            link.drop(error)
            link.hang_up()

    def abandon(self, error: BaseException) -> None:
        """Fails the waiting requests and the requests in flight, because the event loop has ended."""
        for link in list(self._links.values()):
            link.abandon(error)

    def begin_anew(self) -> None:
        """Forgets all connections after a crash of the event loop, because the new loop opens its own connections."""
        self._links = {}
        self._asking = []
        self._ticking = False

    def connect_at_once(self) -> None:
        """Opens the next connections without a back-off."""
        for link in self._links.values():
            link.connect_at_once()

    # -- Silence -------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        if not self._ticking and not self._mailbox.closing:
            self._ticking = True
            self._network.call_at(self._network.now() + _TICK_S, self._tick)

    def _tick(self) -> None:
        """Asks for metadata while a broker is silent: if a leader hangs, only other brokers can report who leads its
        partitions now.
        """
        self._ticking = False
        if self._mailbox.closing:
            return
        now = self._network.now()
        busy = False
        for link in self._links.values():
            busy = busy or bool(link.in_flight)
            if link.silent_for(now) > SILENCE_S:
                link.suspect(now)
                self._schedule.want()
        if busy:
            self._watch_silence()
