"""`Transport`: lifecycle, requests, routing and metadata."""

from __future__ import annotations

import collections
import functools
import heapq
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest
from kafka.protocol.producer import ProduceRequest as KafkaProduceRequest
from kafka.util import ensure_valid_topic_name

from kafkasafe._core.batch import iter_headers
from kafkasafe._io import at_once, requests
from kafkasafe._io.backoff import Backoff
from kafkasafe._io.transport.calls import (
    EpochsWanted,
    KafkaCall,
    MetadataCall,
    OffsetsWanted,
    PartitionQuestion,
    ReachCall,
    Wanted,
)
from kafkasafe._io.transport.link import Link
from kafkasafe._io.transport.loop import Loop
from kafkasafe._io.transport.manager import DirectManager, suppress_closed
from kafkasafe._io.transport.produce_call import Group, ProduceCall
from kafkasafe._io.transport.sockets import FORGETS
from kafkasafe._io.transport.terms import (
    LEADER_NOT_AVAILABLE,
    MAX_OFFSET,
    STALE_METADATA,
    UNKNOWN_TOPIC,
    NodeId,
    TopicPartition,
    absurd,
    closed_error,
    error_of,
    log,
    not_sent,
    plausible,
    safely,
)
from kafkasafe.cluster.api import (
    NO_TOPIC_ID,
    Broker,
    Buffer,
    EpochEnd,
    Failure,
    HeadersFetched,
    MetadataRefreshed,
    OffsetListed,
    PartitionInfo,
    ProduceCallback,
    ProduceRequest,
    ProducerIdGranted,
    ProducersDescribed,
    ProducerState,
    Reached,
    RecordsFetched,
    Reply,
    TopicInfo,
    TopicsListed,
    in_words,
)
from kafkasafe.cluster.coordinators import Coordinated, Node, Question, highest_produce, lowest_produce
from kafkasafe.errors import ForkedProcessError, WrongClusterError
from kafkasafe.logs import limit_foreign

__all__ = ["Transport"]

# Newest versions this module speaks. From Produce v13 and Fetch v13 on topics are named by id.
_MAX_PRODUCE: Final = 12
_MAX_FETCH: Final = 12

# Oldest versions that carry RecordBatch v2 (brokers from 0.11).
_MIN_FETCH: Final = 4

# Of a batch: offset and length, then what `length` counts; the magic byte; the last offset's delta (v2).
_LOG_OVERHEAD: Final = 12
_MAGIC_AT: Final = 16
_LAST_DELTA_AT: Final = 23

_INT64: Final = struct.Struct(">q")

_METADATA_PATIENCE_S: Final = 3.0  # after that another node is asked
_SILENCE_S: Final = 2.0  # a node with requests in flight that says nothing for so long is suspected
_TICK_S: Final = 0.5

_LEADERLESS_POLL_MAX_S: Final = 1.0
_MISSING_TOPIC_POLL_MAX_S: Final = 5.0
_CALM_S: Final = 60.0  # a network thread that lived so long had no lasting reason to crash
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)
_LOG_EVERY_S: Final = 30.0

_MANAGER_OPTIONS: Final = frozenset(KafkaConnectionManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(NetworkSelector.DEFAULT_CONFIG)

# (route again: whether this is the last try, fail instead)
Parked: TypeAlias = tuple[Callable[[bool], None], Callable[[BaseException], None]]


@dataclass(slots=True)
class _Attempt:
    """A metadata request under way. `waiters` and `parked` are those who asked before it began."""

    link: Link
    waiters: list[Reply[Any]]
    parked: list[Parked]
    timer: Any = None
    over: bool = False


class Transport(Coordinated):
    """Requests to a Kafka cluster. Thread-safe; every request gets exactly one reply.

    Replies are called on the network thread and must only put the result somewhere: whatever they do there, no
    broker is spoken to meanwhile. After `close` (and in a forked child) requests fail at once, on the caller's
    thread. Failures of the network are no errors of a method: they come as `Failure`.

    Not usable in a child after `os.fork`: the thread stays with the parent.

    Args:
        options: `KafkaProducer`'s options; what does not concern connections or metadata is passed over.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that a cluster that comes back is noticed soon.
            `max_in_flight_requests_per_connection` is ignored: limits are the caller's.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        settings: dict[str, Any] = {
            key: value for key, value in options.items() if key in _MANAGER_OPTIONS | _LOOP_OPTIONS
        }
        if settings.get("client_id") is None:
            settings["client_id"] = "kafkasafe"
        if settings.get("api_version") == "auto":
            settings["api_version"] = None
        settings.setdefault("reconnect_backoff_max_ms", 1000)
        settings.setdefault("receive_message_max_bytes", 100_000_000)
        # A slow step is no error on a busy machine: kafka-python would log a warning for each.
        settings.setdefault("slow_task_threshold_secs", 0)
        # Reply callbacks run before kafka-python lifts its pause, and a paused connection refuses requests.
        settings["max_in_flight_requests_per_connection"] = 2**31 - 1
        default_options: Any = KafkaConnectionManager.DEFAULT_CONFIG["socket_options"]
        sockets = list(settings.get("socket_options") or default_options)
        for key, option in (
            ("send_buffer_bytes", socket.SO_SNDBUF),
            ("receive_buffer_bytes", socket.SO_RCVBUF),
        ):
            if options.get(key) is not None:
                sockets.append((socket.SOL_SOCKET, option, options[key]))
        sockets.append((socket.SOL_SOCKET, socket.SO_LINGER, FORGETS))
        settings["socket_options"] = sockets
        self._settings = settings

        self._client_id: str = settings["client_id"]
        self._log = log.bind(client_id=self._client_id)
        limit_foreign()
        self._net: Any
        self._manager: Any
        self._make_loop()
        self._born_at = 0.0
        self._crashes = 0
        config: dict[str, Any] = self._manager.config
        self._request_timeout_s: float = config["request_timeout_ms"] / 1000
        self._retry_backoff_s: float = options.get("retry_backoff_ms", 100) / 1000
        self._reconnect_backoff = Backoff.around(
            config["reconnect_backoff_ms"] / 1000, config["reconnect_backoff_max_ms"] / 1000
        )
        self._leaderless_backoff = Backoff(
            self._retry_backoff_s, _LEADERLESS_POLL_MAX_S, least_s=0.0, jitter=0.0
        )
        self._missing_backoff = Backoff(
            self._retry_backoff_s, _MISSING_TOPIC_POLL_MAX_S, least_s=0.0, jitter=0.0
        )
        self._metadata_max_age_s: float = config["metadata_max_age_ms"] / 1000
        self._max_request_bytes: int = options.get("max_request_size", 1048576)
        self._auto_create: bool = options.get("allow_auto_create_topics", True)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._stopped = threading.Event()

        # Jobs from other threads: (run on the network thread, fail instead).
        self._inbox: collections.deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = (
            collections.deque()
        )
        self._woken = False
        self._ended = False  # nobody will look into the inbox any more

        # Everything below belongs to the network thread; readers elsewhere see whole values.
        self._closing = False
        self._links: dict[NodeId, Link] = {}
        self._asking: list[Link] = []  # those with questions gathered in this turn of the loop
        self._fences: dict[TopicPartition, int] = {}
        # Where the unanswered batches of a partition went, and how many. Invariant: all to one node.
        self._pending: dict[TopicPartition, tuple[NodeId, int]] = {}
        self._produce_versions: dict[tuple[NodeId, int, int], tuple[Any, int]] = {}
        """By node and what will do: what it said it speaks, and which version that makes."""
        self._topics: dict[str, TopicInfo] = {}
        self._watched: set[str] = set()
        self._asked: set[str] = set()  # watched topics that some metadata request has named
        self._cluster_id: str | None = None
        self._guarded = False
        self._home: str | None = None
        """The cluster that connections of a guarded transport must lead to, None until one has said which it is."""
        self._on_stranger: Callable[[str], None] = lambda _: None
        self._on_home: Callable[[], None] = lambda: None
        self._may_create: Callable[[str], bool] = lambda _: True
        self._listeners: list[Callable[[MetadataRefreshed], None]] = []
        self._parked: list[Parked] = []
        self._waiters: list[Reply[Any]] = []
        self._wanted = False
        self._attempt: _Attempt | None = None
        self._attempted_at = -1e9
        self._refresh_timer: Any = None
        self._refresh_at = 0.0
        self._bad_refreshes = 0
        self._failed_refreshes = 0
        self._connected = False
        self._last_error: BaseException | None = None
        self._known = False
        self._logged_at = -1e9
        self._ticking = False

    def _make_loop(self) -> None:
        make_loop: Any = Loop
        make_manager: Any = DirectManager
        self._net = make_loop(**{k: v for k, v in self._settings.items() if k in _LOOP_OPTIONS})
        self._net.on_exit = self._on_loop_exit
        self._net.on_wake = self._look
        self._manager = make_manager(self._net, **self._settings)

    def __repr__(self) -> str:
        state = "closed" if self._ended else "connected" if self._connected else "not connected"
        return f"<Transport {self._client_id} {state} topics={len(self._topics)}>"

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the network thread and goes looking for a broker, for as long as it takes. Idempotent."""
        with self._start_lock:
            if self._thread is not None or self._ended:
                return
            self._post(lambda: self._want_metadata(urgent=True), lambda _: None)
            self._born_at = time.monotonic()
            self._net.start()
            self._thread = self._net._io_thread

    def close(self, timeout_s: float) -> bool:
        """Ends the thread and closes all sockets; everything outstanding gets a `Failure`. Idempotent.

        Args:
            timeout_s: How long to wait for the thread to end, in seconds.

        Returns:
            Whether it has ended. If not (it hangs in a callback), it will end by itself as soon as it can.
        """
        if os.getpid() != self._pid:
            return True  # the loop's epoll is shared with the parent: it must not be touched
        with self._start_lock:
            if self._thread is None:
                if not self._ended:
                    self._shut_down()
                    self._net._stop = True
                    self._on_loop_exit()
                    self._net.close()
                return True
        if threading.current_thread() is self._thread:
            self._shut_down()
            return False
        self._stopped.set()
        self._post(self._shut_down, lambda _: None)
        deadline = time.monotonic() + timeout_s
        while True:
            # It may be that one that takes the place of a crashed one.
            thread = self._thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self._thread or thread.is_alive():
                return not thread.is_alive()

    @property
    def connected(self) -> bool:
        """Whether the cluster answered the latest metadata request."""
        return self._connected

    @property
    def last_error(self) -> BaseException | None:
        """Why no broker can be used, as of the latest try; None while the cluster answers, and before any try."""
        return self._last_error

    @property
    def closed(self) -> bool:
        """Whether it was closed: every request fails from then on."""
        return self._ended

    @property
    def broker_version(self) -> tuple[int, ...] | None:
        """Kafka version, from `api_version` or from the first broker reached; None before that."""
        version: tuple[int, ...] | None = self._manager.broker_version
        return version

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster that answered last; None before the first answer and from old brokers."""
        return self._cluster_id

    # -- Metadata ------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        """What the latest metadata says of a watched topic; None if there was no answer about it yet."""
        return self._topics.get(name)

    def topics(self) -> list[str]:
        """Watched topics of which the latest metadata knows partitions."""
        return [name for name, info in self._topics.items() if info.partitions]

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""
        return [
            Broker(each.node_id, each.host, each.port, each.rack) for each in self._manager.cluster.brokers()
        ]

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        """Watches these topics from now on and asks for metadata.

        Topics never seen are asked for at once, others not within `retry_backoff_ms` of the last time.

        Args:
            topics: Names to watch, besides those that are watched already.
            reply: Gets `MetadataRefreshed` from a request that was sent after this call, or the first `Failure`.
        """
        try:
            for topic in topics:
                ensure_valid_topic_name(topic)
        except (TypeError, ValueError) as error:
            safely(reply, Failure(kafka_errors.InvalidTopicError(str(error)), sent=False))
            return

        def run() -> None:
            self._waiters.append(reply)
            self._watched.update(topics)
            self._want_metadata(urgent=not self._asked.issuperset(topics))

        self._post(run, not_sent(reply))

    def unwatch(self, topic: str) -> None:
        """Forgets a topic. A request for it watches it again."""

        def run() -> None:
            self._watched.discard(topic)
            self._asked.discard(topic)
            self._topics = {name: info for name, info in self._topics.items() if name != topic}

        self._post(run, lambda _: None)

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        """Which topics the brokers may create where they do not know them, if they do that at all. Call before `start`.

        Args:
            may_create: Called with a topic's name on the network thread, when the topic is missing.
        """
        self._may_create = may_create

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        """Calls `callback` on the network thread after each answer about metadata."""
        self._listeners.append(callback)

    # -- Requests ------------------------------------------------------------------------------------------------

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """Speak to one cluster only: the first that answers, until `move` names another. Call before `start`.

        Each new connection is asked for its cluster's id before anything else is written to it (one round trip). One
        that leads elsewhere is closed, with WrongClusterError for what waited for it, and tried again with back-off.
        Brokers that do not say (before 0.10.1) are believed as long as none has said.

        Args:
            on_stranger: Called with the id of another cluster that answered, on the network thread.
            on_home: Called there when a new connection leads to the right cluster, before anything goes out on it.
        """
        self._guarded = True
        self._on_stranger = on_stranger
        self._on_home = on_home

    def move(self, cluster_id: str) -> None:
        """From now on this is the cluster to speak to (guarded transports only)."""

        def run() -> None:
            self._home = cluster_id
            for link in self._links.values():
                link.not_before = 0.0
            self._want_metadata(urgent=True)

        self._post(run, lambda _: None)

    @property
    def at_home(self) -> bool:
        """Whether a broker of the right cluster is connected. From any thread."""
        return any(link.usable for link in list(self._links.values()))

    def _stranger(self, cluster_id: str | None) -> BaseException | None:
        """Why a connection that leads to this cluster must not be used; None where it may."""
        if not self._guarded:
            return None
        cluster_id = cluster_id or None
        if self._home is None:
            self._home = cluster_id
        if cluster_id == self._home:
            return None
        if cluster_id is None:
            unknown: BaseException = kafka_errors.KafkaConnectionError(
                f"The broker does not say that it belongs to cluster {self._home}"
            )
            return unknown
        safely(self._on_stranger, cluster_id)
        return WrongClusterError(
            f"This broker belongs to cluster {cluster_id}, not to {self._home}: nothing is sent to it"
        )

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        """Asks any broker for a producer id.

        Args:
            reply: Gets `ProducerIdGranted` or `Failure`. All error codes are failures (`Failure.code`), and so is
                a producer id of -1, which a broker answers right after its start.
        """

        def parse(response: Any) -> ProducerIdGranted:
            if response.error_code:
                raise error_of(response.error_code, "InitProducerId")
            if response.producer_id < 0 or response.producer_epoch < 0:
                raise error_of(14, "InitProducerId answered no id")
            return ProducerIdGranted(response.producer_id, response.producer_epoch)

        def make() -> KafkaCall:
            request = InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=2**31 - 1,
                producer_id=-1,
                producer_epoch=-1,
                max_version=5,
            )
            return KafkaCall(request, parse, reply, timeout_s=self._request_timeout_s)

        self._post(
            lambda: self._route_any(make, final=False, reply=reply),
            not_sent(reply),
        )

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        transactional_id: str | None = None,
    ) -> None:
        """Appends batches to their partitions.

        Batches of one partition reach its leader in the order of the calls, as long as all succeed. After a
        failure later ones may already be under way; see `ProduceRequest.fence` for those that are not.

        Args:
            requests: The batches. Several for one partition go into requests of their own, pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.
            transactional_id: Of the transaction that the batches belong to, if they do.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                safely(reply, request.token, Failure(error, sent=False))

        self._post(
            lambda: self._route_produce(
                batches, acks, timeout_ms, reply, final=False, transactional_id=transactional_id
            ),
            fail,
        )

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """Makes a connection to the leader, if there is none, without a request; see `Cluster`."""

        def submit(leader: int) -> None:
            self._link(leader).submit(ReachCall(leader, reply, self._request_timeout_s, (topic, partition)))

        self._to_leader(topic, partition, submit, not_sent(reply))

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
                request, parse, reply, timeout_s=self._request_timeout_s, minimum=minimum, maximum=maximum
            )

        def run() -> None:
            if node is None:
                self._route_any(make, final=False, reply=reply)
            else:
                self._learn_broker(_Endpoint(*node))
                self._link(node[0]).submit(make())

        self._post(run, not_sent(reply))

    def _ask_coordinator(self, node: Node | None, question: Question, reply: Reply[Any]) -> None:
        request = requests.made(question.name, question.fields)
        self.ask(
            request, question.parse, reply, node=node, minimum=question.minimum, maximum=question.maximum
        )

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        """Asks the leader which producers it remembers (KIP-664).

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `ProducersDescribed`, or `Failure`; with `UnsupportedVersionError` from brokers < 2.8.
        """

        def parse(response: Any) -> ProducersDescribed:
            answer = _only(response.topics, "partitions", "partition_index", topic, partition)
            producers = {
                producer.producer_id: ProducerState(
                    producer.producer_epoch, producer.last_sequence, producer.last_timestamp
                )
                for producer in answer.active_producers
            }
            return ProducersDescribed(answer.error_code, producers, answer.error_message)

        def make() -> tuple[Any, int, int]:
            return (
                DescribeProducersRequest(
                    topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])]
                ),
                0,
                0,
            )

        self._ask_leader(topic, partition, make, parse, reply)

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        """Reads batch headers from a log, isolation read_uncommitted, without waiting for new ones.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Where to begin; the batch that holds it comes first.
            max_bytes: About how many bytes of batches to transfer. A larger first batch is transferred whole.
            reply: Gets `HeadersFetched` or `Failure`. A batch that is damaged on its way is a `Failure`.
        """

        def parse(response: Any) -> HeadersFetched:
            if response.error_code:
                return HeadersFetched(response.error_code, -1, -1, -1, [], offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            headers = [header for _, header in iter_headers(records)]
            return HeadersFetched(
                error_code=answer.error_code,
                high_watermark=answer.high_watermark,
                last_stable_offset=answer.last_stable_offset,
                log_start_offset=answer.log_start_offset,
                headers=headers,
                next_offset=_next_offset(records, offset),
            )

        def make() -> tuple[Any, int, int]:
            request = FetchRequest
            wanted = request.FetchTopic.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
            )
            return (
                request(
                    replica_id=-1,
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=max_bytes,
                    isolation_level=0,
                    session_id=0,
                    session_epoch=-1,
                    topics=[request.FetchTopic(topic=topic, partitions=[wanted])],
                    forgotten_topics_data=[],
                ),
                _MIN_FETCH,
                _MAX_FETCH,
            )

        self._ask_leader(topic, partition, make, parse, reply)

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
        """Reads whole batches from a log.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Where to begin; the batch that holds it comes first.
            max_bytes: About how many bytes of batches to transfer. A larger first batch is transferred whole.
            reply: Gets `RecordsFetched` or `Failure`.
            isolation_level: 1 (read_committed): up to the last stable offset, with a list of aborted transactions.
            max_wait_ms: How long the broker may wait for a first byte.
            current_leader_epoch: Under which epoch the leader is thought to lead; one that leads under another
                answers 74 or 75 (Kafka 2.1 and later). -1: whoever leads may answer.
            last_fetched_epoch: Leader epoch of the record before `offset`, -1 for none: a leader whose log differs
                there says so (Kafka 2.7 and later).
        """

        def parse(response: Any) -> RecordsFetched:
            if response.error_code:
                return RecordsFetched(response.error_code, -1, -1, -1, b"", (), offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            diverging = answer.diverging_epoch
            told = diverging is not None and diverging.end_offset >= 0
            return RecordsFetched(
                error_code=answer.error_code,
                high_watermark=plausible(answer.high_watermark, MAX_OFFSET),
                last_stable_offset=plausible(answer.last_stable_offset, MAX_OFFSET),
                log_start_offset=plausible(answer.log_start_offset, MAX_OFFSET),
                records=records,
                aborted=tuple(
                    (entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()
                ),
                next_offset=_next_offset(records, offset),
                diverging=(diverging.epoch, diverging.end_offset) if told else None,
            )

        def make() -> tuple[Any, int, int]:
            request = FetchRequest
            wanted = request.FetchTopic.FetchPartition(
                partition=partition,
                current_leader_epoch=current_leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_fetched_epoch,
                partition_max_bytes=max_bytes,
            )
            return (
                request(
                    replica_id=-1,
                    max_wait_ms=max_wait_ms,
                    min_bytes=1,
                    max_bytes=max_bytes,
                    isolation_level=isolation_level,
                    session_id=0,
                    session_epoch=-1,
                    topics=[request.FetchTopic(topic=topic, partitions=[wanted])],
                    forgotten_topics_data=[],
                ),
                _MIN_FETCH,
                _MAX_FETCH,
            )

        self._ask_leader(topic, partition, make, parse, reply)

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics. They are not watched.

        Args:
            reply: Gets `TopicsListed` or `Failure`.
        """

        def parse(response: Any) -> TopicsListed:
            found: dict[bool, dict[str, tuple[int, ...]]] = {False: {}, True: {}}
            for topic in response.topics:
                if not topic.error_code and topic.name is not None:
                    numbers = sorted(partition.partition_index for partition in topic.partitions)
                    found[bool(topic.is_internal)][topic.name] = tuple(numbers)
            return TopicsListed(found[False], found[True], getattr(response, "error_code", 0) or 0)

        def make() -> KafkaCall:
            request = MetadataRequest(
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            return KafkaCall(request, parse, reply, timeout_s=self._request_timeout_s, minimum=1)

        self._post(
            lambda: self._route_any(make, final=False, reply=reply),
            not_sent(reply),
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
        """Asks the leader for an offset.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: -1 for the end (the high watermark), -2 for the start of the log, -3 for the record with the
                largest timestamp (Kafka 3.0 and later, else UnsupportedVersionError), -4 for the start of what the
                leader has on its own disk (3.4 and later), -5 for the last offset in remote storage (3.9 and later),
                else ms since the epoch.
            reply: Gets `OffsetListed` or `Failure`.
            isolation_level: 1 (read_committed): the end is the last stable offset.
        """
        self._list_offset(topic, partition, timestamp, reply, replica_id=-1, isolation_level=isolation_level)

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        """Asks the leader where its log ends, which may be beyond the high watermark.

        Asked as a debugging replica (-2), which a broker answers whether it leads or not. From Kafka 2.4 on the
        leader epoch in the request makes one that leads no more answer 74 instead.

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `OffsetListed` or `Failure`.
        """
        self._list_offset(topic, partition, -1, reply, replica_id=-2)

    def _list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        replica_id: int,
        isolation_level: int = 0,
    ) -> None:
        def parse(answer: Any) -> OffsetListed:
            if not answer.error_code and not -1 <= answer.offset < MAX_OFFSET:
                raise absurd(answer.offset)
            time_ms = -1 if answer.timestamp is None else answer.timestamp
            return OffsetListed(answer.error_code, answer.offset, plausible(answer.leader_epoch), time_ms)

        def wanted() -> dict[str, int]:
            info = self._topics.get(topic)
            known = info.partitions.get(partition) if info is not None and replica_id == -2 else None
            return {
                "partition_index": partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "timestamp": timestamp,
            }

        kind = OffsetsWanted(replica_id, isolation_level, min(timestamp, 0))
        self._question(topic, partition, kind, wanted, parse, reply)

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        """Asks the leader where an epoch ends in its log (KIP-279).

        Args:
            topic: Topic name.
            partition: Partition number.
            leader_epoch: The epoch.
            reply: Gets `EpochEnd` or `Failure`.
            current_leader_epoch: Under which epoch the leader is thought to lead; one that leads under another
                answers 74 or 75 (Kafka 2.1 and later). -1: whoever leads may answer.
        """

        def parse(answer: Any) -> EpochEnd:
            end_offset = plausible(answer.end_offset, MAX_OFFSET)
            return EpochEnd(answer.error_code, plausible(answer.leader_epoch), end_offset)

        def wanted() -> dict[str, int]:
            return {
                "partition": partition,
                "current_leader_epoch": current_leader_epoch,
                "leader_epoch": leader_epoch,
            }

        self._question(topic, partition, EpochsWanted(), wanted, parse, reply)

    # -- The way in ----------------------------------------------------------------------------------------------

    def _post(self, run: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        if os.getpid() != self._pid:
            fail(ForkedProcessError("The connections belong to the parent process"))
            return
        self._inbox.append((run, fail))
        # One wake-up serves all jobs that come before the thread has looked. `_look` clears the flag before it
        # empties the inbox, so a job that finds it set is seen.
        if not self._woken and not at_once.held(self._wake, id(self)):
            self._wake()
        if self._ended:
            self._empty_inbox(closed_error())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._net.wakeup()

    def _look(self) -> None:
        self._woken = False
        while self._inbox:
            run, fail = self._inbox.popleft()
            try:
                if self._closing:
                    fail(closed_error())
                else:
                    run()
            except Exception:
                # A bug, but one that must not take the other jobs with it.
                log.exception("A request could not be passed on", event="request_failed")
        self._ask_gathered()

    def _ask_gathered(self) -> None:
        asking, self._asking = self._asking, []
        for link in asking:
            link.ask_gathered()

    def _empty_inbox(self, error: BaseException) -> None:
        while True:
            try:
                _, fail = self._inbox.popleft()
            except IndexError:
                return
            fail(error)

    def _shut_down(self) -> None:
        """On the network thread: everything outstanding fails, every connection closes, the loop stops."""
        if self._closing:
            return
        self._closing = True
        self._connected = False
        error = closed_error()
        self._fail_aside(error)
        for link in list(self._links.values()):
            link._drop(error)
            link.hang_up()
        self._manager.closed = True
        self._net._stop = True

    def _fail_aside(self, error: BaseException) -> None:
        attempt, self._attempt = self._attempt, None
        parked, self._parked = self._parked, []
        waiters, self._waiters = self._waiters, []
        if attempt is not None:
            attempt.over = True
            parked = attempt.parked + parked
            waiters = attempt.waiters + waiters
        for _, fail in parked:
            fail(error)
        for reply in waiters:
            safely(reply, Failure(error, sent=False))

    def _on_loop_exit(self) -> None:
        """The loop has ended, by `close` or by a crash: nobody may be left without an answer."""
        crashed, self._closing = not self._closing, True
        self._connected = False
        error = closed_error() if not crashed else _crashed_error()
        self._fail_aside(error)
        for link in list(self._links.values()):
            link._drop(error)
            in_flight, link.in_flight = list(link.in_flight), {}
            for call in in_flight:
                call.fail(error, sent=True)
            with suppress_closed():
                link.hang_up()
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            if not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                self._begin_anew()
                return
        self._ended = True
        self._empty_inbox(error)

    def _begin_anew(self) -> None:
        """On the thread that crashed: another loop, with connections of its own. What was asked for has failed.

        What is known of the cluster stays, and so does what callers posted meanwhile.
        """
        self._links = {}
        self._asking = []
        self._pending = {}
        self._asked = set()
        self._refresh_timer = None
        self._attempted_at = -1e9
        self._wanted = self._ticking = False
        with self._start_lock:
            self._make_loop()
            # A caller that found the flag set, or woke the loop that crashed, did so before this: its job is seen.
            self._woken = False
            self._closing = False
            self._born_at = time.monotonic()
            self._net.wakeup()
            self._post(lambda: self._want_metadata(urgent=True), lambda _: None)
            self._net.start()
            self._thread = self._net._io_thread

    # -- Routing -------------------------------------------------------------------------------------------------

    def _link(self, node_id: NodeId) -> Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(self, node_id)
        return link

    def _leader(self, topic: str, partition: int) -> int | BaseException | None:
        """The leader's node id; why there is none; or None while nothing is known of the topic."""
        info = self._topics.get(topic)
        if info is None:
            return None
        if info.error_code:
            return error_of(info.error_code, topic)
        known = info.partitions.get(partition)
        if known is None:
            return error_of(UNKNOWN_TOPIC, f"{topic} has no partition {partition}")
        if known.leader < 0:
            return error_of(LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return known.leader

    def _leader_id(self, target: TopicPartition) -> int | None:
        leader = self._leader(*target)
        return leader if isinstance(leader, int) else None

    def _watch(self, topic: str) -> BaseException | None:
        """Sees to it that metadata of the topic will come. Returns why it cannot."""
        if topic not in self._watched:
            try:
                ensure_valid_topic_name(topic)
            except (TypeError, ValueError) as error:
                invalid: BaseException = kafka_errors.InvalidTopicError(str(error))
                return invalid
            self._watched.add(topic)
        self._want_metadata(urgent=topic not in self._asked)
        return None

    def _ask_leader(
        self,
        topic: str,
        partition: int,
        make: Callable[[], tuple[Any, int, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            try:
                request, minimum, maximum = make()
            except Exception as error:  # values no request can carry
                fail(error)
                return
            self._link(leader).submit(
                KafkaCall(
                    request,
                    self._noticing(parse),
                    reply,
                    timeout_s=self._request_timeout_s,
                    targets=((topic, partition),),
                    minimum=minimum,
                    maximum=maximum,
                )
            )

        self._to_leader(topic, partition, submit, fail)

    def _question(
        self,
        topic: str,
        partition: int,
        kind: Wanted,
        wanted: Callable[[], dict[str, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        """As `_ask_leader`, but in one request with others of its kind."""
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            fields = wanted()
            try:
                for number in fields.values():
                    _INT64.pack(number)
            except struct.error as error:  # values no request can carry, which must not cost others theirs
                fail(error)
                return
            self._link(leader).ask(
                kind, PartitionQuestion((topic, partition), fields, self._noticing(parse), reply)
            )

        self._to_leader(topic, partition, submit, fail)

    def _noticing(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Asks for metadata where an answer says that they are out of date."""

        def parsed(answer: Any) -> Any:
            result = parse(answer)
            if result.error_code in STALE_METADATA:
                self._want_metadata()
            return result

        return parsed

    def _to_leader(
        self,
        topic: str,
        partition: int,
        submit: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Calls `submit` with the leader's node id on the network thread, or `fail`."""

        def route(final: bool) -> None:
            leader = self._leader(topic, partition)
            if isinstance(leader, int):
                submit(leader)
                return
            invalid = self._watch(topic)
            if invalid is not None:
                fail(invalid)
            elif leader is None and not final:
                self._parked.append((route, fail))
            else:
                fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._post(lambda: route(False), fail)

    def _route_any(self, make: Callable[[], KafkaCall], *, final: bool, reply: Reply[Any]) -> None:
        nodes = [broker.node_id for broker in self._manager.cluster.brokers()]
        links = [self._link(node) for node in nodes]
        now = time.monotonic()
        if links and (self._known or final):
            best = min(links, key=lambda link: self._preference(link, now))
            best.submit(make())
        elif final:
            safely(reply, Failure(kafka_errors.NodeNotReadyError("No broker is known yet"), sent=False))
        else:
            self._parked.append(
                (
                    lambda final: self._route_any(make, final=final, reply=reply),
                    not_sent(reply),
                )
            )
            self._want_metadata()

    def _route_produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
        transactional_id: str | None,
    ) -> None:
        groups: dict[int, Group] = {}
        parked: list[ProduceRequest[Any]] = []
        for request in requests:
            leader = self._leader(request.topic, request.partition)
            if isinstance(leader, int):
                elsewhere = self._pending.get((request.topic, request.partition), (leader, 0))[0]
                if elsewhere != leader:
                    # Batches on their way to the old leader: this one would overtake them.
                    moving = (
                        f"{request.topic}-{request.partition} has requests outstanding at node {elsewhere}"
                    )
                    error: BaseException = kafka_errors.NotLeaderForPartitionError(moving)
                    self._fail_produce(request, error, False, reply)
                    continue
                try:
                    data = memoryview(request.data).cast("B")
                    if not data:
                        raise ValueError("An empty batch")  # noqa: TRY301
                except Exception as unusable:
                    self._fail_produce(request, unusable, False, reply)
                    continue
                group = groups.get(leader)
                if group is None:
                    group = groups[leader] = Group(self._max_request_bytes)
                group.add(request, data)
                continue
            invalid = self._watch(request.topic)
            if invalid is None and leader is None and not final:
                parked.append(request)
                continue
            unknown = error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._fail_produce(request, invalid or leader or unknown, False, reply)
        for leader, group in groups.items():
            link = self._link(leader)
            for entries in group.frames:
                link.submit(ProduceCall(self, leader, entries, acks, timeout_ms, reply, transactional_id))
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._fail_produce(request, error, False, reply)

            self._parked.append(
                (
                    lambda final: self._route_produce(
                        parked, acks, timeout_ms, reply, final=final, transactional_id=transactional_id
                    ),
                    fail,
                )
            )

    def _fail_produce(
        self, request: ProduceRequest[Any], error: BaseException, sent: bool, reply: ProduceCallback[Any]
    ) -> None:
        fence = self._raise_fence((request.topic, request.partition))
        safely(reply, request.token, Failure(error, sent=sent, fence=fence))

    def _raise_fence(self, target: TopicPartition) -> int:
        fence = self._fences.get(target, 0) + 1
        self._fences[target] = fence
        return fence

    def _produce_version(self, node_id: NodeId, versions: Any, transaction: Any) -> int:
        lowest, highest = lowest_produce(transaction), highest_produce(transaction, _MAX_PRODUCE)
        known = self._produce_versions.get((node_id, lowest, highest))
        if known is None or known[0] is not versions:
            version = versions.api_version(KafkaProduceRequest, min_version=lowest, max_version=highest)
            known = self._produce_versions[node_id, lowest, highest] = versions, version
        return known[1]

    def _enter(self, target: TopicPartition, node_id: NodeId) -> None:
        self._pending[target] = (node_id, self._pending.get(target, (node_id, 0))[1] + 1)

    def _leave(self, target: TopicPartition) -> None:
        node_id, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = (node_id, count - 1)

    # -- Silence -------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        if not self._ticking and not self._closing:
            self._ticking = True
            self._net.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        """A leader that hangs keeps its connection: only other brokers can tell that it leads no more."""
        self._ticking = False
        if self._closing:
            return
        now = time.monotonic()
        busy = False
        for link in self._links.values():
            busy = busy or bool(link.in_flight)
            if link.silent_for(now) > _SILENCE_S:
                link.suspect_until = now + 2 * _SILENCE_S
                self._want_metadata()
        if busy:
            self._watch_silence()

    def _drop_moved(self) -> None:
        for link in list(self._links.values()):
            link.drop_moved(self._leader_id)

    def _drop_hung(self) -> None:
        """Cuts silent connections whose requests have a new leader to go to."""
        now = time.monotonic()
        for link in list(self._links.values()):
            if link.silent_for(now) <= _SILENCE_S:
                continue
            leaders = {self._leader_id(target) for call in link.in_flight for target in call.targets}
            if leaders - {link.node_id, None}:
                link.hang_up(
                    kafka_errors.KafkaConnectionError(f"Node {link.node_id} is silent and leads no more")
                )

    # -- Metadata ------------------------------------------------------------------------------------------------

    def _want_metadata(self, *, urgent: bool = False) -> None:
        """Asks for a metadata request: as soon as possible, or `retry_backoff_ms` after the last one."""
        if self._closing:
            return
        self._wanted = True
        if self._attempt is None:
            now = time.monotonic()
            self._refresh_no_later(now if urgent else max(now, self._attempted_at + self._retry_backoff_s))

    def _refresh_no_later(self, at: float) -> None:
        if self._refresh_timer is not None:
            if self._refresh_at <= at:
                return
            self._net.cancel(self._refresh_timer)
        self._refresh_at = at
        self._refresh_timer = self._net.call_at(at, self._refresh)

    def _preference(self, link: Link, now: float) -> tuple[object, ...]:
        """Orders links: lowest is best to send to."""
        return (
            link.suspect_until > now,
            not link.ready,
            link.failures,
            isinstance(link.node_id, str),  # bootstrap servers when known brokers are no better
            len(link.in_flight),
            random.random(),
        )

    def _refresh(self) -> None:
        self._refresh_timer = None
        if self._attempt is not None or self._closing:
            return
        now = time.monotonic()
        cluster = self._manager.cluster
        nodes = [broker.node_id for broker in (*cluster.brokers(), *cluster.bootstrap_brokers())]
        links = [self._link(node) for node in nodes]
        able = [link for link in links if link.not_before <= now or link.ready]
        self._wanted = True
        if not able:
            # All are backing off: wait for the first to be over.
            self._refresh_no_later(heapq.nsmallest(1, (link.not_before for link in links))[0])
            return
        self._wanted = False
        self._attempted_at = now
        link = min(able, key=lambda link: self._preference(link, now))
        attempt = _Attempt(link, self._waiters, self._parked)
        self._waiters, self._parked = [], []
        self._attempt = attempt
        attempt.timer = self._net.call_later(_METADATA_PATIENCE_S, lambda: self._on_slow_metadata(attempt))
        self._asked = set(self._watched)
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(self._watched)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        link.submit(
            MetadataCall(
                request,
                self._parse_metadata,
                functools.partial(self._on_metadata, attempt),
                timeout_s=self._request_timeout_s,
                minimum=1,
            )
        )

    def _on_slow_metadata(self, attempt: _Attempt) -> None:
        attempt.timer = None
        if not attempt.over:
            attempt.link.suspect_until = time.monotonic() + 2 * _SILENCE_S
            error = kafka_errors.KafkaTimeoutError(f"Node {attempt.link.node_id} did not answer in time")
            self._on_metadata(attempt, Failure(error, sent=True))

    def _on_metadata(self, attempt: _Attempt, result: MetadataRefreshed | Failure) -> None:
        if attempt.over:
            return
        attempt.over = True
        if attempt.timer is not None:
            self._net.cancel(attempt.timer)
        self._attempt = None
        now = time.monotonic()
        parked, self._parked = self._parked, []
        if isinstance(result, Failure):
            self._failed_refreshes += 1
            if not any(link.alive(now) for link in self._links.values()):
                self._connected = False
                self._last_error = result.error
                self._log_unreachable(result.error, now)
            for reply in attempt.waiters:
                safely(reply, result)
            # Those that came later as well: they must not get ahead of the ones that fail now.
            for _, fail in (*attempt.parked, *parked):
                fail(result.error)
            self._want_metadata()
            return
        if self._failed_refreshes and not self._connected:
            self._log.info("The cluster answers again", event="cluster_reachable")
            self._logged_at = -1e9
        self._failed_refreshes = 0
        self._connected = True
        self._last_error = None
        self._known = True
        for reply in attempt.waiters:
            safely(reply, result)
        for route, _ in attempt.parked:
            route(True)
        for route, _ in parked:
            route(False)  # the request may have been made before their topic was known of
        self._ask_gathered()
        self._drop_moved()
        self._drop_hung()
        for callback in list(self._listeners):
            safely(callback, result)
        self._create_missing(attempt.link, result)
        for node, link in list(self._links.items()):
            if isinstance(node, str) and not link.busy:
                link.hang_up()  # it was for the first contact only
        self._plan_refresh(now)

    def _create_missing(self, link: Link, result: MetadataRefreshed) -> None:
        """Brokers create topics that a metadata request names: so one names only those that are wanted."""
        if not self._auto_create:
            return
        missing = [
            name
            for name, info in result.topics.items()
            if info.error_code == UNKNOWN_TOPIC and name in self._watched and self._may_create(name)
        ]
        if missing:
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(missing)],
                allow_auto_topic_creation=True,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            link.submit(
                KafkaCall(
                    request,
                    lambda _: None,
                    lambda _: self._want_metadata(),
                    timeout_s=self._request_timeout_s,
                    minimum=1,
                )
            )

    def _plan_refresh(self, now: float) -> None:
        infos = self._topics.values()
        missing = any(info.error_code for info in infos)
        leaderless = any(p.leader < 0 for info in infos for p in info.partitions.values())
        self._refresh_no_later(now + self._metadata_max_age_s)
        if missing or leaderless:
            self._bad_refreshes += 1
            backoff = self._leaderless_backoff if leaderless else self._missing_backoff
            self._refresh_no_later(now + backoff.pause_s(self._bad_refreshes))
        else:
            self._bad_refreshes = 0
        if self._wanted or self._waiters:
            self._want_metadata(urgent=not self._asked.issuperset(self._watched))

    def _log_unreachable(self, error: BaseException, now: float) -> None:
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "Brokers cannot be used yet (%s); trying again until they can",
                in_words(error),
                error=type(error).__name__,
                event="cluster_unreachable",
            )

    def _parse_metadata(self, response: Any) -> MetadataRefreshed:
        code = getattr(response, "error_code", 0)
        if code:
            raise error_of(code, "Metadata")
        if not response.brokers:
            raise kafka_errors.MetadataEmptyBrokerList("The broker does not know its cluster yet")
        cluster_id = response.cluster_id or None
        if self._cluster_id is not None and cluster_id is not None and cluster_id != self._cluster_id:
            self._log.warning(
                "Another cluster answers: %s, until now %s",
                cluster_id,
                self._cluster_id,
                event="cluster_changed",
            )
        cluster = self._manager.cluster
        cluster._brokers = {broker.node_id: broker for broker in response.brokers}
        # KAFKA-9212: brokers before 2.4 may announce stale leader epochs.
        reliable = response.API_VERSION >= 9
        topics = dict(self._topics)
        told = {}
        for answer in response.topics:
            name = answer.name
            if name is None or name not in self._watched:
                continue
            old = topics.get(name)
            topic_id = NO_TOPIC_ID if answer.topic_id is None else answer.topic_id.bytes
            if answer.error_code:
                info = TopicInfo(
                    name,
                    old.topic_id if old else topic_id,
                    old.partitions if old else {},
                    answer.error_code,
                )
            else:
                same = old is not None and old.topic_id == topic_id != NO_TOPIC_ID
                partitions = {}
                for partition in answer.partitions:
                    epoch = plausible(partition.leader_epoch) if reliable else -1
                    told_info = PartitionInfo(partition.leader_id, epoch)
                    known = (
                        old.partitions.get(partition.partition_index) if old is not None and same else None
                    )
                    # A broker that lags behind must not undo what a newer leader has told.
                    stale = known is not None and known.leader_epoch > told_info.leader_epoch
                    partitions[partition.partition_index] = known if stale and known else told_info
                info = TopicInfo(name, topic_id, partitions, 0)
            topics[name] = told[name] = info
        self._cluster_id = cluster_id
        self._topics = topics
        return MetadataRefreshed(cluster_id, tuple(cluster._brokers), told)

    def _take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        topic, partition = target
        leader, epoch = hint
        info = self._topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        if info is None or known is None or epoch <= known.leader_epoch:
            return False
        if self._manager.cluster.broker_metadata(leader) is None:
            return False
        partitions = {**info.partitions, partition: PartitionInfo(leader, epoch)}
        self._topics = {**self._topics, topic: replace(info, partitions=partitions)}
        return True

    def _learn_broker(self, endpoint: Any) -> None:
        brokers = self._manager.cluster._brokers
        if endpoint.node_id not in brokers:
            broker = self._broker_class()(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            self._manager.cluster._brokers = {**brokers, endpoint.node_id: broker}

    def _broker_class(self) -> Any:
        return type(self._manager.cluster.bootstrap_brokers()[0])


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A broker's address, as FindCoordinator gives it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def _next_offset(records: Buffer, offset: int) -> int:
    """Where complete batches, of old formats as well, end."""
    at = 0
    while len(records) - at > _MAGIC_AT:
        base, length = struct.unpack_from(">qi", records, at)
        if length < 0 or length > len(records) - at - _LOG_OVERHEAD:
            break
        last_delta = (
            struct.unpack_from(">i", records, at + _LAST_DELTA_AT)[0] if records[at + _MAGIC_AT] > 1 else 0
        )
        offset = max(offset, base + last_delta + 1)
        at += _LOG_OVERHEAD + length
    return offset


def _crashed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError(
        "The network thread ended by an error, see the log"
    )
    return error


def _only(topics: Any, group: str, number: str, topic: str, partition: int, *, name: str = "name") -> Any:
    """The answer for one partition among a response's topics."""
    for entry in topics:
        if getattr(entry, name) == topic:
            for answer in getattr(entry, group):
                if getattr(answer, number) == partition:
                    return answer
    raise kafka_errors.KafkaProtocolError(f"The response left {topic}-{partition} out")
