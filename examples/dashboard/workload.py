"""What the dashboard shows: producers and consumers on a real broker, one of each without a fault, and the faults."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from kafka import KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.errors import KafkaSafeError, SpoolFullError
from kafkasafe.metrics import install, serve
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy, Rule

ALERTS = {
    "AckedDataLost": "payments",
    "EndOffsetRegression": "ledger",
    "LogDiverged": "ledger",
    "SpoolNearFull": "sensors",
    "SpoolStalled": "sensors",
    "PartitionStuck": "sensors",
    "ProducerIdNearExpiry": "sensors",
    "ConsumerSkipped": "reports",
    "RemoteStorageNotReady": "archive",
}
"""Alerts, and the client of the workload whose fault each tells. Nobody else has it."""

NOT_SHOWN = frozenset(
    {"RefusedByCluster", "RecordsRejected", "UndecidableBatch", "SpoolCorrupt", "UndecidedPartitions"}
)
"""Alerts that the workload has no fault for: rules_test.yml alone shows that they fire."""

LASTING = ("SpoolNearFull", "SpoolStalled", "PartitionStuck", "ProducerIdNearExpiry", "RemoteStorageNotReady")
"""Those that end with their fault; the others tell for 15 minutes what has happened."""

HEALTHY = ("orders", "billing")
_OUTAGE_S = 1200
_TOPICS = ("orders", "payments", "invoices", "sensors", "reports", "archive")


class Workload:
    """A broker behind a fault proxy, its clients, and the endpoint with their metrics. A context manager.

    `orders` produces and `billing` consumes without a fault, all the time.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._rules: list[Rule] = []
        self._sensors: SafeProducer | None = None

    def __enter__(self) -> Self:
        try:
            with contextlib.ExitStack() as stack:
                self._open(stack)
                self._stack = stack.pop_all()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        self._stack.close()
        if self._failures and not any(raised):
            raise self._failures[0]

    def _end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _open(self, stack: contextlib.ExitStack) -> None:
        self.spools = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafkasafe-dashboard-")))
        self.proxy = stack.enter_context(FaultProxy())
        self.cluster = stack.enter_context(KafkaCluster(brokers=1, proxy_ports=self.proxy.ports))
        self.proxy.connect(self.cluster)
        for topic in _TOPICS:
            self.cluster.create_topic(topic)
        self.registry = CollectorRegistry()
        self.server = stack.enter_context(serve(registry=self.registry, partitions=True))
        stack.callback(self._end)  # before what the threads use is closed
        self._stack = stack
        payments = self._producer("payments", retain_acked_bytes=1 << 20, acked_loss_check_ms=500)
        plain = KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers)
        for number in range(200):
            payments.send("payments", b"%d" % number)
            for topic in ("invoices", "reports", "archive"):
                plain.send(topic, b"%d" % number)
        payments.flush(60)
        plain.flush(60)
        plain.close()
        self._consume("billing", "orders")
        self._consume("ledger", "invoices", on_divergence="seek", each=self._look_at_the_end)
        self._archive = self._consume("archive", "archive")
        self._reports = self._consume("reports", "reports")
        orders = self._producer("orders")
        self._start(lambda: self._produce(orders))
        self._open_sensors()

    @property
    def target(self) -> str:
        """Where its metrics are: `host:port`."""
        return f"127.0.0.1:{self.server.port}"

    def _producer(self, client: str, **options: Any) -> SafeProducer:
        producer = SafeProducer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            client_id=client,
            spool_dir=self.spools / client,
            request_timeout_ms=5000,
            **options,
        )
        self._stack.callback(producer.close, timeout=0)
        install(producer, registry=self.registry)
        return producer

    def _produce(self, producer: SafeProducer) -> None:
        number = 0
        while not self._ended.wait(0.02):
            producer.send("orders", b"order %d" % number)
            number += 1

    def _consume(
        self, client: str, topic: str, each: Callable[[SafeConsumer], None] | None = None, **options: Any
    ) -> _Reader:
        consumer = SafeConsumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            client_id=client,
            auto_offset_reset="earliest",
            **options,
        )
        self._stack.callback(consumer.close)
        consumer.assign([TopicPartition(topic, 0)])
        install(consumer, registry=self.registry)
        reader = _Reader(consumer, TopicPartition(topic, 0))
        self._start(lambda: reader.run(self._ended, each))
        return reader

    @staticmethod
    def _look_at_the_end(consumer: SafeConsumer) -> None:
        consumer.end_offsets(consumer.assignment(), timeout_ms=500, partial=True)

    def _start(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:
                # Told by whoever ends the workload.
                self._failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)

    # -- faults ------------------------------------------------------------------------------------------------------

    def break_everything(self) -> None:
        """All faults. Each lasts until `repair`, or cannot be repaired."""
        self.lose_the_log()
        self.refuse_the_sensors()
        self.trim_the_reports()
        self.lose_sight_of_the_archive()

    def lose_the_log(self) -> None:
        """A disk is lost: AckedDataLost (the payments are put back), and EndOffsetRegression of the invoices."""
        self.cluster.kill_all()
        for topic in ("payments", "invoices"):
            shutil.rmtree(self.cluster.data_dir(1) / f"{topic}-0")
        self.cluster.start_all()

    def _open_sensors(self) -> None:
        self._sensors = self._producer(
            "sensors",
            spool_max_bytes=32 << 20,
            max_block_ms=100,
            max_request_size=500_000,
            # 1,200 s of outage are 86 % of it.
            producer_id_expiration_ms=1_400_000,
        )

    def refuse_the_sensors(self) -> None:
        """Too few replicas for 20 minutes, and a restart.

        SpoolStalled, SpoolNearFull, PartitionStuck, ProducerIdNearExpiry. Records of an earlier life are as old as
        their timestamps, so that the 20 minutes need not pass.
        """
        sensors = self._sensors
        assert sensors is not None
        rule = self.proxy.on("Produce", topic="sensors").answer_without_forwarding(code=19)
        self._rules.append(rule)
        then_ms = int((time.time() - _OUTAGE_S) * 1000)
        for number in range(50):
            sensors.send("sensors", b"%d" % number, timestamp_ms=then_ms)
        sensors.flush_spool(60)
        rule.wait(1, 60)  # sent: it has an id, and is in doubt
        sensors.close(timeout=0)
        self._open_sensors()
        assert self._sensors is not None
        with contextlib.suppress(SpoolFullError):
            while True:
                self._sensors.send("sensors", bytes(100_000))

    def trim_the_reports(self) -> None:
        """Retention passes a consumer that was away: ConsumerSkipped. Before that its leader falters for a moment."""
        falters = self.proxy.on("Fetch", topic="reports").answer(
            code=9, high_watermark=-1, records=None, times=3
        )
        self._reports.go_back_to(0)
        falters.wait(3, 60)
        deadline = time.monotonic() + 60
        while self._reports.position != 200:
            if time.monotonic() > deadline:
                raise TimeoutError("the reports are not read again")
            time.sleep(0.05)
        with self.cluster.admin() as admin:
            admin.delete_records({TopicPartition("reports", 0): 150})
        self._reports.go_back_to(50)

    def lose_sight_of_the_archive(self) -> None:
        """What lies in remote storage cannot be read (KIP-1007): RemoteStorageNotReady."""

        def local_start(exchange: Any) -> None:
            for partition in exchange.response.topics[0].partitions:
                partition.offset = 100

        local = self.proxy.on("ListOffsets", topic="archive")
        local.when(lambda exchange: exchange.request.topics[0].partitions[0].timestamp == -4).edit(
            local_start
        )
        fetch = self.proxy.on("Fetch", topic="archive").answer(code=9, high_watermark=-1, records=None)
        self._rules += [local, fetch]
        self._archive.go_back_to(0)

    def repair(self) -> None:
        """Ends the faults that last."""
        while self._rules:
            self._rules.pop().remove()
        if self._sensors is not None:
            self._sensors.flush(120)


class _Reader:
    """Polls a consumer, which belongs to its thread."""

    def __init__(self, consumer: SafeConsumer, tp: TopicPartition) -> None:
        self._consumer, self._tp = consumer, tp
        self._seek: int | None = None
        self.position: int | None = None

    def go_back_to(self, offset: int) -> None:
        """Reads again from there on."""
        self.position = None
        self._seek = offset

    def run(self, ended: threading.Event, each: Callable[[SafeConsumer], None] | None) -> None:
        while not ended.is_set():
            if self._seek is not None:
                offset, self._seek = self._seek, None
                self._consumer.seek(self._tp, offset)
            try:
                if self._consumer.poll(200) and self._seek is None:
                    self.position = self._consumer.position(self._tp)
                if each is not None:
                    each(self._consumer)
            except (KafkaError, KafkaSafeError):
                # A broker that is away, or what the metrics tell.
                ended.wait(0.1)
