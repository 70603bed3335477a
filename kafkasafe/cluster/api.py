"""The interface between a client and its brokers: `Cluster` (a `typing.Protocol`), and the answers as plain data.

Producers, look-ups and `kafkasafe doctor` send all their requests to a Kafka cluster through a `Cluster` object. So
tests can replace the brokers with simulated brokers, which fail on command and run in virtual time. `cluster/client/`
implements `Cluster` for real brokers.

The rules, for callers and implementations:

- *Every request gets exactly one reply*: `Cluster` calls the request's `reply` once, with the answer or with a
  `Failure`. Methods do not raise errors for network failures, for time-outs or because `Cluster` is closed. A method
  raises only if the caller made a mistake in the call itself.
- *An error code is an answer.* Each answer has an `error_code`: 0 for success, or one of the codes that
  `kafkasafe.codes` describes. The other fields have a meaning only if the code is 0. Some methods turn an error code
  into a `Failure`, as their docstrings say.
- *`Cluster` calls the `reply` callbacks on its own thread.* There are two exceptions: if `Cluster` is closed, or if the
  arguments cannot be sent, the called method itself calls `reply` before it returns. A simulated cluster without
  threads calls `reply` while a test advances its time. A callback must only store the answer and return: while a
  callback blocks, `Cluster` can send nothing to any broker. If a callback raises an exception, `Cluster` logs the
  exception, and does not pass it on. The same rules hold for listeners.
- *For one partition, the callbacks are called in the order in which the broker answered.* Requests of the same kind
  that all succeed are answered in the order in which they were made.
- *Methods are thread-safe and never block*, except `close`. Any thread may read the properties and call `topic`,
  `topics` and `brokers`; they return the latest complete answer.
- *Each request has a time-out*, the option `request_timeout_ms`. For `produce`, the time-out is at least the call's
  `timeout_ms` plus one second. First, the time-out limits how long the request waits for a connection; a `Failure` of
  this wait has `sent=False`. Then the time-out limits how long the request waits for the answer; a `Failure` of this
  wait has `sent=True`. The wait for the answer begins when the last byte of the request is written to the socket. While
  some bytes of the request are unwritten, the time-out counts from the latest write that made progress.
- *`Cluster` tracks leaders itself*: it finds the leader of a partition, watches each topic that a request names, and
  refreshes its metadata when an answer shows that the metadata are out of date. A request for a partition whose leader
  is unknown waits for the next metadata answer. If the next metadata answer names no leader either, the request gets a
  `Failure` with `sent=False`. `Cluster` never repeats a request that may have reached a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import kafka.errors as kafka_errors

from kafkasafe.cluster.answers import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS_VERSIONS,
    MAX_TIMESTAMP,
    NO_TOPIC_ID,
    Answer,
    Broker,
    Buffer,
    EpochEnd,
    Failure,
    HeadersFetched,
    MetadataRefreshed,
    OffsetListed,
    PartitionInfo,
    ProduceReply,
    ProduceRequest,
    ProducerIdGranted,
    ProducersDescribed,
    ProducerState,
    Reached,
    RecordsFetched,
    Reply,
    TopicCreated,
    TopicInfo,
    TopicsListed,
)
from kafkasafe.cluster.transactions import Transactions
from kafkasafe.errors import KafkaSafeError

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "LIST_OFFSETS_VERSIONS",
    "MAX_TIMESTAMP",
    "NO_TOPIC_ID",
    "Answer",
    "Broker",
    "Buffer",
    "Clock",
    "Cluster",
    "EpochEnd",
    "Failure",
    "HeadersFetched",
    "MetadataRefreshed",
    "OffsetListed",
    "PartitionInfo",
    "ProduceCallback",
    "ProduceReply",
    "ProduceRequest",
    "ProducerIdGranted",
    "ProducerState",
    "ProducersDescribed",
    "Reached",
    "RecordsFetched",
    "Reply",
    "StaleFenceError",
    "TopicCreated",
    "TopicInfo",
    "TopicsListed",
    "in_words",
]

Token = TypeVar("Token")

ProduceCallback: TypeAlias = Callable[[Token, ProduceReply | Failure], None]
"""Called once for each `ProduceRequest`, with the request's token and its outcome."""


class StaleFenceError(kafka_errors.RetriableError, KafkaSafeError):
    """The caller made the request before it learned that an earlier batch of the partition had failed. Nothing was
    sent.
    """


class Clock(Protocol):
    """A source of time. A cluster in memory and its clients share one virtual clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment. Does not advance while the machine is suspended, and is never adjusted."""

    def elapsed(self) -> float:
        """Seconds since an arbitrary moment, including the time when the machine is suspended. Never adjusted."""

    def wall_ms(self) -> int:
        """Ms since the epoch, for the timestamps of records. May be adjusted."""

    def boot_id(self) -> bytes:
        """Identifies the latest boot of the machine, 16 bytes; zeros if unknown. Readings of `monotonic` from different
        boots are not comparable.
        """


class Cluster(Protocol):
    """A Kafka cluster, as a client sees it. The module's docstring states the rules for all methods."""

    # -- lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to connect to a broker, and retries until a connection succeeds. Idempotent.

        Set all listeners (with `pin_cluster`, `create_only` and `on_metadata`) before this call. Requests made before
        this call wait.
        """

    def close(self, timeout_s: float) -> bool:
        """Closes this client. Every outstanding and every later request gets a `Failure` at once. Idempotent.

        After a call that returned True, no reply or listener is called any more, and nothing more is written to a
        socket.

        Args:
            timeout_s: How long to wait for the client's thread to end, in seconds.

        Returns:
            Whether the thread has ended. False if a callback blocks the thread, which will end after the callback.
        """

    @property
    def connected(self) -> bool:
        """Whether the cluster is reachable. True after a metadata request was answered. False after a metadata request
        failed and no broker was usable.
        """

    @property
    def closed(self) -> bool:
        """Whether `close` was called and the client's thread has ended. Then every request fails."""

    @property
    def last_error(self) -> BaseException | None:
        """Why no broker could be used at the latest attempt; None while the cluster answers, and before the first
        attempt.
        """

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster that answered last; None before the first answer, or if the broker reports no id."""

    # -- which cluster -------------------------------------------------------------------------------------------

    def pin_cluster(
        self, *, on_other_cluster: Callable[[str], None], on_pinned_cluster: Callable[[], None]
    ) -> None:
        """Restricts the client to the first cluster that answers, or to the cluster that `repin` names later. Call
        before `start`.

        On each new connection, the client first asks for the cluster id. If the broker belongs to another cluster, the
        client closes the connection and tries again with back-off; requests that waited for the connection fail with
        WrongClusterError (not sent). Brokers that report no cluster id are accepted until one broker has reported an
        id.

        Args:
            on_other_cluster: Listener that gets the id of another cluster that answered.
            on_pinned_cluster: Listener that is called when the broker of a new connection belongs to the right cluster,
                before other requests are written to the connection.
        """

    def repin(self, cluster_id: str) -> None:
        """Restricts the client to the cluster `cluster_id` from now on. Only after `pin_cluster`."""

    @property
    def connected_to_pinned(self) -> bool:
        """Whether a broker of the right cluster is connected."""

    # -- metadata ------------------------------------------------------------------------------------------------

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        """Adds a listener for each metadata answer.

        When a metadata answer arrives, the client first calls the `reply` of each `refresh_metadata` call that waited
        for this answer. Next, the client sends the requests that waited for this answer. A request that still cannot be
        sent fails. At last, the client calls the listener. The answers to the sent requests come later.
        """

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        """Sets which missing topics the brokers may create, if they create topics at all. Call before `start`.

        Ordinary metadata requests do not create topics. If a topic is missing and may be created, the client sends a
        separate metadata request that makes the broker create it. With the option `allow_auto_create_topics=False`, no
        topic is created.

        Args:
            may_create: Listener that gets the name of a missing topic, and returns whether the topic may be created.
        """

    def topic(self, name: str) -> TopicInfo | None:
        """A watched topic in the latest metadata; None if no answer has contained it yet."""

    def topics(self) -> Sequence[str]:
        """The watched topics that have partitions in the latest metadata."""

    def brokers(self) -> Sequence[Broker]:
        """The brokers of the latest metadata."""

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        """Watches these topics from now on and asks for metadata.

        Topics that no metadata request has named yet are requested immediately. Topics that an earlier request has
        named are requested at most once per `retry_backoff_ms`.

        Args:
            topics: Names to watch, in addition to the topics watched already.
            reply: Gets the first answer to a metadata request that was sent after this call, or the first `Failure`.
                For an invalid topic name, gets a `Failure` with `InvalidTopicError` and `sent=False`.
        """

    def unwatch(self, topic: str) -> None:
        """Stops watching a topic; `topic` then returns None. If a later request names the topic, the client watches the
        topic again.
        """

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """Asks broker `node`, one of `brokers`, which partitions of a topic it knows. The answer does not change the
        result of `Cluster.topic`, and the topic is not watched. If no broker has this id, `reply` gets a `Failure` with
        `sent=False`.
        """

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics, without watching them."""

    def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str],
        timeout_ms: int,
        reply: Reply[TopicCreated],
    ) -> None:
        """Creates a topic with the brokers' default replication. With brokers before 2.4, `reply` gets a `Failure`
        whose `unsupported` is true.

        Args:
            name: Topic name.
            partitions: Number of partitions.
            config: Settings of the topic. Other settings have the brokers' defaults.
            timeout_ms: How long the broker may wait until the topic is created, in ms.
            reply: Gets `TopicCreated` or `Failure`.
        """

    # -- writing -------------------------------------------------------------------------------------------------

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        """Asks any broker for a producer id. An error code becomes a `Failure` with the same `code`. A producer id of
        -1, which a broker may grant shortly after its start, becomes a `Failure` with code 14.
        """

    @property
    def transactions(self) -> Transactions:
        """The requests of transactions."""

    def produce(
        self,
        requests: Sequence[ProduceRequest[Token]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Token],
    ) -> None:
        """Appends batches to their partitions.

        While all batches of a partition succeed, they reach its leader in the order of the calls. When a batch fails,
        later batches of the partition may already be in flight. `ProduceRequest.fence` stops later batches that are not
        in flight yet. No batch is sent to a new leader while the old leader still has outstanding batches of the
        partition.

        A batch counts as *sent* as soon as its bytes were passed to a connection, whether or not the broker received
        them. When a connection ends, all batches that were sent on the connection fail (`sent=True`), and so do all
        batches that waited for the connection (`sent=False`).

        Args:
            requests: The batches. Several batches for one partition go into separate requests, which are pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas, in ms.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """Connects to the partition's leader if necessary, and sends no request.

        The reply comes as soon as a request to the leader could be written at once. So the caller can load a batch's
        bytes just before they are written. If no produce request could be sent now, `reach` fails as that request
        would: with the same error, and after the same delay.
        """

    # -- questions to a partition's leader -----------------------------------------------------------------------

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        """Asks which producers the leader remembers (KIP-664). With brokers before 2.8, `reply` gets a `Failure` whose
        `unsupported` is true.
        """

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        """Reads batch headers from a log with isolation read_uncommitted. Does not wait for new batches.

        The answer ends before the high watermark. If a batch was damaged in transit, the reply is a `Failure`. See
        `fetch_records` for `offset` and `max_bytes`.
        """

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
        """Reads complete batches from a log.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: First offset. The answer begins with the batch that contains this offset.
            max_bytes: Approximate size of the batches to transfer. A larger first batch is transferred completely.
            reply: Gets `RecordsFetched` or `Failure`.
            isolation_level: 1 (read_committed): up to the last stable offset, with a list of aborted transactions.
            max_wait_ms: How long the broker may wait for the first byte, in ms.
            current_leader_epoch: The leader epoch that the caller expects. A leader with another epoch answers
                with error code 74 or 75 (Kafka 2.1 and later). -1: do not check the epoch.
            last_fetched_epoch: Leader epoch of the record before `offset`; -1 for none. If the leader's log lacks this
                record, or has it with another epoch, the leader reports the divergence (Kafka 2.7 and later).
        """

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        """Asks for one offset of a log.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: `LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`, or ms since the epoch
                for the first record with this timestamp or a later one. If the broker does not support a constant,
                `reply` gets a `Failure` whose `unsupported` is true.
            reply: Gets `OffsetListed` or `Failure`.
            isolation_level: 1 (read_committed): `LATEST` is the last stable offset.
        """

    def list_offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        timestamp: int,
        reply: Reply[Mapping[tuple[str, int], OffsetListed]],
        *,
        isolation_level: int = 0,
    ) -> None:
        """Asks many logs for one offset each. One request covers up to 500 partitions of a leader.

        Args:
            partitions: (topic, partition), each at most once.
            timestamp: As for `list_offset`, the same for all.
            reply: Called with a mapping from partition to `OffsetListed`, or with a `Failure`. A partition is left out
                if it has no known leader, if its broker did not answer, or if the answer is an error or has no offset.
                To learn the cause, call `list_offset`.
            isolation_level: 1 (read_committed): `LATEST` is the last stable offset.
        """

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        """Asks for the end of the log, which may be after the high watermark.

        The request has the replica id of a debugging replica (-2), to which every replica answers, not only the leader.
        From Kafka 2.4 on, the request also has a leader epoch, and a former leader answers with error code 74 instead
        of an offset.
        """

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        """Asks where an epoch ends in the leader's log (KIP-279).

        Args:
            topic: Topic name.
            partition: Partition number.
            leader_epoch: The epoch.
            reply: Gets an `EpochEnd` or a `Failure`. With brokers before 0.11, the `Failure` has `unsupported` true.
            current_leader_epoch: The leader epoch that the caller expects. A leader with another epoch answers
                with error code 74 or 75 (Kafka 2.1 and later). -1: do not check the epoch.
        """


# A client without TLS takes the first four bytes of a TLS alert (0x15, 0x03, a minor version, 0x00) for the length of a
# frame.
_TLS_ALERTS: Final = tuple(f"Invalid frame length: {0x15030000 + (minor << 8)}" for minor in range(5))


def in_words(error: BaseException) -> str:
    """Returns an error as text that begins with the name of its class. The texts of kafka-python's errors already begin
    with this name, some of them twice.
    """
    name, text = type(error).__name__, str(error)
    if text.startswith(f"{name}: "):
        text = f"{name}: " + text.replace(f"{name}: ", "")
    if text.endswith(_TLS_ALERTS):
        text += "; it answers in TLS, so security_protocol must be SSL or SASL_SSL"
    return text if text.startswith(name) else f"{name}: {text}" if text else name
