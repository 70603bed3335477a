"""What is wrong is told: what is safe, what to do. And nothing accepted before is lost by it."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import harness
import lives
import pytest
from kafka.partitioner import Partitioner

import kafkasafe
from kafkasafe import SafeConsumer, SafeProducer, config
from kafkasafe.errors import (
    ConfigError,
    KafkaSafeError,
    LaneBusyError,
    ProducerClosedError,
    SpoolCorruptError,
    SpoolError,
    SpoolFormatError,
)
from kafkasafe.record.partition import partition_for_key

NOWHERE = harness.dead_address()


def records_wait(producers, count: int = 30, **options) -> Path:
    """A spool with records that an earlier life could not deliver; returns its only segment."""
    with producers(NOWHERE, **options) as producer:
        for number in range(count):
            # Each a batch of its own.
            harness.send(producer, "waiting", number).durable(60)
        producer.close(timeout=0)
    (segment,) = (producers.spool / "lane-000").glob("*.log")
    return segment


def waiting_in(producer: SafeProducer) -> int:
    return producer.metrics()["kafkasafe"]["unfinished_batches"]


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bootstrap_server": NOWHERE}, "did you mean 'bootstrap_servers'"),
        ({"lingerms": 5}, "did you mean 'linger_ms'"),
        ({"spool_directory": "x"}, "did you mean 'spool_dir'"),
        ({"quite_something_else": 1}, "Unknown option 'quite_something_else'"),
        ({"acks": 0}, "acks=0 requests no acknowledgement"),
        ({"acks": "some"}, "acks must be 'all', -1 or 1, not 'some'"),
        ({"compression_type": "brotli"}, "compression_type must be one of .*zstd, not 'brotli'"),
        ({"spool": "on-error"}, "did you mean 'on_error'"),
        ({"spool_sync": "always"}, "spool_sync must be one of 'group', 'each', 'os'"),
        ({"linger_ms": -1}, "linger_ms must be a number of at least 0, not -1"),
        ({"batch_size": "many"}, "batch_size: 'many' is not a size"),
        ({"spool_max_bytes": 1000}, "spool_max_bytes must be a number of at least"),
        ({"spool_segment_bytes": 900 * 1024 * 1024}, "at most a quarter of spool_max_bytes"),
        ({"max_request_size": 500_000_000}, "max_request_size=500000000 .*set spool_max_bytes="),
        ({"transactional_id": ""}, "transactional_id must be a non-empty string"),
        ({"enable_idempotence": False}, "enable_idempotence=False"),
        ({"on_undecidable": "ask"}, "on_undecidable must be one of"),
        # kafka-python would connect without encryption.
        ({"security_protocol": "TLS"}, "security_protocol must be one of PLAINTEXT, SSL"),
        ({"bootstrap_servers": None}, "bootstrap_servers must be 'host:port' or a list"),
        ({"bootstrap_servers": "broker:port"}, "'broker:port' is not host:port"),
        ({"api_version": (0, 10, 2)}, r"api_version=\(0, 10, 2\): producing needs brokers 0.11 or later"),
        ({"api_version": "0.10"}, "api_version='0.10': producing needs brokers 0.11 or later"),
        # As other clients name their partitioners; a str has a method partition().
        ({"partitioner": "murmur2"}, "partitioner must have a method partition.*, not 'murmur2'"),
        ({"value_serializer": 5}, "value_serializer must be a function or have a method serialize.*, not 5"),
        # Text out of a file or an environment variable: "false" was as good as True.
        (
            {"restore_recreated_topics": "false"},
            "restore_recreated_topics must be True or False, not 'false'",
        ),
        ({"prometheus": "0"}, "prometheus must be True or False, not '0'"),
        ({"retain_acked_ms": 10**400}, "retain_acked_ms is too large .* means no end"),
        # An environment variable without a value: the spool was in the working directory.
        ({"spool_dir": ""}, r"spool_dir is empty"),
        ({"spool_dir": "a\0b"}, r"spool_dir: .*a\\x00b' cannot be a file name: it has a null"),
        # As a path, it is the current directory.
    ],
)
def test_an_option_that_cannot_work_is_named(tmp_path, options, says):
    with pytest.raises(ConfigError, match=says) as caught:
        SafeProducer(**{"bootstrap_servers": NOWHERE, "spool_dir": tmp_path / "spool", **options})
    # Whoever catches kafka-python's errors, or ValueError, catches it. And nothing was opened.
    assert isinstance(caught.value, harness.kafka_errors.KafkaError)
    assert isinstance(caught.value, ValueError)
    assert not (tmp_path / "spool").exists()


# -- the spool directory -----------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_written(zygote, producers, tmp_path):
    segment = records_wait(producers)
    before = segment.read_bytes()
    if Path("/proc/self").stat().st_uid:
        producers.spool.chmod(0o500)
    result = Path("/var/tmp") / f"kafkasafe-test-{tmp_path.name}-{id(tmp_path)}"
    result.touch()
    result.chmod(0o666)
    try:
        log = tmp_path / "lives.log"
        # A directory of somebody else's: root's, or closed by its mode where this is not root.
        life = zygote.fork(lives.unwritable, log, spool=str(producers.spool), result=str(result))
        assert life.wait() == 0, life.tail()
        text = result.read_text()
    finally:
        result.unlink()
        producers.spool.chmod(0o700)
    assert re.match(r"SpoolError: .*Permission denied.* must be writable by this user", text), text
    assert "spool_dir= or KAFKASAFE_SPOOL_DIR" in text
    assert "none was lost" in text
    assert segment.read_bytes() == before


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        SpoolError,
        match=r"File exists.* The path, or a part of it, is a file; .* No record was accepted, none was lost",
    ):
        SafeProducer(bootstrap_servers=NOWHERE, spool_dir=tmp_path / "file" / "spool")


def test_a_directory_of_something_else(tmp_path):
    (tmp_path / "thesis.txt").write_text("the only copy")
    with pytest.raises(
        SpoolFormatError, match=r"not a spool directory \(it holds 'thesis.txt'\).* Nothing was changed"
    ):
        SafeProducer(bootstrap_servers=NOWHERE, spool_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_directory_of_a_newer_kafkasafe(producers):
    segment = records_wait(producers)
    before = segment.read_bytes()
    (producers.spool / "FORMAT").write_text("kafkasafe-spool 2\n")
    with pytest.raises(
        SpoolFormatError, match=r"has spool format 2, .* upgrade kafkasafe\. Nothing was changed"
    ):
        producers(NOWHERE)
    assert segment.read_bytes() == before


def test_a_lane_of_another_live_producer(producers):
    import os

    first = producers(NOWHERE, spool_lane=3)
    with pytest.raises(
        LaneBusyError, match=rf"Lane 3 of .* belongs to process {os.getpid()} .*spool_lane"
    ) as caught:
        producers(NOWHERE, spool_lane=3)
    assert caught.value.pid == os.getpid()
    # Whoever does not insist gets another one.
    assert producers(NOWHERE).lane == "lane-000"
    harness.send(first, "topic", 1).durable(60)


def damage(segment: Path, which: int = 10) -> None:
    """Turns one bit in the records of a batch with good ones behind it."""
    content = bytearray(segment.read_bytes())
    at = content.index(harness.record_value(which))
    content[at + 3] ^= 4
    segment.write_bytes(content)


def test_a_damaged_segment(some_kafka, producers):
    segment = records_wait(producers)
    damage(segment)
    before = segment.read_bytes()
    with pytest.raises(SpoolCorruptError) as caught:
        producers(some_kafka.bootstrap_servers)
    text = str(caught.value)
    assert segment.name in text
    assert "Nothing was deleted or changed. The rest of the lane is safe" in text
    assert "on_corrupt='quarantine'" in text
    assert len(caught.value.damage) == 1
    assert segment.read_bytes() == before
    # The lane was let go: it can be repaired. And what is not damaged is delivered, the damaged copied aside.
    some_kafka.create_topic("waiting", 1)
    try:
        with producers(some_kafka.bootstrap_servers, on_corrupt="quarantine") as producer:
            producer.flush(60)
        numbers = harness.numbers_of(harness.read_log(some_kafka.bootstrap_servers, "waiting")[0])
    finally:
        some_kafka.delete_topic("waiting")
    assert numbers == [number for number in range(30) if number != 10]
    (aside,) = (producers.spool / "lane-000" / "quarantine").iterdir()
    assert harness.record_value(10)[4:] in aside.read_bytes()


def test_a_torn_tail_is_no_damage(producers):
    """What a crash leaves at the end was promised to nobody."""
    segment = records_wait(producers)
    content = segment.read_bytes()
    segment.write_bytes(content + content[:70])
    producer = producers(NOWHERE)
    assert waiting_in(producer) == 30


# -- records -----------------------------------------------------------------------------------------------------------


class Refused:
    """A producer with records accepted before; afterwards they are all there still, and more are taken."""

    def __init__(self, producers) -> None:
        self.producer = producers(NOWHERE)
        self.futures = [harness.send(self.producer, "topic", number) for number in range(10)]

    def __enter__(self) -> SafeProducer:
        return self.producer

    def __exit__(self, kind, *_):
        if kind is None:
            self.futures.append(harness.send(self.producer, "topic", 10))
            self.producer.durable(60)
            assert all(future.durable(0) for future in self.futures)
            assert self.producer.metrics()["kafkasafe"]["records_accepted"] == 11


@pytest.fixture
def refused(producers):
    return Refused(producers)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"value": "text"}, "serialized value: <class 'str'>; pass bytes, or set value_serializer"),
        ({"value": 7}, "serialized value: <class 'int'>; pass bytes, or set value_serializer"),
        ({"value": b"x", "key": "text"}, "serialized key: <class 'str'>; pass bytes, or set key_serializer"),
        (
            {"value": b"x", "headers": {"a": b"1"}},
            r"headers must be a list of \(str, bytes\) tuples, not {'a': b'1'}",
        ),
        ({"value": b"x", "headers": 5}, r"headers must be a list of \(str, bytes\) tuples, not 5"),
        # A partition, in the place where confluent-kafka's `produce` has it.
        ({"value": b"x", "headers": 0}, r"headers must be a list of \(str, bytes\) tuples, not 0"),
        ({"value": b"x", "headers": False}, r"headers must be a list of \(str, bytes\) tuples, not False"),
        (
            {"value": b"x", "headers": [("a", b"1"), 5]},
            r"headers\[1\] must be a tuple \(str, bytes\) or \(str, None\), not 5",
        ),
        ({"value": b"x", "headers": [("a", "text")]}, r"headers\[0\] .* not \('a', 'text'\)"),
        ({"value": b"x", "headers": [(1, b"2")]}, r"headers\[0\]"),
        ({"value": b"x", "headers": [("a", b"1", b"2")]}, r"headers\[0\]"),
        ({"value": b"x", "timestamp_ms": "now"}, "timestamp_ms"),
        ({"value": b"x", "partition": "0"}, "partition"),
    ],
)
def test_a_record_of_the_wrong_types(refused, record, says):
    with refused as producer, pytest.raises(TypeError, match=says):
        producer.send("topic", **record)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({}, "Need at least one: key or value"),
        ({"value": b"x", "partition": -1}, "partition must be >= 0"),
        ({"value": b"x", "timestamp_ms": -5}, "timestamp_ms"),
        ({"value": b"x", "timestamp_ms": 2**63}, "timestamp_ms"),
        ({"value": b"x", "partition": 2**31}, "partition"),
    ],
)
def test_a_record_that_makes_no_sense(refused, record, says):
    with refused as producer, pytest.raises(ValueError, match=says):
        producer.send("topic", **record)


@pytest.mark.parametrize("resend", ["no", 0, None])
def test_a_decision_that_is_none(refused, resend):
    with (
        refused as producer,
        pytest.raises(TypeError, match=r"resend must be True or False.*nothing was decided"),
    ):
        producer.resolve_undecidable(resend=resend)


@pytest.mark.parametrize("topic", ["", ".", "..", "a b", "umläut", "x" * 250, "a/b", "new\nline"])
def test_a_topic_that_cannot_exist(refused, topic):
    with refused as producer, pytest.raises(ValueError, match="cannot exist: a name has 1 to 249 characters"):
        producer.send(topic, b"x")


@pytest.mark.parametrize("topic", [None, 7, b"bytes"])
def test_a_topic_that_is_no_text(refused, topic):
    with refused as producer, pytest.raises(TypeError, match="topic must be a string"):
        producer.send(topic, b"x")


@pytest.mark.parametrize(
    ("topic", "error"), [("", ValueError), ("a/b", ValueError), (None, TypeError), (7, TypeError)]
)
def test_partitions_of_what_is_no_topic(refused, topic, error):
    """It asked the cluster for a minute, and then blamed the metadata."""
    with refused as producer, pytest.raises(error, match=r"cannot exist|must be a string"):
        producer.partitions_for(topic)


def test_a_record_that_is_too_large(producers):
    producer = producers(NOWHERE, max_request_size=100_000)
    with pytest.raises(
        harness.kafka_errors.MessageSizeTooLargeError,
        match=r"more than max_request_size=100000 .*not accepted",
    ):
        producer.send("topic", b"x" * 100_000)
    # Largest that fits, all of its parts counted; alone, and behind others.
    for size in (99_000, 99_700):
        producer.send("topic", b"x" * size)
        producer.send("topic", b"x", b"k" * (size - 300), headers=[("h" * 10, b"v" * 10)])
    producer.durable(60)
    assert waiting_in(producer) >= 4


class Choice:
    """A partitioner that chooses so."""

    def __init__(self, choose) -> None:
        self.choose = choose

    def partition(self, *_) -> object:
        return self.choose()


def fail() -> int:
    raise LookupError("no such customer")


@pytest.mark.parametrize(
    ("choose", "error", "says"),
    [
        (fail, LookupError, "no such customer"),
        (lambda: 2, ValueError, "the partitioner's choice for topic t must be >= 0 and <= 1, not 2"),
        (lambda: -1, ValueError, "not -1"),
        (lambda: None, TypeError, "the partitioner's choice for topic t must be an int, not NoneType"),
        (lambda: "0", TypeError, "must be an int, not str"),
        (lambda: 1.0, TypeError, "must be an int, not float"),
    ],
)
def test_a_partitioner_that_fails(fake_kafka, producers, choose, error, says, caplog):
    fake_kafka.create_topic("t", 2)
    partitioner = Choice(choose)
    producer = producers(fake_kafka.bootstrap_servers, partitioner=partitioner)
    # Accepted before the topic was known: as KafkaProducer's own partitioner would place it.
    placed = producer.send("t", b"first", b"k").get(60)
    assert placed.partition == partition_for_key(b"k", 2)
    assert "partitioner_failed" in [getattr(record, "event", "") for record in caplog.records]
    with pytest.raises(error, match=says):
        producer.send("t", b"refused", b"k")
    with pytest.raises(error, match=says), producer.batch() as batch:
        batch.send("t", b"refused", b"k")
    assert producer.send("t", b"given", b"k", partition=1).get(60).partition == 1
    partitioner.choose = lambda: 0
    assert producer.send("t", b"chosen", b"k").get(60).partition == 0
    assert sorted(fake_kafka.values("t")) == [b"chosen", b"first", b"given"]


def test_a_header_without_a_value(fake_kafka, producers):
    """As consumers hand it out: what they read can be sent on."""
    fake_kafka.create_topic("t")
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("t", b"x", headers=[("a", None), ("b", b"")]).get(60)
    with producer.batch() as batch:
        batch.send("t", b"x", headers=[("a", None)])
    batch.outcome.get(60)
    found = [each.headers[0] for each in fake_kafka.records("t") if each.headers]
    assert [list(map(tuple, headers)) for headers in found] == [[("a", None), ("b", b"")], [("a", None)]]


def test_a_serializer_that_fails(producers):
    producer = producers(NOWHERE, value_serializer=lambda value: value.encode())
    producer.send("topic", "good").durable(60)
    with pytest.raises(AttributeError):
        producer.send("topic", 7)
    producer.send("topic", "good").durable(60)
    with pytest.raises(ConfigError, match="key_serializer must be a function or have a method"):
        producers(NOWHERE, key_serializer="utf-8")
    # It let go of the lane it had taken, or never took one.
    assert producers(NOWHERE).lane == "lane-001"


# -- the end -----------------------------------------------------------------------------------------------------------


def test_send_after_close(producers):
    producer = producers(NOWHERE)
    future = harness.send(producer, "topic", 0)
    producer.close(timeout=0)
    with pytest.raises(ProducerClosedError, match=r"accepted before close\(\) are delivered or on disk"):
        producer.send("topic", b"x")
    # The open question of the future is answered, and says where the record is.
    with pytest.raises(KafkaSafeError, match=r"it is in the spool.*do not send it again"):
        future.get(1)
    assert future.durable(1) is future
    producer.close()
    producer.flush(1)
    assert waiting_in(producers(NOWHERE)) == 1


def test_closing_twice_and_by_with(producers):
    with producers(NOWHERE) as producer:
        harness.send(producer, "topic", 0)
        producer.close(timeout=0)
    producer.close()


def test_a_directory_that_does_not_survive_a_restart_is_warned_about(tmp_path, monkeypatch, caplog):
    def reasons(mounts: str, path: str) -> str | None:
        (tmp_path / "mounts").write_text(mounts)
        return config.volatile_reason(Path(path))

    real = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, *a, **k: real(
            tmp_path / "mounts" if str(self) == "/proc/self/mounts" else self, *a, **k
        ),
    )
    disk = "/dev/sda / ext4 rw 0 0\n"
    assert reasons(disk, "/srv/spool") is None
    assert "/run is a tmpfs" in (reasons(f"{disk}tmpfs /run tmpfs rw 0 0\n", "/run/spool") or "")
    assert (
        reasons(f"{disk}tmpfs /run tmpfs rw 0 0\n/dev/sdb /run/kept xfs rw 0 0\n", "/run/kept/spool") is None
    )
    assert "cleared at a restart" in (reasons(disk, str(tmp_path)) or "")
    # In a container, without and with a volume.
    layer = "overlay / overlay rw,lowerdir=/l,upperdir=/u,workdir=/w 0 0\n"
    assert "its files vanish with the container" in (reasons(layer, "/root/.local/state") or "")
    assert reasons(f"{layer}/dev/sda /var/lib/spool ext4 rw 0 0\n", "/var/lib/spool/shop") is None
    with caplog.at_level(logging.WARNING, "kafkasafe"):
        SafeProducer(bootstrap_servers=NOWHERE, spool_dir=tmp_path / "spool").close(timeout=0)
    assert "may not survive a restart" in caplog.text


def test_the_default_directory(tmp_path, monkeypatch, caplog):
    """Changing the import is enough. One directory per client id and cluster, under the user's state directory."""
    monkeypatch.delenv("KAFKASAFE_SPOOL_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with caplog.at_level(logging.INFO, "kafkasafe"):
        one = SafeProducer(bootstrap_servers=[NOWHERE], client_id="billing/eu")
    assert f"The spool directory is {one.spool_dir}" in caplog.text
    other_cluster = SafeProducer(bootstrap_servers="127.0.0.1:8", client_id="billing/eu")
    other_client = SafeProducer(bootstrap_servers=NOWHERE)
    again = SafeProducer(bootstrap_servers=NOWHERE, client_id="billing/eu")
    directories = [Path(p.spool_dir) for p in (one, other_cluster, other_client)]
    assert len(set(directories)) == 3
    assert {path.parent for path in directories} == {tmp_path / "state" / "kafkasafe"}
    assert directories[0].name.startswith("billing_eu-")
    assert (again.spool_dir, again.lane) == (one.spool_dir, "lane-001")
    monkeypatch.setenv("KAFKASAFE_SPOOL_DIR", str(tmp_path / "named"))
    named = SafeProducer(bootstrap_servers=NOWHERE)
    assert Path(named.spool_dir) == tmp_path / "named"
    for producer in (one, other_cluster, other_client, again, named):
        producer.close(timeout=0)


def test_every_error_is_one_of_kafka_python():
    for name in dir(kafkasafe.errors):
        error = getattr(kafkasafe.errors, name)
        if isinstance(error, type) and issubclass(error, Exception):
            assert issubclass(error, harness.kafka_errors.KafkaError), name


def test_a_closed_producer_says_so_before_a_serializer_is_asked(tmp_path):
    """One that fails on None hid it."""
    producer = SafeProducer(
        bootstrap_servers=NOWHERE, spool_dir=tmp_path, key_serializer=str.encode, value_serializer=str.encode
    )
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send("orders", "too late")


class Noting(Partitioner):
    """A partitioner and a serializer that note what they are asked."""

    def __init__(self):
        self.asked = []

    def partition(self, *asked):
        self.asked.append(asked)
        raise LookupError("asked")

    def serialize(self, *asked):
        self.asked.append(asked)
        raise LookupError("asked")


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": 5},
        {"headers": [("h", "text")]},
        {"partition": "1"},
        {"timestamp_ms": "1"},
        {"value": "text"},
        {},
    ],
)
def test_a_closed_producer_says_so_before_anything_else(fake_kafka, producers, wrong):
    """The error of a partitioner, or of another argument, hid it."""
    fake_kafka.create_topic("orders")
    noting = Noting()
    producer = producers(fake_kafka.bootstrap_servers, partitioner=noting)
    producer.send("orders", b"1", partition=0).get(30)
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send("orders", **{"value": b"too late", **wrong})
    assert noting.asked == []


@pytest.mark.parametrize("headers", [5, (("h", b"1"),), [("h", "text")], [("h", b"1", 2)], [None]])
@pytest.mark.parametrize("option", ["value_serializer", "partitioner"])
def test_headers_are_checked_before_a_serializer_or_partitioner_is_asked(
    fake_kafka, producers, option, headers
):
    """Serializers read them, and their errors hid that of the headers."""
    fake_kafka.create_topic("orders")
    noting = Noting()
    producer = producers(fake_kafka.bootstrap_servers, **{option: noting})
    if option == "partitioner":
        producer.send("orders", b"1", partition=0).get(
            30
        )  # a topic that is not known yet asks no partitioner
    with pytest.raises(TypeError, match="headers"):
        producer.send("orders", b"1", headers=headers)
    assert noting.asked == []


def test_a_client_id_that_is_no_text_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="client_id must be a str, not 5"):
        SafeProducer(bootstrap_servers=NOWHERE, client_id=5)
    with pytest.raises(ConfigError, match="client_id must be a str, not 5"):
        kafkasafe.SafeConsumer(bootstrap_servers=NOWHERE, client_id=5)


def test_only_a_name_that_is_near_is_offered():
    with pytest.raises(ConfigError, match=r"'foo': see docs/options\.md"):
        SafeProducer(bootstrap_servers=NOWHERE, foo=1)


def test_without_a_directory_for_temporary_files(tmp_path, monkeypatch, caplog):
    """A container with a read-only file system, and a volume for the spool."""

    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", missing)
    config.take_locks_early()  # KafkaHandler calls it while it handles a log record
    SafeProducer(bootstrap_servers=NOWHERE, spool_dir=tmp_path / "spool").close(timeout=0)
    # Without /tmp, Python uses the current directory.
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    SafeProducer(bootstrap_servers=NOWHERE, spool_dir=tmp_path / "spool").close(timeout=0)
    assert "may not survive a restart" not in caplog.text


@pytest.mark.parametrize("option", ["spool_dir", "lineage_path"])
def test_a_path_without_a_home_or_current_directory(option, tmp_path, monkeypatch):
    def opened(path: str) -> None:
        if option == "spool_dir":
            SafeProducer(bootstrap_servers=NOWHERE, spool_dir=path)
        else:
            SafeConsumer("topic", bootstrap_servers=NOWHERE, lineage_path=path)

    with pytest.raises(ConfigError, match=rf"{option}='~nobody-here/x': .* no home directory"):
        opened("~nobody-here/x")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=rf"{option}='x': .* current directory was deleted"):
        opened("x")
