"""What the cluster refuses for good: told, kept aside, and never in the way of what is behind it."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
from pathlib import Path

import harness
import pytest
from commands import run
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from kafkasafe import DataLossError, RejectedError, SafeProducer, events
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import OsFiles
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def strict():
    """A broker that makes no topics by itself and can forbid."""
    config = {
        "auto.create.topics.enable": False,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with KafkaCluster(brokers=1, config=config) as cluster:
        yield cluster


class Dead:
    """A dead-letter handler that remembers."""

    def __init__(self) -> None:
        self.letters: list[dict] = []

    def __call__(self, **letter) -> None:
        self.letters.append(letter)

    @property
    def numbers(self) -> list[int]:
        return [int(letter["value"][: harness.lives.DIGITS]) for letter in self.letters]


def kept_aside(producer: SafeProducer) -> list[bytes]:
    """Values of the records in `rejected/`, read as what they are: Kafka batches."""
    values = []
    for file in sorted((producer._config.spool_dir / producer.lane / "rejected").glob("*.log")):
        content = file.read_bytes()
        for at, header in codec.iter_headers(content):
            if not header.is_control:
                values += codec.decode(content, at).values
    return values


def check(cluster, topic, producer, futures, bad, code, dead, reason: str) -> None:
    """`bad` records are refused and told, all others delivered in order."""
    check_fates(topic, producer, futures, bad, code, dead, reason)
    log = harness.read_log(cluster.bootstrap_servers, topic)
    harness.audit(log, futures.keys() - bad, contents=False)
    assert not bad & {number for records in log.values() for number in harness.numbers_of(records)}


def check_fates(topic, producer, futures, bad, code, dead, reason: str) -> None:
    for number, future in futures.items():
        if number in bad:
            with pytest.raises(RejectedError, match=f"rejected the record: .*{reason}.*rejected") as caught:
                future.get(60)
            assert caught.value.code == code
            assert re.search(reason, caught.value.reason)
            assert future.failed()
            assert not future.succeeded()
        else:
            future.get(60)
    assert sorted(dead.numbers) == sorted(bad)
    assert all(letter["topic"] == topic and letter["error"].code == code for letter in dead.letters)
    if bad:
        assert sorted(kept_aside(producer)) == sorted(harness.record_value(number) for number in bad)


LARGE = 400  # its value has 30,000 bytes


@pytest.mark.parametrize("batching", ["alone", "together"])
@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_a_record_too_large_for_the_topic(kafka, producers, batching, spool):
    """Alone in its batch; or among good ones, which are delivered: the batch is divided until it is alone."""
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": 20_000})
    dead = Dead()
    producer = producers(
        kafka.bootstrap_servers, on_rejected=dead, linger_ms=200, spool=spool, spool_after_ms=100
    )
    futures = {}
    for number in range(LARGE - 30, LARGE + 30):
        futures[number] = harness.send(producer, topic, number)
        if batching == "alone":
            futures[number].durable(60) if spool == "always" else producer.parts.accumulator.seal_all()
    check(kafka, topic, producer, futures, {LARGE}, 10, dead, "MESSAGE_TOO_LARGE")
    producer.close()


def test_good_records_in_a_batch_that_is_too_large_are_all_delivered(kafka, producers):
    topic = harness.new_topic(kafka, 3, config={"max.message.bytes": 4000})
    dead = Dead()
    producer = producers(kafka.bootstrap_servers, on_rejected=dead, linger_ms=200)
    futures = {number: harness.send(producer, topic, number) for number in range(1, 301)}
    check(kafka, topic, producer, futures, set(), 10, dead, "")
    assert producer.metrics()["kafkasafe"].get("records_rejected", 0) == 0
    producer.close()


def test_records_without_a_key_on_a_compacted_topic(kafka, producers):
    """The broker names the bad records: the good ones of the batch are delivered in order."""
    topic = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    dead = Dead()
    seen: list = []
    producer = producers(kafka.bootstrap_servers, on_rejected=dead, linger_ms=100, on_event=seen.append)
    numbers = range(1, 101)
    bad = {number for number in numbers if harness.record_key(number) is None}
    assert len(bad) == 14
    futures = {number: harness.send(producer, topic, number) for number in numbers}
    check(kafka, topic, producer, futures, bad, 87, dead, "INVALID_RECORD")
    assert {letter["key"] for letter in dead.letters} == {None}
    refused = [event for event in seen if isinstance(event, events.RecordsRejected)]
    assert sum(event.records for event in refused) == 14
    producer.close()


def test_a_stream_of_good_and_bad_records(kafka, producers):
    """Rejections while much is in flight: the gaps they leave in the sequence hold nobody up."""
    topic = harness.new_topic(kafka, 2, config={"max.message.bytes": 20_000})
    dead = Dead()
    producer = producers(kafka.bootstrap_servers, on_rejected=dead, linger_ms=0, batch_size=3000)
    futures = {number: harness.send(producer, topic, number) for number in range(2500)}
    check(
        kafka, topic, producer, futures, {0, 400, 800, 1200, 1600, 2000, 2400}, 10, dead, "MESSAGE_TOO_LARGE"
    )
    producer.close()


def test_killed_while_records_are_refused(kafka, zygote, tmp_path, producers):
    """What was refused stays refused, or is refused again; nothing else is lost, and nothing is there twice."""
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": 20_000})
    log = tmp_path / "lives.log"
    for life_number in range(8):
        ready = tmp_path / f"ready{life_number}"
        life = zygote.burst(
            tmp_path,
            kafka.bootstrap_servers,
            topic,
            ready,
            [400 * life_number + 380, 400 * life_number + 420],
            options={"request_timeout_ms": 3000, "batch_size": 10_000},
        )
        life.until(ready)
        threading.Event().wait(0.03 * life_number)
        assert life.kill() == -9
    dead = Dead()
    with producers(kafka.bootstrap_servers, on_rejected=dead, request_timeout_ms=3000) as producer:
        producer.flush(60)
    sent = {number for begin in range(380, 3580, 400) for number in range(begin, begin + 40)}
    large = {number for number in sent if number % 400 == 0}
    found = harness.read_log(kafka.bootstrap_servers, topic)
    harness.audit(found, sent - large, note=log)
    assert not large & set(harness.numbers_of(found[0]))
    assert set(dead.numbers) <= large
    assert large <= {int(value[: harness.lives.DIGITS]) for value in kept_aside(producer)}


def test_a_topic_that_never_was(strict, producers):
    """After a while its records are refused; others go on meanwhile."""
    good = harness.new_topic(strict, 1)
    dead = Dead()
    producer = producers(strict.bootstrap_servers, on_rejected=dead, blocked_timeout_ms=1500)
    futures = [harness.send(producer, "never-made", number) for number in range(10)]
    others = [harness.send(producer, good, number) for number in range(10)]
    for future in others:
        future.get(60)
    for future in futures:
        with pytest.raises(RejectedError, match=r"UnknownTopicOrPartitionError|UNKNOWN_TOPIC") as caught:
            future.get(60)
        assert caught.value.code == 3
    assert dead.numbers == list(range(10))
    assert kept_aside(producer) == [harness.record_value(number) for number in range(10)]
    producer.close()


def test_a_topic_that_is_deleted(strict, producers):
    good, doomed = harness.new_topic(strict, 1), harness.new_topic(strict, 2)
    dead = Dead()
    producer = producers(strict.bootstrap_servers, on_rejected=dead, blocked_timeout_ms=1000)
    for number in range(10):
        harness.send(producer, doomed, number).get(60)
    strict.delete_topic(doomed)
    futures = [harness.send(producer, doomed, number) for number in range(10, 30)]
    others = [harness.send(producer, good, number) for number in range(10)]
    for future in others:
        future.get(60)
    for future in futures:
        with pytest.raises(RejectedError, match=r"UnknownTopic|UNKNOWN_TOPIC") as caught:
            future.get(40)
        assert caught.value.code in {3, 100}
    assert sorted(dead.numbers) == list(range(10, 30))
    producer.close()


def test_a_topic_that_is_deleted_and_made_again_in_time(strict, producers):
    """Records sent meanwhile wait for it; they are delivered to the new one, once."""
    topic = harness.new_topic(strict, 1)
    producer = producers(strict.bootstrap_servers)
    for number in range(10):
        harness.send(producer, topic, number).get(60)
    strict.delete_topic(topic)
    futures = [harness.send(producer, topic, number) for number in range(10, 30)]
    futures[-1].durable(60)
    threading.Event().wait(0.5)
    assert not futures[0].is_done
    strict.create_topic(topic, 1)
    for future in futures:
        future.get(60)
    with pytest.raises(DataLossError, match="10 acknowledged records"):
        producer.close()  # what was in the old one
    harness.audit(harness.read_log(strict.bootstrap_servers, topic), range(10, 30))


def test_a_dead_letter_handler_that_fails_costs_nothing(kafka, producers):
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": 20_000})

    def broken(**letter) -> None:
        raise RuntimeError("no")

    producer = producers(kafka.bootstrap_servers, on_rejected=broken)
    bad = harness.send(producer, topic, LARGE)
    with pytest.raises(RejectedError):
        bad.get(60)
    harness.send(producer, topic, 1).get(60)
    assert kept_aside(producer) == [harness.record_value(LARGE)]
    producer.close()


@pytest.mark.parametrize("knows", ["the metadata", "the leader alone"])
def test_a_topic_that_this_user_may_not_write(strict, producers, knows):
    """Then allowed after all: what is sent afterwards is delivered."""
    secret, good = harness.new_topic(strict, 1), harness.new_topic(strict, 1)

    def rule(operation, permission) -> ACL:
        return ACL("User:ANONYMOUS", "*", operation, permission, ResourcePattern(ResourceType.TOPIC, secret))

    rules = [rule(ACLOperation.WRITE, ACLPermissionType.DENY)]
    if knows == "the leader alone":
        rules.append(rule(ACLOperation.ALL, ACLPermissionType.ALLOW))
    with strict.admin() as admin:
        assert admin.create_acls(rules)["failed"] == []
    dead = Dead()
    producer = producers(strict.bootstrap_servers, on_rejected=dead, blocked_timeout_ms=500)
    refused = {number: harness.send(producer, secret, number) for number in range(1, 11)}
    others = [harness.send(producer, good, number) for number in range(10)]
    for future in others:
        future.get(60)
    reason = "TOPIC_AUTHORIZATION_FAILED|TopicAuthorizationFailed"
    check_fates(secret, producer, refused, set(refused), 29, dead, reason)
    with strict.admin() as admin:
        admin.delete_acls(rules)
    # Every broker has to hear of it first.
    harness.until(lambda: _allowed(producer, secret), 120, "the rule to be gone")
    late = [harness.send(producer, secret, number) for number in range(20, 30)]
    for future in late:
        future.get(60)
    producer.close()
    numbers = harness.numbers_of(harness.read_log(strict.bootstrap_servers, secret)[0])
    assert [number for number in numbers if number < 1000] == list(range(20, 30))


def _allowed(producer: SafeProducer, topic: str) -> bool:
    try:
        harness.send(producer, topic, 1000).get(60)
    except RejectedError:
        return False
    return True


# -- kept is kept ------------------------------------------------------------------------------------------------------


class Broken(OsFiles):
    """The operating system's files, but for what concerns `rejected/`.

    Attributes:
        code: While it is not 0, this error.
        operation: Of what.
        spare: So many calls go well before.
        strikes: How often it did.
    """

    __slots__ = ("code", "operation", "spare", "strikes")

    def __init__(self, operation: str, code: int) -> None:
        self.operation = operation
        self.code = code
        self.spare = 0
        self.strikes = 0

    def _strike(self, operation: str) -> None:
        if self.code and operation == self.operation:
            if self.spare:
                self.spare -= 1
                return
            self.strikes += 1
            raise OSError(self.code, os.strerror(self.code))

    def create(self, path, *, at=None):
        if path.parent.name == "rejected":
            self._strike("create")
        return super().create(path, at=at)

    def sync_directory(self, path, *, at=None):
        if path.name == "rejected":
            self._strike("sync_directory")
        super().sync_directory(path, at=at)

    def read(self, handle, offset, size):
        self._strike("read")
        return super().read(handle, offset, size)


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("create", errno.EMFILE),
        ("create", errno.ENOSPC),
        ("sync_directory", errno.EIO),
        ("read", errno.EMFILE),
    ],
)
def test_what_cannot_be_kept_waits_and_nothing_says_otherwise(
    kafka, producers, monkeypatch, operation, code, caplog
):
    """A disk that refuses the copy: the batch stays refused, everybody else goes on, and it is tried again."""
    files = Broken(operation, 0)
    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", lambda: files)
    if operation == "read":  # the batch has to be read back, once to be sent, then to be kept
        monkeypatch.setattr("kafkasafe.delivery.engine.disk._MEMORY_BYTES", 0)
    topic = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    other = harness.new_topic(kafka, 1)
    seen: list = []
    dead = Dead()
    producer = producers(kafka.bootstrap_servers, on_rejected=dead, on_event=seen.append)
    for name in (topic, other):
        producer.send(name, key=b"k", value=harness.record_value(1)).get(60)
    files.spare = operation == "read"
    files.code = code
    bad = producer.send(topic, value=harness.record_value(7))
    bad.durable(60)
    harness.until(lambda: files.strikes >= 2, what="a second try")
    assert not bad.is_done
    assert kept_aside(producer) == []
    assert not [event for event in seen if isinstance(event, events.RecordsRejected)]
    assert "kept in" not in caplog.text
    assert "rejected_not_kept" in {getattr(record, "event", "") for record in caplog.records}
    if operation != "read":
        harness.send(producer, other, 2).get(60)
    files.code = 0
    with pytest.raises(RejectedError, match="kept in the spool directory under lane-000/rejected"):
        bad.get(60)
    (event,) = [event for event in seen if isinstance(event, events.RecordsRejected)]
    assert harness.record_value(7) in Path(event.kept_in).read_bytes()
    assert kept_aside(producer) == [harness.record_value(7)]
    assert dead.numbers == [7]
    producer.close()


def test_each_record_that_was_refused_before_it_was_spooled_is_kept(kafka, producers):
    """With `spool="on_error"` a batch had no position, and so no name of its own in rejected/."""
    topic = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    dead = Dead()
    producer = producers(kafka.bootstrap_servers, spool="on_error", spool_after_ms=60_000, on_rejected=dead)
    for number in range(5):
        with pytest.raises(RejectedError, match="It is kept"):
            producer.send(topic, value=harness.record_value(number)).get(60)
    assert kept_aside(producer) == [harness.record_value(number) for number in range(5)]
    assert dead.numbers == list(range(5))
    producer.close()


def test_where_rejected_is_full_what_is_refused_waits(kafka, producers, caplog):
    """Nothing is dropped, other topics go on; with more room, also in a later life, it is rejected."""
    topic = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    other = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, rejected_max_bytes=3000)
    futures = []
    for number in range(6):
        futures.append(producer.send(topic, value=b"%d" % number + b"." * 1000))
        futures[-1].durable(60)  # a batch of its own
    for future in futures[:2]:
        with pytest.raises(RejectedError):
            future.get(60)
    harness.send(producer, other, 1).get(60)
    harness.until(lambda: "rejected/ is full" in caplog.text)
    assert not any(future.is_done for future in futures[3:])
    kept = kept_aside(producer)
    assert 2 <= len(kept) < 6
    producer.close(timeout=0)
    producer = producers(kafka.bootstrap_servers, request_timeout_ms=1000)
    producer.flush(60)
    assert [value[:1] for value in kept_aside(producer)] == [b"%d" % number for number in range(6)]
    assert producer._pump.state().gauges["rejected_kept_records"] == 6
    producer.close()


# -- and back ----------------------------------------------------------------------------------------------------------


def test_rejected_records_are_resent_once_and_in_order_also_after_kill_9(
    kafka, producers, zygote, tmp_path, capsys
):
    """The operator raises the limit, and kafkasafe spool resend is killed at one call to the disk after the other."""
    topic = harness.new_topic(kafka, 2, config={"max.message.bytes": 3000})
    other = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    spool, servers = producers.spool, ",".join(kafka.bootstrap_servers)
    with producers(kafka.bootstrap_servers, request_timeout_ms=1000) as producer:
        futures = []
        for number in range(1, 41):
            value = b"%0*d" % (harness.lives.DIGITS, number) + b"." * (4000 if number % 2 else 0)
            futures.append(producer.send(topic, value, partition=number % 4 // 2))
            futures[-1].durable(60)
        futures.append(producer.send(other, value=harness.record_value(1)))
        producer.flush(60)
    code, out, _ = run(capsys, "spool", "ls", spool)
    assert (code, "21 records REJECTED" in out, "MESSAGE_TOO_LARGE" in out) == (1, True, True)
    code, out, _ = run(capsys, "spool", "drain", spool, "-b", servers)
    assert (code, "21 records in rejected/, not delivered" in out) == (1, True)
    code, out, _ = run(capsys, "spool", "resend", spool, "--dry-run", "--topic", topic)
    assert (code, "20 records would be moved back" in out) == (0, True)
    kafka.alter_topic(topic, {"max.message.bytes": 100_000})
    config = tmp_path / "kafka.json"
    config.write_text('{"request_timeout_ms": 1000}', encoding="utf-8")
    command = ["spool", "resend", str(spool), "-b", servers, "--config", str(config), "--topic", topic]
    killed = 0
    for calls in range(0, 200, 7):
        life = zygote.fork(harness.lives.command, tmp_path / "lives.log", arguments=command, calls=calls)
        if (code := life.wait()) == 0:
            break
        assert code == -9, life.tail()
        killed += 1
    assert (code, killed > 5) == (0, True), (killed, life.tail())
    log = harness.read_log(kafka.bootstrap_servers, topic)
    for partition, records in log.items():
        numbers = harness.numbers_of(records)
        mine = [number for number in range(1, 41) if number % 4 // 2 == partition]
        assert sorted(numbers) == mine
        assert [number for number in numbers if number % 2] == [number for number in mine if number % 2]
    code, out, _ = run(capsys, "spool", "ls", spool)
    assert (code, "1 record REJECTED" in out) == (1, True)  # the other topic's


def test_records_are_resent_beside_a_living_producer(kafka, producers, capsys):
    """It need not be stopped; what is rejected again is in rejected/ again, and said."""
    topic = harness.new_topic(kafka, 1, config={"cleanup.policy": "compact"})
    producer = producers(kafka.bootstrap_servers)
    for number in range(3):
        with pytest.raises(RejectedError):
            producer.send(topic, value=harness.record_value(number)).get(60)
    servers = ",".join(kafka.bootstrap_servers)
    code, out, _ = run(capsys, "spool", "resend", producers.spool, "-b", servers, "--json")
    told = json.loads(out)
    assert (code, told["resent_records"], told["delivered_records"], told["rejected_records"]) == (1, 3, 0, 3)
    kafka.alter_topic(topic, {"cleanup.policy": "delete"})
    harness.until(lambda: producer._pump.state().gauges["rejected_kept_records"] == 0)
    code, out, _ = run(capsys, "spool", "resend", producers.spool, "-b", servers)
    assert (code, "3 records were moved back" in out) == (0, True), out
    harness.until(lambda: harness.end_offset(kafka, topic) == 3)
    harness.audit(harness.read_log(kafka.bootstrap_servers, topic), range(3), contents=False)
    producer.close()


def test_a_batch_that_stands_in_the_way_is_set_aside(broker, zygote, tmp_path, capsys):
    """The others are delivered without a hole in their sequences; it comes back when the operator says so."""
    topic = harness.new_topic(broker.cluster, 1)
    life = zygote.burst(
        tmp_path, broker.servers, topic, tmp_path / "ready", [0, 20], partition=0, go=tmp_path / "go", first=5
    )
    life.until(tmp_path / "ready.first")
    broker.proxy.refuse()
    (tmp_path / "go").touch()
    life.until(tmp_path / "ready")
    spool, servers = tmp_path / "spool", ",".join(broker.servers)
    first, second, *_ = json.loads(run(capsys, "spool", "show", spool, "--json")[1])
    where = ("--lane", "0", "--position", first["position"])
    code, _, err = run(capsys, "spool", "set-aside", spool, *where)
    assert (code, "belongs to process" in err) == (3, True)
    life.kill()
    broker.proxy.restore()
    assert (first["status"], first["records"]) == ("in_doubt", 5)
    code, _, err = run(capsys, "spool", "set-aside", spool, *where)
    assert (code, "may have been sent" in err) == (2, True)
    config = tmp_path / "kafka.json"
    config.write_text('{"request_timeout_ms": 1000}', encoding="utf-8")
    code, out, _ = run(capsys, "spool", "set-aside", spool, *where, "-b", servers, "--config", config)
    assert (code, "5 records set aside into" in out) == (0, True)
    code, out, _ = run(capsys, "spool", "drain", spool, "-b", servers, "--config", config)
    assert (code, "set aside by an operator" in out) == (1, True)
    late = set(range(5, 10))
    harness.audit(harness.read_log(broker.servers, topic), set(range(20)) - late)
    assert late.isdisjoint(harness.numbers_of(harness.read_log(broker.servers, topic)[0]))
    code, out, _ = run(capsys, "spool", "resend", spool, "-b", servers, "--config", config)
    assert code == 0, out
    harness.audit(harness.read_log(broker.servers, topic), range(20), ordered=False)
    assert second["position"] > first["position"]
