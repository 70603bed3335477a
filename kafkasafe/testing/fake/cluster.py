"""`FakeCluster`: a Kafka in memory, for unit tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from kafka import KafkaAdminClient

from kafkasafe.errors import UsageError
from kafkasafe.testing.broker import ClusterError
from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.control import Control, random_id
from kafkasafe.testing.fake.weather import Weather
from kafkasafe.testing.fake.wire import Wire

_POLL_S: Final = 0.002


class FakeCluster(Control):
    """A Kafka cluster in memory, on 127.0.0.1, for unit tests. The fake needs no Java, and starts in a millisecond.

    ```python
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        producer = SafeProducer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        cluster.kill(cluster.leader("orders", 0))
    ```

    The fake uses Kafka's protocol, so every client works with it unchanged. The methods of the fake have the same names
    as the methods of `KafkaCluster`, so a test can run on either. The fake stores batches unchanged, and checks them
    like a broker: size, checksum, sequences, timestamps. If a client sends a request that the fake does not model, the
    connection ends, and `close` raises `NotModelledError`. `docs/testing.md` lists these requests. A contract suite
    runs the same tests on the fake and on real brokers.

    Any thread can call the methods, but the thread must not hold a lock that a client's callback needs. Every method
    returns when its effect has been achieved. Methods with the parameters `topic, partition` also accept a
    `TopicPartition`.

    The following settings differ from Kafka's defaults. The controller notices a dead broker after 0.1 s
    (`broker.session.timeout.ms`). Group rebalances begin without a delay. Brokers check every second which producers
    have expired. Topics have min(3, `brokers`) replicas. With three or more brokers, `min.insync.replicas` is 2.

    Args:
        brokers: Number of brokers, 1 or more. Their node ids are 1 … `brokers`.
        version: Version of Kafka: "4.3.0" or "2.8.2".
        config: Broker settings by Kafka's names.
        broker_config: `{node: settings}`: settings of single brokers. Only `broker.rack` is possible.
        cluster_id: The cluster's id; random by default.

    Raises:
        ConfigError: The fake does not support this number of brokers, version or setting.
    """

    def __init__(
        self,
        brokers: int = 1,
        version: str = "4.3.0",
        config: Mapping[str, object] | None = None,
        *,
        broker_config: Mapping[int, Mapping[str, object]] | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self._lock = threading.RLock()
        # Use the monotonic clock: if the wall clock was set, throttling and sessions would end too early or too late.
        self._began_ms = (time.time_ns() - time.monotonic_ns()) // 1_000_000
        self._ahead_ms = 0
        self._wire: Wire | None = None
        self._closed = False
        super().__init__(brokers, version, config, cluster_id or random_id(), broker_config)

    # --- lifecycle --------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Starts to listen. `with` calls it."""
        if self._closed:
            raise UsageError("a FakeCluster is opened once; make a new one")
        if self._wire is None:
            self._wire = Wire(self._handler, list(self.brokers), self._lock, self.now_ms)
        return self

    def close(self) -> None:
        """Ends the cluster and all its connections. Idempotent.

        Raises:
            NotModelledError: A client used a feature that the fake does not have, so the client got no answer.
        """
        if self._closed:
            return
        self._closed = True
        if self._wire is not None:
            self._wire.close()
        if self._handler.errors:
            raise NotModelledError(
                f"A client wanted what the fake does not have: {self._handler.errors[0]}"
                f" ({len(self._handler.errors)} in all); use a KafkaCluster for it"
            ) from self._handler.errors[0]

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except NotModelledError as missing:
            if error is None:
                raise
            error.add_note(str(missing))

    @property
    def bootstrap_servers(self) -> list[str]:
        """`host:port` of every broker."""
        return [f"{host}:{port}" for host, port in map(self.client_address, self.brokers)]

    def client_address(self, node: int) -> tuple[str, int]:
        """Host and port of a broker."""
        self._check_node(node)
        self._open_wire()
        return self._handler.addresses[node]

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """A kafka-python admin client."""
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=10_000)
        try:
            yield client
        finally:
            client.close()

    # --- time -------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The current time of the cluster, in ms since the epoch."""
        return self._began_ms + time.monotonic_ns() // 1_000_000 + self._ahead_ms

    def advance(self, seconds: float) -> None:
        """Advances the cluster's time at once, and does everything that is due. Clients' clocks do not change."""
        if seconds < 0:
            raise UsageError(f"Time does not go back: {seconds:g} s")
        with self._acting():
            self._ahead_ms += int(seconds * 1000)
            self._handler.advance(self.now_ms())

    # --- the network ------------------------------------------------------------------------------------------------

    @property
    def weather(self) -> dict[int, Weather]:
        """The network faults of each broker."""
        return self._open_wire().weather

    def cut(self, *, node: int | None = None) -> int:
        """Ends the connections to a broker, or to all brokers. Returns the number of connections that ended."""
        return self._open_wire().cut(self._nodes(node))

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._closed:
            raise UsageError("the FakeCluster is closed")
        try:
            with self._lock:
                yield
        finally:
            if self._wire is not None:
                self._wire.settle()

    def _open_wire(self) -> Wire:
        if self._wire is None:
            raise UsageError("the FakeCluster is not open: use it as a context manager, or call open()")
        return self._wire

    def _until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while True:
            with self._acting():
                if condition():
                    return
            if time.monotonic() > deadline:
                raise ClusterError(f"{message} after {timeout_s:g} s")
            pause.wait(_POLL_S)
