"""The interface between a client of brokers and its network: connections, requests as data, time.

The client (`kafkasafe.cluster.client`) decides which request goes to which broker, and when. A `Network` makes
connections, and calls the client back. A `Network` works over sockets (`kafkasafe.kafkapython.network`), or in virtual
time (`kafkasafe.testing.fake`).

Rules for each implementation of `Network`:

- *One thread*, the network thread, runs the timers' calls, the methods of the `Service` and the callbacks of
  connections. Other threads may call only these methods of the `Network`: `wake`, `brokers`, `start` and `close`.
- *No callback runs inside the call that registers it*: `call_at`, `connect` and `Connection.watch` return before the
  callback runs.
- *Each request has one outcome*: the connection calls `answered` or `failed`, in the order of its requests, and before
  `on_closed`. A request that cannot be written fails before `send` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, TypeAlias

from kafkasafe.cluster.api import Broker, Buffer, ProduceReply
from kafkasafe.cluster.terms import NodeId, TopicPartition

OffsetRow: TypeAlias = tuple[int, int, int, int, int]
"""Partition, error code, timestamp, offset, leader epoch."""


PRODUCE_BY_ID: Final = 13
"""First version in which Produce requests and answers have topic ids instead of topic names (KIP-516)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        fields: The request's fields, named as in Kafka's protocol. A struct is a dict, and an array of structs is a
            list of dicts.
    """

    name: str
    version: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProduceBatches:
    """A Produce request, with at most one batch for each partition.

    Attributes:
        version: 3 to 13.
        acks: -1 or 1.
        timeout_ms: How long the broker may wait for its replicas.
        batches: (topic, partition, batch) for each batch. The list is emptied when the request is encoded.
        transactional_id: Transactional id of the batches' transaction; None if the batches belong to no transaction.
        topic_ids: The id of each topic, 16 bytes. From version 13 on, the request names topics by their ids.
    """

    name: ClassVar[str] = "Produce"

    version: int
    acks: int
    timeout_ms: int
    batches: list[tuple[str, int, Buffer]]
    transactional_id: str | None
    topic_ids: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ManyOffsets:
    """A ListOffsets request, with the same timestamp for many partitions.

    The answer has `rows`. Each row is a pair: a topic, and one `OffsetRow` for each of its partitions.

    Attributes:
        version: 1 to 10.
        numbers: Partition numbers by topic.
        timestamp: The timestamp to look up in each partition.
        isolation_level: 1: read_committed.
        timeout_ms: How long the broker may wait for remote storage.
    """

    name: ClassVar[str] = "ListOffsets"

    version: int
    numbers: Mapping[str, Sequence[int]]
    timestamp: int
    isolation_level: int
    timeout_ms: int


Sendable: TypeAlias = Request | ProduceBatches | ManyOffsets


@dataclass(frozen=True, slots=True)
class AllAppended:
    """An answer to Produce that says only that every batch was appended.

    Attributes:
        replies: The reply for each batch, by topic and partition.
        throttle_time_ms: Kafka's field `throttle_time_ms`: how long the broker throttled the request.
    """

    replies: Mapping[TopicPartition, ProduceReply]
    throttle_time_ms: int


class Written(Protocol):
    """A request whose bytes are being written."""

    def written(self, now: float) -> None:
        """Called when the request's last byte was written, with the time of `Network.now`."""


class Connection(Protocol):
    """A connection to one broker. The connection closes only once, and calls `on_closed` when it does."""

    @property
    def connected(self) -> bool:
        """True if the broker has answered the handshake and the connection is still open."""

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""

    @property
    def resumes_at(self) -> float | None:
        """None if the connection takes requests. Otherwise (for example while the connection is throttled), the time
        when it may take requests again, in seconds of `Network.now`; 0 means soon.
        """

    @property
    def last_read(self) -> float:
        """When bytes were last received, in seconds of `Network.now`."""

    @property
    def last_write(self) -> float:
        """When the network last accepted bytes, in seconds of `Network.now`."""

    def watch(self, on_ready: Callable[[], None], on_closed: Callable[[BaseException | None], None]) -> None:
        """Sets the callbacks of the connection. Call `watch` once, right after `Network.connect`.

        Args:
            on_ready: Called when the broker has answered the handshake.
            on_closed: Called with the reason when the connection ends or cannot be made; with None if `close` was
                called without a reason.
        """

    def version(self, name: str, minimum: int, maximum: int) -> int:
        """The newest version of a request, from `minimum` to `maximum`, that the broker supports.

        Raises:
            UnsupportedVersionError: The broker supports no such version.
        """

    def send(
        self,
        request: Sendable,
        written: Written,
        answered: Callable[[Any], None],
        failed: Callable[[BaseException, bool], None],
    ) -> None:
        """Writes a request.

        Args:
            request: The request.
            written: Object whose method `written` is called when the last byte has been written.
            answered: Called with the answer, whose fields are attributes. A field that the request's version does not
                have is None.
            failed: Called instead of `answered`, with the error, and whether bytes may have been sent.
        """

    def close(self, error: BaseException | None = None) -> None:
        """Closes the connection at once; unsent bytes are dropped. Requests in flight fail with the error."""


class Service(Protocol):
    """The methods of a client that the network thread calls."""

    def begin(self) -> None:
        """Makes the network thread look for a broker as soon as it runs. Any thread may call this method."""

    def look(self) -> None:
        """Runs the jobs that other threads have passed to the network thread, and sends the questions that the jobs
        have gathered.
        """

    def shut_down(self) -> None:
        """Fails all outstanding requests, closes the connections, and stops the network. Idempotent."""

    def close_soon(self) -> None:
        """Makes the network thread call `shut_down`. Any thread may call this method."""

    def interrupted(self, error: BaseException) -> bool:
        """Fails all outstanding requests, because the network has ended. Returns whether the network ended before
        `shut_down` was called.
        """

    def begin_anew(self) -> None:
        """Prepares for a new event loop, which replaces the crashed loop and opens its own connections."""

    def end(self, error: BaseException) -> None:
        """Fails all requests from now on, because no new event loop will replace the ended loop."""


class Network(Protocol):
    """One client's connections to brokers, the brokers' addresses, and the clock.

    Attributes:
        client_id: Option `client_id`, or its default.
        request_timeout_s: Option `request_timeout_ms`, in seconds.
        metadata_max_age_s: Option `metadata_max_age_ms`, in seconds.
        reconnect_backoff_s: Option `reconnect_backoff_ms`, in seconds.
        reconnect_backoff_max_s: Option `reconnect_backoff_max_ms`, in seconds.
    """

    client_id: str
    request_timeout_s: float
    metadata_max_age_s: float
    reconnect_backoff_s: float
    reconnect_backoff_max_s: float

    def now(self) -> float:
        """Monotonic seconds."""

    def random_fraction(self) -> float:
        """A random number in [0, 1), to vary the length of pauses, and to choose among equally good brokers."""

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        """Calls `call` when `now` reaches `when`. Returns a handle for `cancel`."""

    def cancel(self, timer: Any) -> None:
        """Cancels a call that `call_at` scheduled and that has not happened yet."""

    def wake(self) -> None:
        """Makes the network thread call `Service.look` soon, maybe before this method returns. Any thread may call this
        method.
        """

    def connect(self, node_id: NodeId) -> Connection:
        """Starts to connect to a broker immediately.

        Raises:
            Exception: The broker is unknown, or an option is unusable.
        """

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""

    def nodes(self) -> list[NodeId]:
        """Node ids of the brokers of the latest metadata."""

    def bootstrap_nodes(self) -> list[NodeId]:
        """Node ids of the brokers of option `bootstrap_servers`."""

    def addresses(self) -> Collection[int]:
        """Node ids of the brokers whose addresses are known."""

    def learn_broker(self, endpoint: Any) -> None:
        """Adds the address of a broker that another broker's answer has named. Does nothing if the broker is known
        already.
        """

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        """Replaces the known brokers with the brokers of a metadata answer. Returns their node ids."""

    def serve(self, service: Service) -> None:
        """Sets the client that the network calls back. Call it once, before any other method."""

    def start(self) -> None:
        """See `Cluster.start`."""

    def close(self, timeout_s: float) -> bool:
        """See `Cluster.close`."""

    def stop(self) -> None:
        """Ends the network. It makes no connections from now on."""
