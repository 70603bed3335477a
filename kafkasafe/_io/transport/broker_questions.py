"""What is asked of a certain broker, or of any: each request and what its answer means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kafka.errors as kafka_errors

from kafkasafe._io.transport.calls import KafkaCall
from kafkasafe._io.transport.links import Links
from kafkasafe._io.transport.mailbox import Mailbox
from kafkasafe._io.transport.network import Network
from kafkasafe._io.transport.router import Router
from kafkasafe.cluster.api import Failure, Reply, TopicInfo, TopicsListed
from kafkasafe.cluster.leaders import topic_at, topics_listed
from kafkasafe.cluster.terms import not_sent, safely
from kafkasafe.kafkapython.requests import MetadataRequest

__all__ = ["BrokerQuestions"]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A broker's address, as FindCoordinator gives it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class BrokerQuestions:
    """Requests to a certain broker, or to any.

    Args:
        network: The addresses of brokers, and the time limit of requests.
        mailbox: The way in for other threads.
        links: The ways to the brokers.
        router: Finds the best broker.
    """

    def __init__(self, network: Network, mailbox: Mailbox, links: Links, router: Router) -> None:
        self._network = network
        self._mailbox = mailbox
        self._links = links
        self._router = router

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics. They are not watched.

        Args:
            reply: Gets `TopicsListed` or `Failure`.
        """

        def make() -> KafkaCall:
            request = MetadataRequest(
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            return KafkaCall(
                request, topics_listed, reply, timeout_s=self._network.request_timeout_s, minimum=1
            )

        self._mailbox.post(
            lambda: self._router.route_any(make, final=False, reply=reply),
            not_sent(reply),
        )

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """Asks one broker what it knows of a topic; see `Cluster`."""

        def parse(response: Any) -> TopicInfo:
            return topic_at(response, topic, version=response.API_VERSION)

        def run() -> None:
            if self._network.manager.cluster.broker_metadata(node) is None:
                safely(
                    reply, Failure(kafka_errors.NodeNotReadyError(f"Node {node} is not known"), sent=False)
                )
                return
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            self._links.link(node).submit(
                KafkaCall(request, parse, reply, timeout_s=self._network.request_timeout_s, minimum=1)
            )

        self._mailbox.post(run, not_sent(reply))

    def ask(
        self,
        request: Any,
        parse: Callable[[Any], Any],
        reply: Reply[Any],
        *,
        node: tuple[int, str, int] | None = None,
        minimum: int = 0,
        maximum: int = 32767,
    ) -> None:
        """Sends any request of kafka-python's to a certain broker, or to whichever one is there.

        Args:
            request: The request; not to be used again.
            parse: Makes the result of the response; what it raises is the `Failure`.
            reply: Gets that result or `Failure`.
            node: (node id, host, port) of the broker, as another broker said; None: any.
            minimum: Oldest version of the request that will do.
            maximum: Newest version to speak.
        """

        def make() -> KafkaCall:
            return KafkaCall(
                request,
                parse,
                reply,
                timeout_s=self._network.request_timeout_s,
                minimum=minimum,
                maximum=maximum,
            )

        def run() -> None:
            if node is None:
                self._router.route_any(make, final=False, reply=reply)
            else:
                self._network.learn_broker(_Endpoint(*node))
                self._links.link(node[0]).submit(make())

        self._mailbox.post(run, not_sent(reply))
