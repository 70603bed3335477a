"""What the cluster refuses for a reason that may pass waits for it: a permission, a topic, the time, one batch."""

from __future__ import annotations

import contextlib
import logging
import time

import commands
import harness
import kafka.errors as kafka_errors
import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from prometheus_client import CollectorRegistry, generate_latest

from kafkasafe import BatchDroppedError, DataLossError, RejectedError, events
from kafkasafe.delivery.engine import context, lane_keeper
from kafkasafe.metrics import install
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

MANY = 20_000
PROMISED = range(1, MANY + 1)

_ALL = [ACLOperation.READ, ACLOperation.WRITE, ACLOperation.DESCRIBE]


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Delivery tries again within a second what was refused, not within half a minute."""
    monkeypatch.setattr(context, "_REFUSED_PAUSE_S", 1.0)


@pytest.fixture(scope="module")
def guarded():
    """A broker behind a fault proxy that makes no topics by itself and can forbid."""
    config = {
        "auto.create.topics.enable": False,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": True,
    }
    with FaultProxy() as proxy, KafkaCluster(1, config=config, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.fixture
def some_wire(request):
    """A cluster behind a fault proxy: in memory; `guarded` in the other run of a test that is `also_real`."""
    if request.param == "real":
        cluster, proxy = request.getfixturevalue("guarded")
        proxy.forget()
        yield cluster, proxy
        proxy.clear()
    else:
        with (
            FakeCluster(config={"auto.create.topics.enable": False}) as cluster,
            FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy,
        ):
            yield cluster, proxy
    assert not proxy.errors


def deny(cluster, topic, operation=ACLOperation.WRITE) -> ACL | None:
    """Forbids it to everybody."""
    if isinstance(cluster, FakeCluster):
        for one in _ALL if operation is ACLOperation.ALL else [operation]:
            cluster.deny(one.name.lower(), topic=topic)
        return None
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    rules = [
        ACL("User:ANONYMOUS", "*", operation, ACLPermissionType.DENY, pattern),
        ACL("User:ANONYMOUS", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern),
    ]
    with cluster.admin() as admin:
        assert admin.create_acls(rules)["failed"] == []
    return rules[0]


def allow(cluster, topic, rule: ACL | None) -> None:
    if rule is None:
        for one in _ALL:
            cluster.deny(one.name.lower(), topic=topic, on=False)
        return
    with cluster.admin() as admin:
        admin.delete_acls([rule])


def delivered(cluster, topic) -> list[int]:
    log = harness.read_log(cluster.bootstrap_servers, topic)
    return [number for records in log.values() for number in harness.numbers_of(records)]


@pytest.mark.also_real
@pytest.mark.parametrize("api", ["Produce", "Metadata"])
def test_one_stray_refusal_after_an_outage_throws_nothing_away(some_wire, producers, api):
    """All that waited on disk was rejected: 20,000 of 20,000 records after one 29 in Produce."""
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    producer = producers(proxy.bootstrap_servers, batch_size=20_000)
    harness.send(producer, topic, 0).get(60)
    outage = proxy.on("Produce", topic=topic).answer_without_forwarding(19)
    for number in PROMISED:
        harness.send(producer, topic, number)
    producer.durable(60)
    outage.wait(1, 60)
    stray = proxy.on(api, topic=topic)
    if api == "Produce":
        stray.answer_without_forwarding(29, times=1)
    else:
        proxy.on("Produce", topic=topic).answer_without_forwarding(3, times=1)
        stray.answer(29, times=1)
        # It is what is known for a while.
        proxy.on("Metadata", topic=topic).after(1).delay(1.0, times=1)
    outage.remove()
    producer.flush(120)
    assert stray.hits == 1
    assert producer.metrics()["kafkasafe"].get("records_rejected", 0) == 0
    assert delivered(cluster, topic) == [0, *PROMISED]
    producer.close()


@pytest.mark.real
@pytest.mark.also_real
@pytest.mark.parametrize("knows", ["the metadata", "the leader alone"])
@pytest.mark.parametrize("policy", ["raise", "accept"])
def test_records_wait_for_a_right_that_somebody_mends(some_wire, producers, caplog, knows, policy):
    """Said everywhere; meanwhile `send` raises what kafka-python's does, or takes more."""
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    operation = ACLOperation.ALL if knows == "the metadata" else ACLOperation.WRITE
    rule = deny(cluster, topic, operation)
    seen: list = []
    registry = CollectorRegistry()
    producer = producers(proxy.bootstrap_servers, on_event=seen.append, on_blocked_topic=policy)
    install(producer, registry=registry)

    def said() -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "event", "") == "topic_blocked"]

    with caplog.at_level(logging.ERROR, "kafkasafe.producer"):
        for number in range(100):
            harness.send(producer, topic, number)
        producer.durable(60)
        harness.until(lambda: [e for e in seen if isinstance(e, events.TopicBlocked)], 120)
        # Another thread logs.
        harness.until(said, 120)
    told = next(event for event in seen if isinstance(event, events.TopicBlocked))
    assert (told.topic, told.code, told.records) == (topic, 29, 100)
    (line,) = said()
    assert "Pending records (100 records) are delivered as soon as" in line.getMessage()
    assert "Grant this user the permission" in line.getMessage()
    harness.until(lambda: producer._pump.refused_topics, 120)
    if policy == "raise":
        with pytest.raises(
            kafka_errors.TopicAuthorizationFailedError, match=r"accepted before \(100 records\)"
        ):
            harness.send(producer, topic, 100)
        last = 100
    else:
        harness.send(producer, topic, 100)
        last = 101
    with pytest.raises(kafka_errors.KafkaTimeoutError, match=rf"{topic}.*TOPIC_AUTHORIZATION_FAILED \(29\)"):
        producer.flush(0.1)
    labels = f'{{client_id="kafkasafe",error="TOPIC_AUTHORIZATION_FAILED",kind="topic",name="{topic}"}}'
    waiting = f"kafkasafe_blocked_records{labels} {last}.0"
    harness.until(lambda: waiting in generate_latest(registry).decode(), 120, waiting)
    assert f"kafkasafe_blocked_destinations{labels} 1.0" in generate_latest(registry).decode()
    proxy.forget()
    before = time.monotonic()
    time.sleep(1.0)
    assert len(proxy.requests("Produce", topic=topic)) <= 10 * (time.monotonic() - before)
    allow(cluster, topic, rule)
    producer.flush(120)
    assert [event.code for event in seen if isinstance(event, events.TopicUnblocked)] == [29]
    assert "kafkasafe_blocked_destinations{" not in generate_latest(registry).decode()
    harness.until(lambda: not producer._pump.refused_topics, 120)
    harness.send(producer, topic, last).get(60)
    assert delivered(cluster, topic) == list(range(last + 1))
    assert not [event for event in seen if isinstance(event, events.RecordsRejected)]
    producer.close()


@pytest.mark.real
@pytest.mark.also_real
def test_a_right_that_is_missing_to_ask_about_batches_in_doubt_is_named(some_wire, producers, capsys):
    """It was "TopicAuthorizationFailedError" for ever, to a user who may write. New records are accepted meanwhile."""
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    seen: list = []
    producer = producers(proxy.bootstrap_servers, on_event=seen.append)
    harness.send(producer, topic, 0).get(60)
    rule = deny(cluster, topic, ACLOperation.READ)
    proxy.on("Produce", topic=topic).answer(7, times=1)
    harness.send(producer, topic, 1).durable(60)
    harness.until(lambda: [e for e in seen if isinstance(e, events.TopicBlocked)], 120)
    needed = f"READ on topic {topic} is needed to find out the outcome of 1 batch "
    told = next(event for event in seen if isinstance(event, events.TopicBlocked))
    assert told.reason.startswith(needed)
    harness.send(producer, topic, 2).durable(60)
    spool = producer._config.spool_dir
    producer.close(timeout=0)
    servers = ",".join(cluster.bootstrap_servers)
    code, told, _ = commands.run(capsys, "doctor", spool, "-b", servers, "--timeout", "20")
    assert code == 3
    assert f"READ on topic {topic} is needed" in " ".join(told.split())
    allow(cluster, topic, rule)
    with producers(proxy.bootstrap_servers) as heir:
        heir.flush(120)
    assert delivered(cluster, topic) == [0, 1, 2]


@pytest.mark.real
@pytest.mark.also_real
@pytest.mark.parametrize("known", [False, True], ids=["never-there", "deleted"])
def test_records_wait_for_a_topic_that_somebody_creates(some_wire, producers, monkeypatch, known):
    """For a while it may only be new: `send` takes records. Then it raises; what it took is delivered in the end."""
    monkeypatch.setattr(lane_keeper, "_MISSING_GRACE_S", 2.0)
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    producer = producers(proxy.bootstrap_servers, data_loss_check_ms=1000)
    if known:
        harness.send(producer, topic, 1000).get(60)
    cluster.delete_topic(topic)
    number = 0
    began = time.monotonic()
    raised = ""
    while not raised and time.monotonic() < began + 60:
        try:
            harness.send(producer, topic, number).durable(60)
            number += 1
        except kafka_errors.UnknownTopicOrPartitionError as error:
            raised = str(error)
        time.sleep(0.02)
    assert f"accepted before ({number} records)" in raised
    assert time.monotonic() - began > 1.5
    cluster.create_topic(topic, 1)
    # What was acknowledged before the topic was deleted is gone.
    with pytest.raises(DataLossError) if known else contextlib.nullcontext():
        producer.flush(120)
    assert delivered(cluster, topic) == list(range(number))
    producer.close()


@pytest.mark.real
def test_the_log_names_a_topic_without_partitions_by_its_name(producers, caplog):
    with FakeCluster(config={"auto.create.topics.enable": False}) as cluster:
        producer = producers(cluster.bootstrap_servers, blocked_timeout_ms=1000, on_blocked_topic="accept")
        with caplog.at_level(logging.ERROR, "kafkasafe.producer"), pytest.raises(RejectedError):
            producer.send("missing", b"x").get(60)
        producer.close()
    (line,) = [record for record in caplog.records if getattr(record, "event", "") == "records_rejected"]
    assert line.getMessage().startswith("missing: 1 record rejected: ")


@pytest.mark.real
def test_what_nobody_mends_in_time_is_rejected_and_what_comes_then_has_its_own_time(some_wire, producers):
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    rule = deny(cluster, topic)
    producer = producers(proxy.bootstrap_servers, blocked_timeout_ms=2000, on_blocked_topic="accept")
    began = time.monotonic()
    with pytest.raises(RejectedError) as caught:
        harness.send(producer, topic, 0).get(60)
    assert caught.value.code == 29
    assert time.monotonic() - began > 1.9
    late = harness.send(producer, topic, 1)
    time.sleep(0.5)
    assert not late.is_done
    allow(cluster, topic, rule)
    late.get(60)
    producer.close()


@pytest.mark.also_real
def test_a_timestamp_ahead_waits_for_its_time_and_one_too_old_is_rejected(some_wire, producers):
    cluster, proxy = some_wire
    limits = {"message.timestamp.after.max.ms": 1000, "message.timestamp.before.max.ms": 3_600_000}
    topic = harness.new_topic(cluster, 1, config=limits)
    producer = producers(proxy.bootstrap_servers, blocked_timeout_ms=600_000, linger_ms=0)
    now_ms = time.time_ns() // 1_000_000
    ahead = producer.send(topic, harness.record_value(0), timestamp_ms=now_ms + 4000)
    ahead.durable(60)
    behind = harness.send(producer, topic, 1)
    behind.durable(60)
    # It can never be accepted in time.
    never = producer.send(topic, harness.record_value(2), timestamp_ms=now_ms + 10**9)
    never.durable(60)
    old = producer.send(topic, harness.record_value(3), timestamp_ms=now_ms - 7_200_000)
    assert ahead.get(60).offset == 0
    assert time.time_ns() // 1_000_000 > now_ms + 2500
    behind.get(60)
    for future in (never, old):
        with pytest.raises(RejectedError) as caught:
            future.get(60)
        assert caught.value.code == 32
    assert delivered(cluster, topic) == [0, 1]
    producer.close()


@pytest.mark.also_real
def test_an_atomic_batch_with_a_timestamp_ahead_waits_for_its_time(some_wire, producers):
    cluster, proxy = some_wire
    limits = {"message.timestamp.after.max.ms": 1000, "message.timestamp.before.max.ms": 3_600_000}
    topic = harness.new_topic(cluster, 1, config=limits)
    producer = producers(proxy.bootstrap_servers, blocked_timeout_ms=600_000, linger_ms=0)
    now_ms = time.time_ns() // 1_000_000
    outcomes = []
    for number, timestamp_ms in enumerate((now_ms + 4000, now_ms + 10**9, now_ms - 7_200_000)):
        with producer.batch() as batch:
            batch.send(topic, harness.record_value(10 * number), timestamp_ms=timestamp_ms)
        outcomes.append(batch.outcome)
    behind = harness.send(producer, topic, 1)
    ahead, *refused = outcomes
    ahead.get(60)
    assert time.time_ns() // 1_000_000 > now_ms + 2500
    behind.get(60)
    for outcome in refused:
        with pytest.raises(BatchDroppedError) as caught:
            outcome.get(60)
        assert caught.value.code == 32
    assert delivered(cluster, topic) == [0, 1]
    producer.close()


@pytest.mark.parametrize("code", [-1, 2])
def test_a_batch_on_which_the_broker_fails_each_time_does_not_block_its_partition_for_ever(
    some_wire, producers, code
):
    cluster, proxy = some_wire
    topic = harness.new_topic(cluster, 1)
    producer = producers(proxy.bootstrap_servers, blocked_timeout_ms=2000, linger_ms=0)
    harness.send(producer, topic, 0).get(60)
    fails = proxy.on("Produce", topic=topic).answer_without_forwarding(code)
    bad = harness.send(producer, topic, 1)
    bad.durable(60)
    fails.wait(1, 30)
    good = harness.send(producer, topic, 2)
    with pytest.raises(RejectedError) as caught:
        bad.get(60)
    assert caught.value.code == code
    fails.remove()
    good.get(60)
    assert delivered(cluster, topic) == [0, 2]
    producer.close()
