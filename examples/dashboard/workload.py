"""Runs the clients that the dashboard shows, on a real broker, and causes their faults. Two clients have no fault."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from kafka import KafkaProducer, TopicPartition
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry
from tools import start

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.errors import KafkaSafeError, RejectedError, SpoolFullError
from kafkasafe.metrics import install, serve
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import Exchange, FaultProxy, Rule

ALERTS = {
    "DataLost": ("payments",),
    "EndOffsetRegressed": ("ledger",),
    "LogDiverged": ("ledger",),
    "SpoolNearFull": ("sensors",),
    "SendsNotAccepted": ("sensors",),
    "SpoolStalled": ("sensors",),
    # No record of `sensors` is delivered. One partition of `devices` is stuck while others are delivered.
    "PartitionStuck": ("devices", "sensors"),
    "ProducerIdNearExpiry": ("sensors",),
    "BlockedByCluster": ("devices",),
    "RecordsRejected": ("uploads",),
    "RecordsUndecidable": ("tickets",),
    "SpoolCorrupt": ("cameras",),
    "ConsumerSkipped": ("reports",),
    "StoppedPartitions": ("auditor",),
    "RemoteStorageNotReady": ("archive",),
    "ConsumerNotReady": ("archive",),
}
"""Alert → the clients of the workload that have the alert's fault. No other client has this fault."""

UNSEEN_ALERTS = frozenset(
    {
        "SpoolDisplaced",
        "OrphanedSpoolFound",
        "SpoolVolumeLow",
        "BrokersUnreachable",
        "ConsumerStoppedPolling",
        "ConsumerLagGrows",
        "MetricsAbsent",
    }
)
"""Alerts without a fault in this workload. tests/producer has some: test_default_spool.py, test_place.py,
test_connected.py.
"""

SPARK_ALERTS = frozenset({"SparkBatchFailed", "SparkSourceDataLost"})
"""Alerts of Spark queries, which tests/spark/test_dashboard.py runs instead of this workload."""

LASTING = (
    "SpoolNearFull",
    "SpoolStalled",
    "PartitionStuck",
    "ProducerIdNearExpiry",
    "BlockedByCluster",
    "StoppedPartitions",
    "RemoteStorageNotReady",
    "ConsumerNotReady",
)
"""Alerts that end with their fault. Every other alert reports a past event for 15 minutes."""

PRODUCERS = ("orders", "payments", "sensors", "devices", "uploads", "tickets", "cameras")

HEALTHY = ("orders", "billing")
_OUTAGE_S = 1200
_TOPICS = ("orders", "payments", "invoices", "sensors", "reports", "archive", "badges", "tickets", "cameras")
_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": True,
}


class Workload:
    """Runs a broker behind a fault proxy, its clients, and an endpoint with their metrics. A context manager.

    `orders` produces and `billing` consumes all the time, without a fault.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._rules: list[Rule] = []
        self._denied: list[ACL] = []

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
        self.cluster = stack.enter_context(
            KafkaCluster(brokers=1, config=_RIGHTS, proxy_ports=self.proxy.ports)
        )
        self.proxy.connect(self.cluster)
        for topic in _TOPICS:
            self.cluster.create_topic(topic)
        self.cluster.create_topic("devices", partitions=2)
        self.cluster.create_topic("uploads", config={"max.message.bytes": "2000"})
        self.registry = CollectorRegistry()
        self.server = stack.enter_context(serve(registry=self.registry, partitions=True))
        stack.callback(self._end)  # end the threads before the objects that they use are closed
        self._stack = stack
        payments = self._producer("payments", retain_acked_bytes=1 << 20, data_loss_check_ms=500)
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
        self._auditor = self._consume("auditor", "reports", auto_offset_reset="none", at=0)
        orders = self._producer("orders")
        self._start(lambda: self._produce(orders))
        self._sensors = self._open_sensors()
        self._devices = self._producer("devices")
        self._uploads = self._producer("uploads")
        self._tickets = self._producer("tickets")
        self._cameras = self._producer("cameras")

    @property
    def target(self) -> str:
        """Address of the metrics, as `host:port`."""
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
            if number % 25:
                producer.send("orders", b"order %d" % number)
            else:
                with producer.batch() as batch:
                    batch.send("orders", b"order %d" % number)
            number += 1

    def _consume(
        self,
        client: str,
        topic: str,
        each: Callable[[SafeConsumer], None] | None = None,
        at: int | None = None,
        **options: Any,
    ) -> _Reader:
        consumer = SafeConsumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            client_id=client,
            **{"auto_offset_reset": "earliest", **options},
        )
        self._stack.callback(consumer.close)
        consumer.assign([TopicPartition(topic, 0)])
        if at is not None:
            consumer.seek(TopicPartition(topic, 0), at)
        install(consumer, registry=self.registry)
        reader = _Reader(consumer, TopicPartition(topic, 0))
        self._start(lambda: reader.run(self._ended, each))
        return reader

    @staticmethod
    def _look_at_the_end(consumer: SafeConsumer) -> None:
        consumer.end_offsets(consumer.assignment(), timeout_ms=500, partial=True)

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(start(work, self._failures))

    # -- faults ------------------------------------------------------------------------------------------------------

    def break_everything(self) -> None:
        """Causes all faults. Each fault lasts until `repair`, or cannot be repaired."""
        self.forget_the_tickets()
        self.hold_back_the_end_of_the_invoices()
        self.lose_the_log()
        self.refuse_the_sensors()
        self.refuse_one_device()
        self.send_what_is_too_large()
        self.damage_the_cameras()
        self.trim_the_reports()
        self.lose_sight_of_the_archive()

    def forget_the_tickets(self) -> None:
        """Causes RecordsUndecidable: drops answers, trims the log, and makes the brokers forget the producer."""
        lost = self.proxy.on("Produce", topic="tickets").drop()
        for number in range(5):
            self._tickets.send("tickets", b"%d" % number)
        self._tickets.durable(60)
        lost.wait(1, 60)
        place = TopicPartition("tickets", 0)
        _until(lambda: self.cluster.log_end("tickets", 0, 1) == 5, "the tickets to be in the log")
        self._tickets.close(timeout=0)
        with self.cluster.admin() as admin:
            admin.delete_records({place: 5})
        self.cluster.expire_producers(["tickets"])
        lost.remove()
        self._tickets = self._producer("tickets", on_undecidable="resend")

    def hold_back_the_end_of_the_invoices(self) -> None:
        """Edits answers, as if they came from a new leader that lags behind. No alert fires, but
        kafkasafe_end_offsets_held_total grows.
        """
        ends = self.proxy.on("ListOffsets", topic="invoices")
        ends.when(lambda exchange: exchange.request.topics[0].partitions[0].timestamp == -1)
        ends.answer(code=78, offset=-1, times=3)
        ends.wait(3, 60)

        def lower(exchange: Exchange) -> None:
            exchange.response.topics[0].partitions[0].offset -= 50

        behind = self.proxy.on("ListOffsets", topic="invoices")
        behind.when(lambda exchange: exchange.request.topics[0].partitions[0].timestamp == -1)
        behind.edit(lower, times=3)
        behind.wait(3, 60)

    def lose_the_log(self) -> None:
        """Deletes logs. The result is DataLost for `payments`, whose records are restored, and EndOffsetRegressed for
        `invoices`.
        """
        self.cluster.kill_all()
        for topic in ("payments", "invoices"):
            shutil.rmtree(self.cluster.data_dir(1) / f"{topic}-0")
        self.cluster.start_all()

    def _open_sensors(self) -> SafeProducer:
        return self._producer(
            "sensors",
            spool_max_bytes=32 << 20,
            max_block_ms=100,
            max_request_size=500_000,
            # The simulated outage of 1,200 s is 86 % of this expiration time.
            producer_id_expiration_ms=1_400_000,
        )

    def refuse_the_sensors(self) -> None:
        """Simulates 20 minutes with too few replicas, and restarts the producer.

        Causes SpoolStalled, SpoolNearFull, SendsNotAccepted, PartitionStuck and ProducerIdNearExpiry. After a restart,
        kafkasafe takes the age of a record from its timestamp, so the 20 minutes need not pass.
        """
        sensors = self._sensors
        rule = self.proxy.on("Produce", topic="sensors").answer_without_forwarding(code=19)
        self._rules.append(rule)
        then_ms = int((time.time() - _OUTAGE_S) * 1000)
        for number in range(50):
            sensors.send("sensors", b"%d" % number, timestamp_ms=then_ms)
        sensors.durable(60)
        rule.wait(1, 60)  # the batch was sent, so it has an id and is in doubt
        sensors.close(timeout=0)
        self._sensors = self._open_sensors()
        with contextlib.suppress(SpoolFullError):
            while True:
                self._sensors.send("sensors", bytes(100_000))

    def refuse_one_device(self) -> None:
        """Blocks one partition of two for 20 minutes: PartitionStuck, but not SpoolStalled.

        Also revokes a permission: BlockedByCluster. For the other partition, the proxy answers that the previous batch
        is missing (45) or that this batch is in the log already (46): the producer must not take these sequence errors
        for a loss.
        """
        self._devices.send("devices", b"first", partition=1).get(60)
        self._rules.append(
            self.proxy.on("Produce", topic="devices", partition=0).answer_without_forwarding(code=19)
        )
        then_ms = int((time.time() - _OUTAGE_S) * 1000)
        self._devices.send("devices", b"stuck", partition=0, timestamp_ms=then_ms).durable(60)
        self._devices.close(timeout=0)
        devices = self._devices = self._producer("devices")
        for code in (45, 46):
            rule = self.proxy.on("Produce", topic="devices", partition=1).answer(
                code=code, base_offset=-1, times=1
            )
            devices.send("devices", b"seen before", partition=1).get(60)
            rule.wait(1, 60)
        everybody = ResourcePattern(ResourceType.TOPIC, "badges")
        denied = ACL("User:ANONYMOUS", "*", ACLOperation.WRITE, ACLPermissionType.DENY, everybody)
        allowed = ACL("User:ANONYMOUS", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, everybody)
        with self.cluster.admin() as admin:
            admin.create_acls([denied, allowed])
        self._denied.append(denied)
        devices.send("badges", b"who")
        self._start(lambda: self._go_on(devices))

    def _go_on(self, devices: SafeProducer) -> None:
        while not self._ended.wait(0.2):
            devices.send("devices", b"on", partition=1)

    def send_what_is_too_large(self) -> None:
        """Causes RecordsRejected by a record that is too large for its topic."""
        with contextlib.suppress(RejectedError):
            self._uploads.send("uploads", random.randbytes(5000)).get(60)

    def damage_the_cameras(self) -> None:
        """Causes SpoolCorrupt: flips a bit of a closed spool, and opens the spool."""
        away = self.proxy.on("Produce", topic="cameras").answer_without_forwarding(code=19)
        for number in range(10):
            self._cameras.send("cameras", b"picture %d" % number).durable(60)
        away.wait(1, 60)
        self._cameras.close(timeout=0)
        (segment,) = (self.spools / "cameras").glob("lane-*/*.log")
        content = bytearray(segment.read_bytes())
        content[content.index(b"picture 5")] ^= 1
        segment.write_bytes(content)
        away.remove()
        self._cameras = self._producer("cameras", on_corrupt="quarantine")

    def trim_the_reports(self) -> None:
        """Causes ConsumerSkipped: lets a partition's leader fail for a moment, then deletes records that a consumer has
        not read.

        Also causes StoppedPartitions, for a consumer whose position may not be reset without the program's decision.
        """
        falters = self.proxy.on("Fetch", topic="reports").answer(
            code=9, high_watermark=-1, records=None, times=3
        )
        self._reports.go_back_to(0)
        falters.wait(3, 60)
        _until(lambda: self._reports.position == 200, "the reports to be read again")
        with self.cluster.admin() as admin:
            admin.delete_records({TopicPartition("reports", 0): 150})
        self._reports.go_back_to(50)
        self._auditor.go_back_to(50)

    def lose_sight_of_the_archive(self) -> None:
        """Makes records in remote storage unreadable (KIP-1007): RemoteStorageNotReady, ConsumerNotReady."""

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
        with self.cluster.admin() as admin:
            admin.delete_acls(self._denied)
        self._denied.clear()
        self._auditor.go_back_to(150)
        self._sensors.flush(120)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {what}")
        time.sleep(0.05)


class _Reader:
    """Polls a consumer on one thread. No other thread uses this consumer."""

    def __init__(self, consumer: SafeConsumer, tp: TopicPartition) -> None:
        self._consumer, self._tp = consumer, tp
        self._seek: int | None = None
        self.position: int | None = None

    def go_back_to(self, offset: int) -> None:
        """Makes the consumer read again from this offset."""
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
                # Ignore the error: either a broker is down, or the metrics already report the error.
                ended.wait(0.1)
