"""Sends requests to a certain broker, or to any broker, and interprets the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import (
    Broker,
    Failure,
    ProducerIdGranted,
    Reply,
    TopicCreated,
    TopicInfo,
    TopicsListed,
)
from kafkasafe.cluster.client.calls import QuestionCall
from kafkasafe.cluster.client.link import BrokerLink
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.reachability import Reachability
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.coordinators import Node, Question, metadata_question, producer_id_question
from kafkasafe.cluster.leaders import topic_at, topics_listed
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.terms import not_sent, safely


class BrokerQuestions:
    """Sends requests to a certain broker, or to any broker. `Cluster` describes the public methods."""

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        links: Links,
        refresher: Refresher,
        reachability: Reachability,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._links = links
        self._refresher = refresher
        self._reachability = reachability
        self._looks: dict[tuple[int, str], list[Reply[TopicInfo]]] = {}
        """The callers that asked while a request was in flight, by the request's broker and topic."""

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        self.ask(metadata_question(None, topics_listed), reply)

    def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        timeout_ms: int,
        reply: Reply[TopicCreated],
    ) -> None:
        def parse(response: Any) -> TopicCreated:
            answer = response.topics[0]
            return TopicCreated(answer.error_code, answer.error_message)

        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": -1,
            "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in config.items()],
        }
        fields = {"topics": [topic], "timeout_ms": timeout_ms, "validate_only": False}
        # CreateTopics v4 is the first version with the brokers' default replication (KIP-464, Kafka 2.4).
        self.ask(Question("CreateTopics", fields, parse, 4), reply)

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        self.ask(producer_id_question(), reply)

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """See `Cluster.topic_at`.

        Callers may ask for all partitions of a topic at the same time, for instance after a restart of a broker. So
        only one request about the topic is in flight at a time. Callers that ask while a request is in flight share the
        next request, because the broker may have learned more meanwhile.
        """

        def run() -> None:
            waiting = self._looks.get((node, topic))
            if waiting is None:
                self._look(node, topic, [reply])
            else:
                waiting.append(reply)

        self._mailbox.post(run, not_sent(reply))

    def _look(self, node: int, topic: str, replies: list[Reply[TopicInfo]]) -> None:
        self._looks[node, topic] = []

        def parse(response: Any) -> TopicInfo:
            return topic_at(response, topic, version=response.API_VERSION)

        def answered(answer: TopicInfo | Failure) -> None:
            waiting = self._looks.pop((node, topic))
            for reply in replies:
                safely(reply, answer)
            if waiting:
                self._look(node, topic, waiting)

        if node in self._network.addresses():
            self._submit(self._links.link(node), metadata_question([topic], parse), answered)
        else:
            error = kafka_errors.NodeNotReadyError(f"Node {node} is not known")
            answered(Failure(error, sent=False))

    def ask(self, question: Question, reply: Reply[Any], *, node: Node | None = None) -> None:
        """Asks a certain broker, or the best one.

        Args:
            question: The request, and how to parse its answer. If `parse` raises, `reply` gets a `Failure` with the
                exception.
            reply: Gets the result of `parse`, or a `Failure`.
            node: The broker to ask, as the triple (node id, host, port) that another broker reported. None: any broker.
        """

        def run() -> None:
            if node is None:
                self._ask_any(question, reply, final=False)
            else:
                self._network.learn_broker(Broker(*node))
                self._submit(self._links.link(node[0]), question, reply)

        self._mailbox.post(run, not_sent(reply))

    def _ask_any(self, question: Question, reply: Reply[Any], *, final: bool) -> None:
        links = [self._links.link(node) for node in self._network.nodes()]
        if links and (self._reachability.answered or final):
            self._submit(self._links.best(links, self._network.now()), question, reply)
        elif final:
            unknown = kafka_errors.NodeNotReadyError("No broker is known yet")
            safely(reply, Failure(unknown, sent=False))
        else:
            self._refresher.park(lambda final: self._ask_any(question, reply, final=final), not_sent(reply))
            self._schedule.want()

    def _submit(self, link: BrokerLink, question: Question, reply: Reply[Any]) -> None:
        link.submit(QuestionCall(question, reply, timeout_s=self._network.request_timeout_s))
