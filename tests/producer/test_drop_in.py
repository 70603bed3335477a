"""A KafkaProducer, but for the import: the same calls, results and places of records; and what it adds."""

from __future__ import annotations

import inspect
import json
import random
import threading
import time
import warnings
from pathlib import Path

import harness
import kafka.serializer
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.partitioner import Partitioner, StickyPartitioner

from kafkasafe import SafeProducer
from kafkasafe.errors import DeliveryTimeoutError, UndecidableError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import inspect as inspect_lane
from kafkasafe.testing import FakeCluster


class Both:
    """A KafkaProducer and a SafeProducer with the same options, and a topic for each."""

    def __init__(self, kafka, producers, partitions: int = 5, **options) -> None:
        self.servers = kafka.bootstrap_servers
        # Some tests send old timestamps: every five minutes, Kafka deletes what is older than a week.
        self.topics = [harness.new_topic(kafka, partitions, config={"retention.ms": -1}) for _ in range(2)]
        self.plain = KafkaProducer(bootstrap_servers=self.servers, **options)
        self.safe = producers(self.servers, **options)

    def send(self, *args, **kwargs):
        """Metadata of one record that is sent by both."""
        futures = (
            self.plain.send(self.topics[0], *args, **kwargs),
            self.safe.send(self.topics[1], *args, **kwargs),
        )
        return futures[0].get(60), futures[1].get(60)

    def logs(self):
        self.plain.close()
        self.safe.close()
        return [harness.read_log(self.servers, topic) for topic in self.topics]


def test_the_same_methods_with_the_same_arguments():
    for name in ("send", "flush", "close", "partitions_for", "metrics", "bootstrap_connected"):
        theirs = inspect.signature(getattr(KafkaProducer, name)).parameters
        ours = inspect.signature(getattr(SafeProducer, name)).parameters
        public = [parameter for parameter in theirs.values() if parameter.name != "null_logger"]
        assert list(ours) == [parameter.name for parameter in public], name
        for parameter in public:
            assert ours[parameter.name].default == parameter.default, (name, parameter)


def test_class_attributes_that_programs_look_at(producers):
    assert set(KafkaProducer.DEFAULT_CONFIG) < set(SafeProducer.DEFAULT_CONFIG)
    assert SafeProducer.DEFAULT_CONFIG["linger_ms"] == 5
    assert tuple(SafeProducer.DEPRECATED_CONFIGS) == tuple(KafkaProducer.DEPRECATED_CONFIGS)
    producer = producers(harness.dead_address())
    for name, arguments in (
        ("init_transactions", ()),
        ("begin_transaction", ()),
        ("send_offsets_to_transaction", ({}, "group")),
        ("commit_transaction", ()),
        ("abort_transaction", ()),
    ):
        theirs = inspect.signature(getattr(KafkaProducer, name)).parameters
        assert list(inspect.signature(getattr(SafeProducer, name)).parameters) == list(theirs)
        with pytest.raises(harness.kafka_errors.IllegalStateError, match="non-transactional producer"):
            getattr(producer, name)(*arguments)
    assert set(producer.metrics()["producer-metrics"]) == {
        *("record-send-rate", "record-error-rate", "records-per-request-avg"),
    }


class OldSerializer(kafka.serializer.Serializer):
    """As programs for kafka-python 2 have them."""

    def serialize(self, topic, value):
        return f"{topic} {value}".encode()


class OldPartitioner:
    def partition(self, topic, key, cluster):
        if cluster.partitions_for_topic(topic) is None or cluster.partitions_for_topic("unknown") is not None:
            raise AssertionError
        return len(key) % len(cluster.available_partitions_for_topic(topic))


def test_serializers_and_partitioners_of_kafka_python_2(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 4)
    with pytest.warns(DeprecationWarning, match="does not implement") as warned:
        producer = producers(
            some_kafka.bootstrap_servers, value_serializer=OldSerializer(), partitioner=OldPartitioner()
        )
    assert sorted(str(warning.message) for warning in warned) == [
        "partitioner does not implement kafka.partitioner.Partitioner",
        "serializer does not implement serialize(topic, headers, data)",
    ]
    assert {warning.filename for warning in warned} == {harness.__file__}
    for size in (1, 2, 7):
        # Also the first, which is placed when the topic becomes known.
        assert producer.send(topic, size, b"k" * size).get(60).partition == size % 4
    values = sorted(
        r.value for part in harness.read_log(some_kafka.bootstrap_servers, topic).values() for r in part
    )
    assert values == [f"{topic} {size}".encode() for size in (1, 2, 7)]


def test_a_warning_that_is_an_error_leaves_no_spool(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        with pytest.raises(DeprecationWarning, match="partitioner"):
            SafeProducer(
                bootstrap_servers=harness.dead_address(),
                spool_dir=tmp_path / "spool",
                partitioner=OldPartitioner(),
            )
    assert not (tmp_path / "spool").exists()


def test_what_a_partitioner_may_ask(fake_kafka, producers):
    """Of kafka-python's ClusterMetadata, as far as it is about partitions: the same answers."""
    topic = harness.new_topic(fake_kafka, 6)
    asked: dict = {}

    class Asking(Partitioner):
        def __init__(self, name):
            self.name = name

        def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
            some = TopicPartition(topic, 2)
            asked[self.name] = {
                "topics": topic in cluster.topics(),
                "partitions": cluster.partitions_for_topic(topic),
                "available": cluster.available_partitions_for_topic(topic),
                "leader": cluster.leader_for_partition(some),
                "epoch": cluster.leader_epoch_for_partition(some),
                "led": sorted(cluster.partitions_for_broker(cluster.leader_for_partition(some))),
                "brokers": sorted(broker.node_id for broker in cluster.brokers()),
                "port": cluster.broker_metadata(cluster.leader_for_partition(some)).port,
                "nothing": (
                    cluster.partitions_for_topic("no"),
                    cluster.available_partitions_for_topic("no"),
                    cluster.leader_for_partition(TopicPartition("no", 0)),
                    cluster.leader_for_partition(TopicPartition(topic, 77)),
                    cluster.leader_epoch_for_partition(TopicPartition("no", 0)),
                    cluster.broker_metadata(77),
                ),
            }
            return 0

    plain = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers, partitioner=Asking("theirs"))
    safe = producers(fake_kafka.bootstrap_servers, partitioner=Asking("ours"))
    plain.send(topic, b"x").get(60)
    safe.send(topic, b"x", partition=1).get(60)
    safe.send(topic, b"x").get(60)
    plain.close()
    assert asked["ours"] == asked["theirs"]


def test_null_is_not_sent_for_nothing(producers):
    producer = producers(harness.dead_address(), value_serializer=lambda value: json.dumps(value).encode())
    with pytest.raises(ValueError, match="Need at least one"):
        producer.send("topic", None)
    producer.send("topic", None, b"key")


def test_every_option_of_kafka_producer_is_known(producers):
    options = dict(KafkaProducer.DEFAULT_CONFIG)
    # The defaults themselves are accepted, all of them.
    producers(harness.dead_address(), **{k: v for k, v in options.items() if k != "bootstrap_servers"})


@pytest.mark.also_real
def test_the_same_records_in_the_same_places(some_kafka, producers):
    both = Both(some_kafka, producers)
    rnd = random.Random(7)
    stamp = 1_700_000_000_000
    for number in range(200):
        key = rnd.choice([b"", b"a", b"key", rnd.randbytes(rnd.randint(1, 40))])
        value = rnd.choice([None, b"", b"v", rnd.randbytes(rnd.randint(1, 400))])
        headers = rnd.choice([None, [], [("h", b"1")], [("trace", b"x"), ("trace", b""), ("ü", b"\xff")]])
        partition = rnd.choice([None, None, 3])
        theirs, ours = both.send(value, key, headers, partition, stamp + number)
        assert ours == theirs._replace(
            topic=ours.topic, topic_partition=TopicPartition(ours.topic, ours.partition)
        ), number
    theirs, ours = both.logs()
    for partition, records in theirs.items():
        assert [(r.key, r.value, r.headers, r.timestamp, r.offset) for r in ours[partition]] == [
            (r.key, r.value, r.headers, r.timestamp, r.offset) for r in records
        ]


def test_keyword_arguments_and_the_time_of_sending(some_kafka, producers):
    both = Both(some_kafka, producers, 1)
    before = int(time.time() * 1000)
    theirs, ours = both.send(value=b"v", key=b"k", headers=[("h", b"x")], partition=0, timestamp_ms=None)
    after = int(time.time() * 1000)
    assert before <= ours.timestamp <= after
    assert before <= theirs.timestamp <= after


@pytest.mark.parametrize("none", [(), {}, ""])
def test_empty_headers_that_are_no_list_are_no_headers(some_kafka, producers, none):
    """KafkaProducer takes only a list, and both take only a list if it is not empty."""
    both = Both(some_kafka, producers, 1)
    with pytest.raises(TypeError):
        both.plain.send(both.topics[0], b"v", headers=none)
    both.safe.send(both.topics[1], b"v", headers=none).get(60)
    for producer, topic in zip((both.plain, both.safe), both.topics, strict=True):
        with pytest.raises(TypeError):
            producer.send(topic, b"v", headers=(("h", b"1"),))
    assert [record.headers for record in both.logs()[1][0]] == [[]]


@pytest.mark.also_real
def test_broker_time(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 1, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    metadata = (
        producers(some_kafka.bootstrap_servers).send(topic, b"v", timestamp_ms=1_700_000_000_000).get(60)
    )
    assert metadata.timestamp >= before
    assert harness.read_log(some_kafka.bootstrap_servers, topic)[0][0].timestamp == metadata.timestamp


class ByLength(Partitioner):
    """Wants the key as the user gave it."""

    def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
        assert topic in cluster.topics()
        return (len(key) + len(serialized_value)) % len(cluster.partitions_for_topic(topic))


class Text(kafka.serializer.Serializer):
    def serialize(self, topic, headers, data):
        return None if data is None else data.encode()


class Json(kafka.serializer.Serializer):
    def serialize(self, topic, headers, data):
        return None if data is None else json.dumps([topic[:1], data]).encode()


@pytest.mark.parametrize(
    "options",
    [
        {"partitioner": ByLength(), "key_serializer": Text(), "value_serializer": Json()},
        {"partitioner": StickyPartitioner(), "key_serializer": Text(), "value_serializer": Json()},
    ],
)
def test_serializers_and_partitioners_of_the_user(some_kafka, producers, options):
    both = Both(some_kafka, producers, **options)
    # The first one comes before the topic is known.
    both.send({"n": -1}, "first")
    for number in range(60):
        theirs, ours = both.send({"n": number}, "k" * (number % 11))
        assert ours.partition == theirs.partition, number
    theirs, ours = both.logs()
    assert [[(r.key, r.value) for r in ours[p]] for p in ours] == [
        [(r.key, r.value) for r in theirs[p]] for p in theirs
    ]


def test_a_partitioner_that_fails(some_kafka, producers):
    class Broken(Partitioner):
        def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
            if key == b"bad":
                raise LookupError("no place for it")
            return 99 if key == b"far" else 0

    topic = harness.new_topic(some_kafka, 2)
    producer = producers(some_kafka.bootstrap_servers, partitioner=Broken())
    # Not asked before the topic is known; then nobody is there to be told, and no record may be lost by it.
    harness.until(lambda: producer.send(topic, b"0", b"bad").get(60).offset >= 0)
    with pytest.raises(LookupError, match="no place for it"):
        producer.send(topic, b"x", b"bad")
    with pytest.raises(ValueError, match=r"the partitioner's choice for topic .* not 99"):
        producer.send(topic, b"x", b"far")
    assert producer.send(topic, b"1", b"good").get(60).partition == 0


def test_records_without_keys_are_spread(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 4)
    producer = producers(some_kafka.bootstrap_servers, linger_ms=0)
    used = {producer.send(topic, b"x").get(60).partition for _ in range(12)}
    assert used == {0, 1, 2, 3}


@pytest.mark.parametrize("known", [True, False], ids=["topic-known", "topic-unknown"])
@pytest.mark.parametrize("keyed", [False, True], ids=["no-keys", "some-keys"])
def test_records_without_keys_avoid_partitions_without_a_leader(producers, known, keyed):
    leaders = [1, 2, 2, 1, 2, 1]
    with FakeCluster(brokers=2) as fake:
        fake.create_topic("t", assignments={number: [node] for number, node in enumerate(leaders)})
        plain = KafkaProducer(bootstrap_servers=fake.bootstrap_servers, metadata_max_age_ms=200)
        safe = producers(fake.bootstrap_servers, linger_ms=0, metadata_max_age_ms=200)
        plain.partitions_for("t")
        if known:
            safe.partitions_for("t")
        fake.kill(1)
        harness.until(lambda: len(plain._metadata.available_partitions_for_topic("t")) == 3)
        if known:
            harness.until(
                lambda: {at.leader for at in safe.parts.cluster.topic("t").partitions.values()} == {-1, 2}
            )
        used = []
        for producer in (plain, safe):
            metadata = []
            for _ in range(30):
                if keyed:
                    producer.send("t", b"x", b"k6")  # of partition 1
                metadata.append(producer.send("t", b"x").get(10))
            used.append({at.partition for at in metadata})
        assert used == [{1, 2, 4}, {1, 2, 4}]
        fake.start(1)
        plain.close()


def test_looking_at_the_cluster(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 4)
    producer = producers(some_kafka.bootstrap_servers)
    assert producer.partitions_for(topic) == {0, 1, 2, 3}
    producer.parts.partitioning._counts.pop(
        topic, None
    )  # as long as records wait for their partition to be chosen
    with pytest.raises(ValueError, match=r"Unrecognized partition 4 for topic .*: it has 4"):
        producer.send(topic, b"x", partition=4)
    assert producer.bootstrap_connected()
    producer.send(topic, b"x", b"k").get(60)
    values = producer.metrics()["kafkasafe"]
    assert (values["records_accepted"], values["records_committed"], values["unfinished_batches"]) == (
        1,
        1,
        0,
    )
    assert producer.metrics(raw=True)["records_committed"] == 1
    with pytest.raises(ValueError, match=r"Unrecognized partition 4 for topic .*: it has 4"):
        producer.send(topic, b"x", partition=4)
    away = producers(harness.dead_address(), max_block_ms=200)
    assert not away.bootstrap_connected()
    with pytest.raises(
        harness.kafka_errors.KafkaTimeoutError, match=r"Failed to update metadata after 0\.2 secs"
    ):
        away.partitions_for(topic)


@pytest.mark.also_real
def test_a_topic_that_the_broker_makes_on_demand(some_kafka, producers):
    topic = f"made-{random.SystemRandom().getrandbits(40):010x}"
    producer = producers(some_kafka.bootstrap_servers)
    futures = [producer.send(topic, b"%d" % number) for number in range(20)]
    assert [future.get(60).offset for future in futures] == list(range(20))


# -- futures -----------------------------------------------------------------------------------------------------------


def test_callbacks(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 1, config={"max.message.bytes": 5000})
    producer = producers(some_kafka.bootstrap_servers)
    told: list = []
    both = threading.Barrier(2, timeout=30)

    def called(*args, **kwargs):
        told.append((args, kwargs, threading.current_thread()))

    good = producer.send(topic, b"x")
    bad = producer.send(topic, b"x" * 20_000)
    assert good.add_callback(called, 1, two=2) is good
    assert good.add_errback(called, "never") is good
    bad.add_callback(called, "never").add_errback(called, 3, four=4)
    # A callback may block, or send, without stopping delivery; what it raises is only logged.
    good.add_both(lambda _: both.wait())
    producer.send(topic, b"y").add_callback(lambda _: told.append(producer.send(topic, b"z").get(60)))
    both.wait()
    producer.flush(60)
    harness.until(lambda: len(told) == 3)
    metadata = good.get(0)
    assert ((1, metadata), {"two": 2}) in [entry[:2] for entry in told]
    assert ((3, bad.exception), {"four": 4}) in [entry[:2] for entry in told]
    # Late ones are called at once.
    late: list = []
    good.add_callback(late.append)
    bad.add_errback(late.append)
    assert late == [metadata, bad.exception]
    good.add_callback(lambda _: 1 / 0)
    assert (good.succeeded(), good.failed(), good.is_done, good.retriable()) == (True, False, True, False)
    assert (bad.succeeded(), bad.failed(), bad.value) == (False, True, None)
    assert good.value == metadata
    assert good.exception is None


@pytest.mark.also_real
def test_durable_comes_before_delivered(some_broker, producers):
    topic = harness.new_topic(some_broker.cluster, 1)
    some_broker.proxy.refuse()
    producer = producers(some_broker.servers)
    future = producer.send(topic, b"%012d" % 0)
    assert future.durable(60) is future
    assert not future.is_done
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError, match=r"Timeout after waiting for 0\.2 secs"):
        future.get(0.2)
    assert "pending, durable" in repr(future)
    producer.send(topic, b"%012d" % 1)
    producer.durable(60)
    with pytest.raises(
        harness.kafka_errors.KafkaTimeoutError, match="they are in the spool and will be delivered"
    ):
        producer.flush(0.2)
    some_broker.proxy.restore()
    assert future.get(60).offset == 0
    producer.flush(60)
    assert producer.metrics()["kafkasafe"]["unfinished_batches"] == 0


@pytest.mark.also_real
def test_delivery_timeout_fails_the_future_and_still_delivers(some_broker, producers):
    topic = harness.new_topic(some_broker.cluster, 1)
    some_broker.proxy.refuse()
    producer = producers(some_broker.servers, delivery_timeout_ms=500, request_timeout_ms=400)
    errors: list = []
    future = harness.send(producer, topic, 1).add_errback(errors.append)
    with pytest.raises(DeliveryTimeoutError, match=r"safe in the spool .*do not send it again"):
        future.get(60)
    # A program that sends again what is retriable would deliver it twice.
    assert not isinstance(future.exception, harness.kafka_errors.RetriableError)
    assert not future.exception.retriable
    producer.flush(1)  # it has its fate
    harness.until(lambda: errors == [future.exception])
    some_broker.proxy.restore()
    harness.until(lambda: some_broker.end_offset(topic) == 1, what="the record to be delivered")
    assert future.exception is errors[0]
    producer.close()
    harness.audit(harness.read_log(some_broker.servers, topic), [1])


# -- what it adds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spool_sync", ["group", "each", "os"])
@pytest.mark.parametrize("acks", ["all", 1])
def test_spool_sync_modes(some_kafka, producers, spool_sync, acks):
    topic = harness.new_topic(some_kafka, 2)
    with producers(
        some_kafka.bootstrap_servers, spool_sync=spool_sync, acks=acks, batch_size=2000
    ) as producer:
        for number in range(300):
            future = harness.send(producer, topic, number)
            if number % 50 == 49:
                future.durable(60)
    harness.audit(harness.read_log(some_kafka.bootstrap_servers, topic), range(300))


def test_on_error_touches_the_disk_only_when_the_cluster_is_silent(some_broker, producers):
    topic = harness.new_topic(some_broker.cluster, 2)
    producer = producers(some_broker.servers, spool="on_error", spool_after_ms=3000, request_timeout_ms=2000)

    def on_disk() -> int:
        return inspect_lane(Path(producer.spool_dir) / producer.lane, files=OsFiles()).records

    for number in range(100):
        harness.send(producer, topic, number).get(60)
    assert on_disk() == 0
    some_broker.proxy.stall()
    futures = [harness.send(producer, topic, number) for number in range(100, 150)]
    # After `spool_after_ms` by itself, and before that on demand.
    harness.until(lambda: on_disk() == 50, 120, "the records to be on disk")
    assert not any(future.is_done for future in futures)
    futures += [harness.send(producer, topic, number) for number in range(150, 160)]
    producer.durable(60)
    assert on_disk() == 60
    # At close, too.
    harness.send(producer, topic, 160)
    producer.close(timeout=0)
    assert on_disk() == 61
    some_broker.proxy.restore()
    with producers(some_broker.servers, spool="on_error") as again:
        again.flush(60)
    harness.audit(harness.read_log(some_broker.servers, topic), range(161))


def test_linger(some_kafka, producers):
    """Records that come together go together; nobody who waits for one waits for company."""
    topic = harness.new_topic(some_kafka, 1)
    producer = producers(some_kafka.bootstrap_servers, linger_ms=60_000)
    began = time.monotonic()
    futures = [harness.send(producer, topic, number) for number in range(100)]
    assert futures[0].get(60).offset == 0
    harness.send(producer, topic, 100)
    producer.flush(60)
    harness.send(producer, topic, 101).durable(60)
    assert time.monotonic() - began < 50
    assert producer.metrics()["kafkasafe"]["batches_sent"] <= 3


def deleted_in_doubt(broker, zygote, directory, topic) -> Path:
    """A spool of a killed producer: its records were appended without an answer, and then deleted."""
    go, ready = directory / "go", directory / "ready"
    directory.mkdir(exist_ok=True)
    life = zygote.burst(
        directory, broker.servers, topic, ready, [0, 6], go=go, first=1, options={"linger_ms": 1000}
    )
    life.until(Path(f"{ready}.first"))
    broker.proxy.drop_responses()
    go.touch()
    life.until(ready)
    harness.until(lambda: broker.end_offset(topic) == 6, 120)
    life.kill()
    with broker.cluster.admin() as admin:
        admin.delete_records({TopicPartition(topic, 0): 6})
    return directory / "spool"


def test_undecidable_records_wait_for_a_decision(broker, zygote, producers, tmp_path):
    """The log was cut where the answer stood: nobody can know, so nobody guesses."""
    for resend in (True, False):
        topic = harness.new_topic(broker.cluster, 1)
        spool = deleted_in_doubt(broker, zygote, tmp_path / str(resend), topic)
        # The broker forgets the producer, too.
        broker.cluster.expire_producers([topic])
        broker.proxy.restore()
        producer = producers(broker.servers, spool_dir=spool, request_timeout_ms=2000)
        with pytest.raises(
            UndecidableError,
            match=r"whether a batch of 5 records is in the log cannot be known.*safe in lane",
        ):
            producer.flush(60)
        with pytest.raises(UndecidableError, match="resolve_undecidable"):
            harness.send(producer, topic, 6)
        producer.resolve_undecidable(resend=resend)
        harness.until(lambda producer=producer: not producer._pump.ledger.errors.undecidable, 120)
        harness.send(producer, topic, 6).get(60)
        producer.close()
        numbers = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
        assert numbers == ([1, 2, 3, 4, 5, 6] if resend else [6])


def test_what_the_brokers_remember_is_a_proof_at_any_age(broker, zygote, producers, tmp_path):
    """With short retention each restart after six hours parked what the brokers still knew to be there."""
    topic = harness.new_topic(broker.cluster, 1)
    spool = deleted_in_doubt(broker, zygote, tmp_path / "life", topic)
    broker.proxy.restore()
    # Believed to be old after 10 ms: the brokers' own limit is a day.
    producer = producers(
        broker.servers, spool_dir=spool, request_timeout_ms=2000, producer_id_expiration_ms=40
    )
    producer.flush(60)
    harness.send(producer, topic, 6).get(60)
    producer.close()
    assert harness.numbers_of(harness.read_log(broker.servers, topic)[0]) == [6]


class Turning(StickyPartitioner):
    """Keeps what it is asked and told about records without keys."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
        chosen = super().partition(topic, key, serialized_key, value, serialized_value, cluster)
        if key is None:
            self.calls.append(("partition", chosen))
        return chosen

    def on_new_batch(self, topic, cluster, prev_partition):
        self.calls.append(("on_new_batch", prev_partition))
        super().on_new_batch(topic, cluster, prev_partition)


@pytest.mark.also_real
def test_a_partitioner_is_told_of_a_new_batch(some_kafka, producers):
    """Without the call, a class derived from StickyPartitioner put all records without keys into one partition."""
    topics = harness.new_topic(some_kafka, 4), harness.new_topic(some_kafka, 4)
    partitioners = Turning(), Turning()
    plain = KafkaProducer(bootstrap_servers=some_kafka.bootstrap_servers, partitioner=partitioners[0])
    safe = producers(some_kafka.bootstrap_servers, partitioner=partitioners[1])
    for producer, topic, partitioner in zip((plain, safe), topics, partitioners, strict=True):
        producer.send(topic, b"first", partition=0).get(60)  # now the topic is known
        placed = []
        for _ in range(3):
            placed.append(producer.send(topic, b"x").get(60).partition)
            producer.send(topic, b"x", b"key").get(60)
        kinds = [kind for kind, _ in partitioner.calls]
        assert kinds == ["partition", "on_new_batch", "partition"] * 3
        for before, told, after in zip(*[iter(partitioner.calls)] * 3, strict=True):
            assert before[1] == told[1] != after[1]
        assert placed == [chosen for _, chosen in partitioner.calls[2::3]]
    plain.close()


def test_records_of_one_batch_stick_to_a_partition(some_kafka, producers):
    topic, partitioner = harness.new_topic(some_kafka, 4), Turning()
    producer = producers(some_kafka.bootstrap_servers, partitioner=partitioner, linger_ms=60_000)
    producer.send(topic, b"first", partition=0).get(60)
    futures = [producer.send(topic, b"%d" % number) for number in range(10)]
    producer.flush(60)
    assert len({future.get(0).partition for future in futures}) == 1
    assert [kind for kind, _ in partitioner.calls].count("on_new_batch") == 1
    producer.send(topic, b"last")
    assert [kind for kind, _ in partitioner.calls].count("on_new_batch") == 2


class Bytes(bytes):
    pass


class Number(int):
    pass


class Duck:
    """A serializer that is not derived from kafka-python's."""

    def serialize(self, topic, headers, data):
        return data


class Null(kafka.serializer.Serializer):
    def serialize(self, topic, headers, data):
        return None


@pytest.mark.filterwarnings("ignore:value_serializer does not implement:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:serializer does not implement:DeprecationWarning")
@pytest.mark.parametrize(
    ("options", "record"),
    [
        ({}, {"value": Bytes(b"x")}),
        ({}, {"value": memoryview(b"abcd")[::2]}),
        ({}, {"value": b"x", "timestamp_ms": Number(5)}),
        ({"value_serializer": Duck()}, {"value": b"x"}),
    ],
    ids=["bytes", "memoryview", "timestamp", "serializer"],
)
def test_what_only_we_accept(some_kafka, producers, options, record):
    """docs/differences.md says so."""
    both = Both(some_kafka, producers, 1, **options)
    with pytest.raises(TypeError):
        both.plain.send(both.topics[0], **record)
    assert both.safe.send(both.topics[1], **record).get(60).offset == 0


@pytest.mark.parametrize(
    ("options", "record"),
    [
        ({}, {"value": b"x", "timestamp_ms": -5}),
        ({"value_serializer": Null()}, {"value": b"x"}),
    ],
    ids=["timestamp", "null"],
)
def test_what_only_kafka_producer_sends(some_kafka, producers, options, record):
    """docs/differences.md says so."""
    both = Both(some_kafka, producers, 1, **options)
    assert both.plain.send(both.topics[0], **record).get(60).offset == 0
    with pytest.raises(ValueError):
        both.safe.send(both.topics[1], **record)


def test_close_with_a_timeout_closes_only_ours(fake_kafka, producers):
    """docs/differences.md says so."""
    both = Both(fake_kafka, producers, 1)
    both.send(b"known")
    fake_kafka.stall()
    both.plain.send(both.topics[0], b"x")
    both.safe.send(both.topics[1], b"x")
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError):
        both.plain.close(timeout=0.2)
    both.safe.close(timeout=0.2)
    with pytest.raises(harness.kafka_errors.IllegalStateError):
        both.safe.send(both.topics[1], b"x")
    both.plain.send(both.topics[0], b"y")
    fake_kafka.restore()
    both.plain.close()


def test_topics_are_not_created_unless_asked(fake_kafka, producers):
    """docs/differences.md says so."""
    options = {"allow_auto_create_topics": False, "max_block_ms": 1500}
    plain = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers, **options)
    safe = producers(fake_kafka.bootstrap_servers, **options)
    assert plain.partitions_for("theirs")
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError):
        safe.partitions_for("ours")
    future = safe.send("ours", b"x")
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError):
        future.get(1)
    fake_kafka.create_topic("ours")
    assert future.get(60).offset == 0
    plain.close()
