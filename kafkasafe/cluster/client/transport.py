"""`Transport` implements `Cluster` over a `Network`, and is the `Service` of that network.

A `Transport` consists of objects of the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafkasafe.cluster.api import (
    Broker,
    EpochEnd,
    HeadersFetched,
    MetadataRefreshed,
    OffsetListed,
    ProduceCallback,
    ProduceRequest,
    ProducerIdGranted,
    ProducersDescribed,
    Reached,
    RecordsFetched,
    Reply,
    TopicCreated,
    TopicInfo,
    TopicsListed,
)
from kafkasafe.cluster.client.broker_questions import BrokerQuestions
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.produce import ProduceRouter
from kafkasafe.cluster.client.questions import LeaderQuestions
from kafkasafe.cluster.client.reachability import Reachability
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.client.watched_topics import WatchedTopics
from kafkasafe.cluster.coordinators import CoordinatorQuestions
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.terms import TopicPartition, closed_error, log
from kafkasafe.cluster.transactions import Transactions


class Transport:
    """Sends requests to a Kafka cluster. Thread-safe; every request gets exactly one reply. `Cluster` and `Service`
    describe the methods.

    `kafkapython.connect.over_sockets` makes a transport that uses sockets; `VirtualCluster.connect` makes a transport
    that runs in virtual time.

    A `reply` is a callback that runs on the network thread. The callback must only store the result, because the client
    communicates with no broker until the callback returns. After `close` (and in a forked child) requests fail at once,
    on the caller's thread. A network failure is passed to the reply as a `Failure`, and not raised.

    The transport is not usable in a child after `os.fork`, because only the parent has the network thread.

    Args:
        network: Connections and time.
        options: `KafkaProducer`'s options that do not concern the network: `retry_backoff_ms`, `max_request_size`,
            `allow_auto_create_topics`.
    """

    def __init__(self, network: Network, options: Mapping[str, Any]) -> None:
        self._network = network
        bound = log.bind(client_id=network.client_id)
        mailbox = self._mailbox = Mailbox(network)
        schedule = self._schedule = RefreshSchedule(
            network, mailbox, options.get("retry_backoff_ms", 100) / 1000
        )
        leaders = self._leaders = Leaders()
        pin = self._pin = ClusterPin(bound)
        links = self._links = Links(network, mailbox, schedule, pin, leaders)
        reachability = self._reachability = Reachability(bound)
        topics = self._topics = WatchedTopics()
        refresher = self._refresher = Refresher(
            network, mailbox, schedule, pin, leaders, links, reachability, topics, options=options
        )
        self._produce_router = ProduceRouter(
            network,
            mailbox,
            schedule,
            leaders,
            links,
            refresher,
            options.get("max_request_size", 1048576),
        )
        self._leader_questions = LeaderQuestions(network, mailbox, schedule, leaders, links, refresher)
        self._broker_questions = BrokerQuestions(network, mailbox, schedule, links, refresher, reachability)
        self._coordinator_questions = CoordinatorQuestions(self._broker_questions.ask)
        network.serve(self)

    def __repr__(self) -> str:
        connected = "connected" if self.connected else "not connected"
        state = "closed" if self.closed else connected
        return f"<Transport {self._network.client_id} {state} topics={len(self._leaders.topics)}>"

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._network.start()

    def close(self, timeout_s: float) -> bool:
        return self._network.close(timeout_s)

    @property
    def connected(self) -> bool:
        return self._reachability.connected

    @property
    def closed(self) -> bool:
        return self._mailbox.ended

    @property
    def last_error(self) -> BaseException | None:
        return self._reachability.last_error

    # -- For the network -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)

    def look(self) -> None:
        self._mailbox.look()
        self._links.ask_gathered()

    def shut_down(self) -> None:
        if self._mailbox.close():
            return
        error = closed_error()
        self._refresher.fail_all(error)
        self._links.close(error)
        self._network.stop()

    def close_soon(self) -> None:
        self._mailbox.post(self.shut_down, lambda _: None)

    def interrupted(self, error: BaseException) -> bool:
        crashed = not self._mailbox.close()
        why = error if crashed else closed_error()
        self._refresher.fail_all(why)
        self._links.abandon(why)
        return crashed

    def begin_anew(self) -> None:
        self._links.begin_anew()
        self._produce_router.order.begin_anew()
        self._schedule.begin_anew()
        self._mailbox.reopen()

    def end(self, error: BaseException) -> None:
        self._mailbox.end(error)

    # -- Which cluster -------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str | None:
        return self._pin.cluster_id

    def pin_cluster(
        self, *, on_other_cluster: Callable[[str], None], on_pinned_cluster: Callable[[], None]
    ) -> None:
        self._pin.pin_cluster(on_other_cluster=on_other_cluster, on_pinned_cluster=on_pinned_cluster)

    def repin(self, cluster_id: str) -> None:
        def run() -> None:
            # The brokers of some connections may still belong to the former cluster, because the connections opened
            # before the caller called `repin`.
            self._links.leave(self._pin.repin(cluster_id))
            self._links.connect_at_once()
            self._schedule.want(urgent=True)

        self._mailbox.post(run, lambda _: None)

    @property
    def connected_to_pinned(self) -> bool:
        return self._links.usable

    # -- Metadata ------------------------------------------------------------------------------------------------

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        self._refresher.on_metadata(callback)

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        self._topics.create_only(may_create)

    def topic(self, name: str) -> TopicInfo | None:
        return self._leaders.topics.get(name)

    def topics(self) -> list[str]:
        return [name for name, info in self._leaders.topics.items() if info.partitions]

    def brokers(self) -> list[Broker]:
        return self._network.brokers()

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        self._refresher.refresh_metadata(topics, reply)

    def unwatch(self, topic: str) -> None:
        self._refresher.unwatch(topic)

    # -- Requests ------------------------------------------------------------------------------------------------

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        self._broker_questions.list_topics(reply)

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        self._broker_questions.topic_at(node, topic, reply)

    def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        timeout_ms: int,
        reply: Reply[TopicCreated],
    ) -> None:
        self._broker_questions.create_topic(name, partitions, config, timeout_ms, reply)

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        self._broker_questions.init_producer_id(reply)

    @property
    def transactions(self) -> Transactions:
        return self._coordinator_questions

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        self._produce_router.produce(requests, acks, timeout_ms, reply)

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        self._leader_questions.reach(topic, partition, reply)

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        self._leader_questions.describe_producers(topic, partition, reply)

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        self._leader_questions.fetch_headers(topic, partition, offset, max_bytes, reply)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        reply: Reply[RecordsFetched],
        *,
        isolation_level: int = 0,
        max_wait_ms: int = 0,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        self._leader_questions.fetch_records(
            topic,
            partition,
            offset,
            max_bytes,
            reply,
            isolation_level=isolation_level,
            max_wait_ms=max_wait_ms,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        self._leader_questions.list_offset(
            topic, partition, timestamp, reply, isolation_level=isolation_level
        )

    def list_offsets(
        self,
        partitions: Sequence[TopicPartition],
        timestamp: int,
        reply: Reply[Mapping[TopicPartition, OffsetListed]],
        *,
        isolation_level: int = 0,
    ) -> None:
        self._leader_questions.list_offsets(partitions, timestamp, reply, isolation_level=isolation_level)

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        self._leader_questions.log_end_offset(topic, partition, reply)

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        self._leader_questions.offset_for_leader_epoch(
            topic, partition, leader_epoch, reply, current_leader_epoch=current_leader_epoch
        )
