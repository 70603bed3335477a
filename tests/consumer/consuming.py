"""What the tests of SafeConsumer on real brokers share."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import kafka.errors as kafka_errors
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from waiting import until

from kafkasafe.cluster.api import Failure, ProduceRequest
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import LogDivergedError
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import batch

__all__ = [
    "Consumers",
    "Raw",
    "Slowness",
    "Writer",
    "collect",
    "join",
    "kafka_errors",
    "looks_up",
    "make_offsets_topic",
    "new_name",
    "new_topic",
    "tier",
    "told",
    "until",
]


def new_name():
    return f"c-{random.SystemRandom().getrandbits(40):010x}"


def new_topic(cluster, partitions=1, **more):
    name = new_name()
    cluster.create_topic(name, partitions, **more)
    return name


def make_offsets_topic(cluster):
    """Kafka creates it when the first group is looked up, and only while there are brokers enough for its copies."""
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, group_id=new_name(), enable_auto_commit=False
    )
    try:
        consumer.committed(TopicPartition(new_name(), 0), timeout_ms=120_000)
    finally:
        consumer.close()


def collect(consumer, count, timeout_s=120.0):
    """Polls until so many records are there; returns them in order."""
    records = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records within {timeout_s} s"
        for some in consumer.poll(timeout_ms=500).values():
            records += some
    return records


class Writer:
    """Writes single-record batches to the leader of a partition, with retries."""

    def __init__(self, cluster):
        self._transport = over_sockets(
            {"bootstrap_servers": cluster.bootstrap_servers, "request_timeout_ms": 3000}
        )
        self._transport.start()

    def write(self, topic, count, *, partition=0, acks=-1, timeout_s=60.0):
        """Returns the offsets."""
        return [self._write(topic, partition, acks, timeout_s) for _ in range(count)]

    def _write(self, topic, partition, acks, timeout_s):
        deadline = time.monotonic() + timeout_s
        while True:
            data = batch.encode(None, [b"x"], timestamps=int(time.time() * 1000))
            done, box = threading.Event(), []

            def reply(token, result, done=done, box=box):
                box.append(result)
                done.set()

            self._transport.produce([ProduceRequest(0, topic, partition, data)], acks, 3000, reply)
            assert done.wait(60)
            result = box[0]
            if not isinstance(result, Failure) and result.error_code == 0:
                return result.base_offset
            assert time.monotonic() < deadline, result
            self._transport.refresh_metadata([topic], lambda _: None)
            threading.Event().wait(0.05)

    def close(self):
        self._transport.close(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Raw:
    """Asks the leader, without patience or memory."""

    def __init__(self, cluster):
        self.transport = over_sockets(
            {"bootstrap_servers": cluster.bootstrap_servers, "request_timeout_ms": 2000}
        )
        self.transport.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.transport.close(5)

    def ask(self, topic, partition=0):
        done, box = threading.Event(), []

        def reply(result):
            box.append(result)
            done.set()

        self.transport.list_offset(topic, partition, -1, reply)
        assert done.wait(60)
        return box[0]

    def end(self, topic, partition=0):
        """None: no answer, or an error."""
        answer = self.ask(topic, partition)
        if isinstance(answer, Failure) or answer.error_code:
            self.transport.refresh_metadata([topic], lambda _: None)
            return None
        return answer.offset

    def code(self, topic, partition=0):
        answer = self.ask(topic, partition)
        return None if isinstance(answer, Failure) else answer.error_code


def told(consumer):
    """The event of the LogDivergedError that `poll` raises."""
    found = []

    def raised():
        try:
            assert not consumer.poll(200)
        except LogDivergedError as error:
            found.append(error.event)
        return found

    until(raised, 60)
    return found[0]


def join(*members):
    """Polls until the last of these consumers is in the group, and the others know."""

    def joined():
        for member in members:
            with contextlib.suppress(LogDivergedError):
                member.poll(100)
        generations = {member._coordinator._generation.generation_id for member in members}
        return len(generations) == 1 and min(generations) >= 0 and not members[0]._coordinator.need_rejoin()

    until(joined, 150, "a rebalance")  # a member that is gone may be waited for until its session ends, 45 s


class Slowness:
    """How far the machine is behind: what a moment's sleep takes too long at most, seconds."""

    def __init__(self):
        self.seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def _measure(self):
        while not self._stop.is_set():
            began = time.monotonic()
            time.sleep(0.05)
            self.seconds = max(self.seconds, time.monotonic() - began - 0.05)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


class Consumers:
    """Opens SafeConsumers and closes what is left open."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.events = []
        self._opened = []

    def __call__(self, *topics, **options):
        options.setdefault("bootstrap_servers", self.cluster.bootstrap_servers)
        options.setdefault("on_event", self.events.append)
        # A request for what is not there yet does not delay the next one.
        options.setdefault("fetch_max_wait_ms", 50)
        consumer = SafeConsumer(*topics, **options)
        self._opened.append(consumer)
        return consumer

    def assigned(self, topic, *partitions, **options):
        consumer = self(**options)
        consumer.assign([TopicPartition(topic, number) for number in partitions or (0,)])
        return consumer

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for consumer in self._opened:
            consumer.close(autocommit=False)


def looks_up(timestamp):
    """For `Rule.when`: ListOffsets about this, and nothing else."""
    return lambda exchange: exchange.request.topics[0].partitions[0].timestamp == timestamp


def tier(proxy, topic, local_start):
    """The leader says that it has on its own disk only what comes from an offset on."""

    def edit(exchange):
        for partition in exchange.response.topics[0].partitions:
            partition.offset = local_start

    return proxy.on("ListOffsets", topic=topic).when(looks_up(-4)).edit(edit)


def produce(cluster, topic, values, partition=0, **more):
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **more)
    futures = [producer.send(topic, value, partition=partition) for value in values]
    producer.flush()
    producer.close()
    return [future.get(60).offset for future in futures]
