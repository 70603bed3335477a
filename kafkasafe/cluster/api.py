"""The seam between a client and its brokers: one protocol, and the answers as plain data.

Everything a producer, a look-up or a doctor wants of a Kafka cluster goes through `Cluster`, so that tests can swap the
brokers for some that fail as they are told, in virtual time. `_io/transport/` is the real thing behind it.

The rules, for callers and for whoever implements it:

- *Every request gets exactly one reply*, a call of the `reply` that came with it: with the answer, or with a `Failure`.
  Failures of the network, time-outs and a closed cluster are no errors of a method. A method raises only where the
  call itself is a mistake of the caller's.
- *An error code is an answer.* Each answer has an `error_code` (0: none; the others are rows of `_core/codes.py`);
  the rest of it means something only where that is 0. Where a method promises otherwise, codes come as `Failure`.
- *Replies are called on a thread of the cluster's own*, or, where the cluster is closed or the arguments cannot be
  sent, in the middle of the very call. In a double without threads they are called while somebody drives its time. In
  any case a reply only puts the answer somewhere and returns: whatever it waits for, no broker is spoken to meanwhile,
  and what it raises is logged and goes nowhere. The same is true of listeners.
- *Replies to requests of one partition come in the order in which they were answered*, which is that of the requests as
  long as they have the same kind and all succeed.
- *Methods are thread-safe and never block*, `close` apart. Properties and `topic`, `topics`, `brokers` may be read
  from any thread; they show the latest whole answer.
- *Time-outs*: each request has one, `request_timeout_ms` of the options (`produce`: or its own `timeout_ms` and a
  second, where that is longer). It bounds how long a request waits for a connection (`Failure`, not sent), and then how
  long an answer is waited for from when the last of its bytes was written to the socket (`Failure`, sent), or, while
  they cannot all be written, since the last one that could. A request whose leader is not known waits for the next
  answer about metadata; where that names no leader, it is a `Failure`, not sent.
- *Leaders are the cluster's business*: it finds the leader of a partition, watches each topic that is asked about, and
  asks for metadata by itself where an answer says that they are out of date. It does not repeat a request that may have
  reached a broker.
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
    "TopicInfo",
    "TopicsListed",
    "in_words",
]

T = TypeVar("T")
Token = TypeVar("Token")

Reply: TypeAlias = Callable[[T | Failure], None]
"""Gets the answer, or why there is none; once."""
ProduceCallback: TypeAlias = Callable[[Token, ProduceReply | Failure], None]
"""Gets the token of a `ProduceRequest` and what became of it; once for each request."""


class StaleFenceError(kafka_errors.RetriableError, KafkaSafeError):
    """An earlier batch of this partition failed, and the caller had not heard of it yet. Nothing was sent."""


class Clock(Protocol):
    """What time it is. A cluster in memory and the clients that use it share one, which then is virtual."""

    def monotonic(self) -> float:
        """Seconds since some moment; they stand still while the machine sleeps, and are never set."""

    def elapsed(self) -> float:
        """Seconds since some moment, with those the machine slept; never set."""

    def wall_ms(self) -> int:
        """Ms since the epoch: what records are stamped with. May be set."""

    def boot_id(self) -> bytes:
        """16 bytes: readings of `monotonic` with another one have nothing to do with each other. Zeros: not known."""


class Cluster(Transactions, Protocol):
    """A Kafka cluster, as a client sees it. See the module for what is true of all methods.

    The requests of transactions are in `kafkasafe.cluster.transactions`.
    """

    # -- its life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Goes looking for a broker, for as long as it takes. Idempotent.

        Before this, listeners are set (`guard`, `create_only`, `on_metadata`); requests may be made and wait.
        """

    def close(self, timeout_s: float) -> bool:
        """Ends it; everything outstanding gets a `Failure`, and so does every later request, at once. Idempotent.

        After it (when True was returned) no reply and no listener is called any more, and nothing that was sent can
        still be written to a socket.

        Args:
            timeout_s: How long to wait for its thread to end, in seconds.

        Returns:
            Whether it has ended. If not (it hangs in a callback), it ends by itself as soon as it can.
        """

    @property
    def connected(self) -> bool:
        """Whether the cluster answered the latest metadata request."""

    @property
    def closed(self) -> bool:
        """Whether it was closed and has ended: every request fails from then on."""

    @property
    def last_error(self) -> BaseException | None:
        """Why no broker can be used, as of the latest try; None while the cluster answers, and before any try."""

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster that answered last; None before the first answer and from old brokers."""

    # -- which cluster -------------------------------------------------------------------------------------------

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """Speak to one cluster only: the first that answers, until `move` names another. Call before `start`.

        Each new connection is asked for its cluster's id before anything else is written to it. One that leads
        elsewhere is closed, with WrongClusterError (not sent) for what waited for it, and tried again with back-off.
        Brokers that do not say their id are believed as long as none has said.

        Args:
            on_stranger: Listener: gets the id of another cluster that answered.
            on_home: Listener: a new connection leads to the right cluster. Called before anything goes out on it.
        """

    def move(self, cluster_id: str) -> None:
        """From now on this is the cluster to speak to (only after `guard`)."""

    @property
    def at_home(self) -> bool:
        """Whether a broker of the right cluster is connected."""

    # -- metadata ------------------------------------------------------------------------------------------------

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        """Adds a listener: gets each answer about metadata.

        It is called after the replies of those who asked for them, and before any broker's answer to a request whose
        way the new metadata show.
        """

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        """Which topics the brokers may create where they do not know them, if they do that at all. Call before `start`.

        Metadata are asked for without creation; what is missing and may be created is named once more by a request that
        creates. Nothing is created with the option `allow_auto_create_topics=False`.

        Args:
            may_create: Listener: gets a missing topic's name, says whether it may be created.
        """

    def topic(self, name: str) -> TopicInfo | None:
        """What the latest metadata says of a watched topic; None if there was no answer about it yet."""

    def topics(self) -> Sequence[str]:
        """Watched topics of which the latest metadata knows partitions."""

    def brokers(self) -> Sequence[Broker]:
        """The brokers of the latest metadata."""

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        """Watches these topics from now on and asks for metadata.

        Topics never seen are asked for at once, others not within `retry_backoff_ms` of the last time.

        Args:
            topics: Names to watch, besides those that are watched already.
            reply: Gets `MetadataRefreshed` from a request that was sent after this call, or the first `Failure` (not
                sent, with `InvalidTopicError`, for a name that no topic can have).
        """

    def unwatch(self, topic: str) -> None:
        """Forgets a topic: `topic` returns None. A request for it watches it again."""

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """Asks one broker what it knows of a topic. What `topic` says stays as it is, and the topic is not watched.

        Args:
            node: Id of one of `brokers`.
            topic: Topic name.
            reply: Gets `TopicInfo`, whose partitions are those that this broker knows, or `Failure` (not sent, where
                there is no such broker).
        """

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics. They are not watched."""

    # -- writing -------------------------------------------------------------------------------------------------

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        """Asks any broker for a producer id.

        Args:
            reply: Gets `ProducerIdGranted` or `Failure`. All error codes are failures (`Failure.code`), and so is
                a producer id of -1, which a broker answers right after its start (code 14).
        """

    def produce(
        self,
        requests: Sequence[ProduceRequest[Token]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Token],
    ) -> None:
        """Appends batches to their partitions.

        Batches of one partition reach its leader in the order of the calls, as long as all succeed. After a
        failure later ones may already be under way; see `ProduceRequest.fence` for those that are not. Nothing goes to
        a new leader while batches of the partition are outstanding at the old one.

        A batch is *sent* from the moment its bytes were handed to a connection, whether or not the broker got them. A
        connection that ends fails all that was sent on it (`sent=True`) and all that waited for it (`sent=False`).

        Args:
            requests: The batches. Several for one partition go into requests of their own, pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """Makes a connection to the leader, if there is none, without a request.

        So that bytes need not be at hand before they can be written. Where a produce request would fail without being
        sent, so does this, for the same reasons and after the same time.

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `Reached` when a request would be written at once, or `Failure` (not sent).
        """

    # -- questions to a partition's leader -----------------------------------------------------------------------

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        """Which producers it remembers (KIP-664).

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `ProducersDescribed`, or `Failure`; one that is `unsupported` from brokers < 2.8.
        """

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        """Reads batch headers from a log, isolation read_uncommitted, without waiting for new ones.

        Nothing at or above the high watermark is shown.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Where to begin; the batch that holds it comes first.
            max_bytes: About how many bytes of batches to transfer. A larger first batch is transferred whole.
            reply: Gets `HeadersFetched` or `Failure`. A batch that is damaged on its way is a `Failure`.
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

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        """Where something is in its log.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: `LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED` (a `Failure` that is
                `unsupported` where the broker is too old for it), or ms since the epoch: the first record with this
                timestamp or a later.
            reply: Gets `OffsetListed` or `Failure`.
            isolation_level: 1 (read_committed): the end is the last stable offset.
        """

    def list_offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        timestamp: int,
        reply: Reply[Mapping[tuple[str, int], OffsetListed]],
        *,
        isolation_level: int = 0,
    ) -> None:
        """Where something is in many logs, in one request for up to 500 partitions of a leader.

        Args:
            partitions: (topic, partition), each at most once.
            timestamp: As for `list_offset`, the same for all.
            reply: Gets the offsets by partition, or `Failure`. A partition is left out if it has no known leader, its
                broker did not answer, or the answer is an error or no offset: `list_offset` then tells which.
            isolation_level: 1 (read_committed): the end is the last stable offset.
        """

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        """Where its log ends, which may be beyond the high watermark.

        Asked as a debugging replica (-2), which a broker answers whether it leads or not. From Kafka 2.4 on the
        leader epoch in the request makes one that leads no more answer 74 instead.
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
        """Where an epoch ends in its log (KIP-279).

        Args:
            topic: Topic name.
            partition: Partition number.
            leader_epoch: The epoch.
            reply: Gets `EpochEnd` or `Failure`; one that is `unsupported` from brokers < 0.11.
            current_leader_epoch: Under which epoch the leader is thought to lead; one that leads under another
                answers 74 or 75 (Kafka 2.1 and later). -1: whoever leads may answer.
        """


# How a TLS alert begins, taken for the length of a frame: 0x15, 0x03, a minor version, 0x00.
_TLS_ALERTS: Final = tuple(f"Invalid frame length: {0x15030000 + (minor << 8)}" for minor in range(5))


def in_words(error: BaseException) -> str:
    """An error with its name: kafka-python's have it in their text, others do not."""
    name, text = type(error).__name__, str(error)
    if text.endswith(_TLS_ALERTS):
        text += "; it answers in TLS, so security_protocol must be SSL or SASL_SSL"
    return text if text.startswith(name) else f"{name}: {text}" if text else name
