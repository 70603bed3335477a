"""The port between a client of brokers and its network: connections, requests as data, time.

The client (`kafkasafe.cluster.client`) decides which request goes where and when. A `Network` makes connections, and
calls back: over sockets (`kafkasafe.kafkapython.network`), or in virtual time (`kafkasafe.testing.fake`).

The rules, for networks:

- *One thread* calls timers, the `Service`, and what a connection reports. Only `Network.wake` is for any thread.
- *Timers and connections call later.* `call_at`, `connect` and `Connection.watch` return before they call anything.
- *Each request has one outcome*: `answered` or `failed`, in the order of the requests of a connection, and before
  `on_closed`. A request that cannot be written fails before `send` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

from kafkasafe.cluster.api import Broker, Buffer, ProduceReply
from kafkasafe.cluster.terms import NodeId, TopicPartition

__all__ = [
    "AllAppended",
    "Connection",
    "Life",
    "ManyOffsets",
    "Network",
    "OffsetRow",
    "ProduceBatches",
    "Request",
    "Sendable",
    "Service",
    "Written",
]

OffsetRow: TypeAlias = tuple[int, int, int, int, int]
"""Partition, error code, timestamp, offset, leader epoch."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        name: Kafka's name for it.
        version: Its version.
        fields: Its fields, named as in Kafka's protocol; dicts, and lists of dicts, for structs.
    """

    name: str
    version: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProduceBatches:
    """Produce, with at most one batch for each partition.

    Attributes:
        version: 3 to 12.
        acks: -1 or 1.
        timeout_ms: How long the broker may wait for its replicas.
        batches: (topic, partition, batch). Emptied when the request is encoded.
        transactional_id: Transactional id of the transaction that the batches belong to; None for none.
    """

    name: ClassVar[str] = "Produce"

    version: int
    acks: int
    timeout_ms: int
    batches: list[tuple[str, int, Buffer]]
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class ManyOffsets:
    """ListOffsets, with the same timestamp for many partitions. The answer has `rows`: (topic, `OffsetRow` of each).

    Attributes:
        version: 1 to 10.
        numbers: Partitions by topic.
        timestamp: Timestamp of each partition.
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
    """An answer to Produce in which every batch was appended, and nothing else is said.

    Attributes:
        replies: By topic and partition.
        throttle_time_ms: As in other answers.
    """

    replies: Mapping[TopicPartition, ProduceReply]
    throttle_time_ms: int


class Written(Protocol):
    """A request whose bytes are being written.

    Attributes:
        written_at: When its last byte was written, seconds of `Network.now`; 0 while some of it was not.
    """

    written_at: float


class Connection(Protocol):
    """A connection to one broker. It closes once, and then reports so."""

    @property
    def connected(self) -> bool:
        """Whether the broker has answered the handshake, and the connection is not closed."""

    @property
    def closed(self) -> bool:
        """Whether it is closed."""

    @property
    def resumes_at(self) -> float | None:
        """None while it takes requests. Else when it may take some again, 0 for soon: it is throttled, for example."""

    @property
    def last_read(self) -> float:
        """When bytes came last, seconds of `Network.now`."""

    @property
    def last_write(self) -> float:
        """When the network took bytes last, seconds of `Network.now`."""

    def watch(self, on_ready: Callable[[], None], on_closed: Callable[[BaseException | None], None]) -> None:
        """Sets what the connection reports. Once, right after `Network.connect`.

        Args:
            on_ready: Called when the broker has answered the handshake.
            on_closed: Called with the reason when the connection ends, or could not be made; None if `close` was
                called without one.
        """

    def version(self, name: str, minimum: int, maximum: int) -> int:
        """The newest version of a request that the broker speaks.

        Args:
            name: Kafka's name of the request.
            minimum: Oldest version that will do.
            maximum: Newest version that will do.

        Raises:
            UnsupportedVersionError: There is none.
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
            written: Gets the time when the last byte was written.
            answered: Called with the answer, whose fields are attributes: None where the version has no such field.
            failed: Called instead with the reason, and whether bytes may have been sent.
        """

    def close(self, error: BaseException | None = None) -> None:
        """Closes the connection at once; unsent bytes are dropped. Requests in flight fail with the error."""


class Service(Protocol):
    """What the network's thread asks of a client."""

    def begin(self) -> None:
        """From any thread: looks for a broker, once there is a thread."""

    def look(self) -> None:
        """Does what other threads asked for."""

    def shut_down(self) -> None:
        """Everything outstanding fails, connections close, and the network stops. Idempotent."""

    def close_soon(self) -> None:
        """From any thread: shuts down on the network's thread."""

    def interrupted(self, error: BaseException) -> bool:
        """The network has ended: everything outstanding fails. Returns whether it ended without `shut_down`."""

    def begin_anew(self) -> None:
        """Another network will take the place of the one that crashed."""

    def reopen(self) -> None:
        """The other network is there."""

    def end(self, error: BaseException) -> None:
        """No network will take its place."""

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""

    @property
    def in_child(self) -> bool:
        """Whether this is a forked child."""


class Life(Protocol):
    """Start and end of a network's thread."""

    def start(self) -> None:
        """See `Cluster.start`."""

    def close(self, timeout_s: float) -> bool:
        """See `Cluster.close`."""


class Network(Protocol):
    """Connections to the brokers of one client, their addresses, and the time.

    Attributes:
        client_id: Option, with its default.
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

    @property
    def broker_version(self) -> tuple[int, ...] | None:
        """Kafka version of the first broker reached; None before that."""

    def now(self) -> float:
        """Monotonic seconds."""

    def random_fraction(self) -> float:
        """A number in [0, 1), for pauses and for a choice among equals."""

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        """Calls a function at a time of `now`. Returns what `cancel` takes."""

    def cancel(self, timer: Any) -> None:
        """Cancels a call of `call_at` that has not happened."""

    def wake(self) -> None:
        """From any thread: the network calls `Service.look` soon. It may do so before this returns."""

    def connect(self, node_id: NodeId) -> Connection:
        """Begins a connection to a broker at once.

        Args:
            node_id: The broker.

        Raises:
            Exception: The broker is unknown, or an option cannot work.
        """

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""

    def nodes(self) -> list[NodeId]:
        """Their node ids."""

    def bootstrap_nodes(self) -> list[NodeId]:
        """Those of option `bootstrap_servers`."""

    def addresses(self) -> Collection[int]:
        """Node ids of the brokers whose addresses are known."""

    def learn_broker(self, endpoint: Any) -> None:
        """Adds a broker that another one named, unless it is known."""

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        """Takes over the brokers of an answer about metadata. Returns their node ids."""

    def serve(self, service: Service) -> Life:
        """What the network asks of the client. Once, before everything else."""

    def stop(self) -> None:
        """No connection is made any more, and the network ends."""
