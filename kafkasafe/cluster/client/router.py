"""Chooses the broker for a request: the leader, or the best broker.

A request whose leader is unknown is parked until the next metadata.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kafkasafe.cluster.api import Failure, Reply
from kafkasafe.cluster.client.calls import PartitionQuestion, QuestionCall, Wanted
from kafkasafe.cluster.client.link import BrokerLink
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.reachability import Reachability
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.coordinators import Question
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.preference import any_broker
from kafkasafe.cluster.terms import LEADER_NOT_AVAILABLE, STALE_METADATA, error_of, not_sent, safely

__all__ = ["Router"]

_INT64: Final = struct.Struct(">q")


class Router:
    """Finds the link to a partition's leader.

    Args:
        network: The addresses of brokers.
        mailbox: Passes jobs to the network thread.
        schedule: Requests metadata when they are out of date.
        leaders: The leaders of partitions, by the latest metadata.
        links: The links to the brokers.
        refresher: Parks requests that wait for metadata.
        reachability: Whether the cluster answers.
    """

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        leaders: Leaders,
        links: Links,
        refresher: Refresher,
        reachability: Reachability,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._leaders = leaders
        self._links = links
        self._refresher = refresher
        self._reachability = reachability

    def ask_leader(self, topic: str, partition: int, question: Question, reply: Reply[Any]) -> None:
        """Asks the leader of a partition.

        Args:
            topic: Topic name.
            partition: Partition number.
            question: The question. An exception of `parse` becomes the `Failure`.
            reply: Gets the result of `parse`, or `Failure`.
        """
        noticed = replace(question, parse=self._noticing(question.parse))

        def submit(leader: int) -> None:
            self._links.link(leader).submit(
                QuestionCall(
                    noticed,
                    reply,
                    timeout_s=self._network.request_timeout_s,
                    targets=((topic, partition),),
                )
            )

        self.to_leader(topic, partition, submit, not_sent(reply))

    def question(
        self,
        topic: str,
        partition: int,
        kind: Wanted,
        wanted: Callable[[], dict[str, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        """Like `ask_leader`, but the question shares a request with others of its kind."""
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            fields = wanted()
            try:
                for number in fields.values():
                    _INT64.pack(number)
            except struct.error as error:  # fail only this question, not those that would share its request
                fail(error)
                return
            self._links.ask(
                leader, kind, PartitionQuestion((topic, partition), fields, self._noticing(parse), reply)
            )

        self.to_leader(topic, partition, submit, fail)

    def _noticing(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Requests metadata if an answer shows that they are out of date."""

        def parsed(answer: Any) -> Any:
            result = parse(answer)
            if result.error_code in STALE_METADATA:
                self._schedule.want()
            return result

        return parsed

    def to_leader(
        self,
        topic: str,
        partition: int,
        submit: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Calls `submit` with the leader's node id on the network thread, or `fail`."""

        def route(final: bool) -> None:
            leader = self._leaders.leader(topic, partition)
            if isinstance(leader, int):
                submit(leader)
                return
            invalid = self._refresher.watch(topic)
            if invalid is not None:
                fail(invalid)
            elif leader is None and not final:
                self._refresher.park(route, fail)
            else:
                fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._mailbox.post(lambda: route(False), fail)

    def route_any(self, make: Callable[[], QuestionCall], *, final: bool, reply: Reply[Any]) -> None:
        """On the network thread: sends a request to the best broker."""
        links = [self._links.link(node) for node in self._network.nodes()]
        now = self._network.now()
        best = any_broker(
            links,
            lambda link: self._links.preference(link, now),
            answered=self._reachability.answered,
            final=final,
        )
        if isinstance(best, BrokerLink):
            best.submit(make())
        elif best is not None:
            safely(reply, Failure(best, sent=False))
        else:
            self._refresher.park(
                lambda final: self.route_any(make, final=final, reply=reply), not_sent(reply)
            )
            self._schedule.want()
