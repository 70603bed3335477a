"""What is raised once for each: losses, and batches that wait for a decision."""

from __future__ import annotations

import gc
import logging

import harness
import pytest
from kafka.admin import NewTopic

from kafkasafe import DataLossError, SafeProducer, UndecidableError, events, logs
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

LONG_MS = 600_000
"""Only an acknowledgement reveals that something is lost."""


CONFIG = {"auto.create.topics.enable": False}


@pytest.fixture(scope="module")
def wire():
    with FaultProxy() as proxy, KafkaCluster(1, config=CONFIG, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield proxy, cluster


@pytest.fixture
def some_wire(request):
    """A cluster behind a fault proxy: in memory; a real one in the other run of a test that is `also_real`."""
    if request.param == "real":
        yield request.getfixturevalue("wire")
        return
    with (
        FakeCluster(config=CONFIG) as cluster,
        FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy,
    ):
        yield proxy, cluster


def recreate(cluster: KafkaCluster, *topics: str, partitions: int = 1) -> None:
    """Everything that was acknowledged to them is gone."""
    with cluster.admin() as admin:
        admin.delete_topics(list(topics))
        harness.until(lambda: not {*topics} & {*admin.list_topics()})
        admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics])


def test_every_loss_is_raised(some_wire, producers):
    """Of several, one partition each, only the last one was."""
    proxy, cluster = some_wire
    topic = harness.new_topic(cluster, 3)
    events = []
    producer = producers(
        proxy.bootstrap_servers, on_data_loss="raise", data_loss_check_ms=100, on_event=events.append
    )
    for partition in range(3):
        producer.send(topic, b"0", partition=partition).get(60)
    recreate(cluster, topic, partitions=3)
    harness.until(lambda: sum(type(event).__name__ == "DataLost" for event in events) == 3)
    lost = []
    for _ in range(6):
        try:
            producer.flush(60)
        except DataLossError as error:
            lost.append(error.partition)
    assert sorted(lost) == [0, 1, 2]


@pytest.mark.also_real
def test_what_is_not_sent_again_is_raised_by_default(some_wire, producers):
    """Of 20 acknowledged records the spool has the last ones; the first were gone and the program went on."""
    proxy, cluster = some_wire
    topic = harness.new_topic(cluster, 1)
    seen = []
    producer = producers(
        proxy.bootstrap_servers,
        spool_segment_bytes=1 << 20,
        max_request_size=500_000,
        restore_recreated_topics=True,
        data_loss_check_ms=LONG_MS,
        on_event=seen.append,
    )
    value = b"x" * 100_000
    for number in range(20):
        producer.send(topic, value, b"%d" % number, partition=0).get(60)
    recreate(cluster, topic)
    producer.send(topic, b"", b"20", partition=0).get(60)
    with pytest.raises(DataLossError, match=rf"{topic}-0: 20 acknowledged records") as caught:
        producer.flush(60)
    error = caught.value
    (lost,) = [event for event in seen if isinstance(event, events.DataLost)]
    assert (lost.first_offset, lost.last_offset, lost.records) == (0, 19, 20)
    gone = 20 - lost.restoring_records
    assert 0 < gone < 20
    assert (error.topic, error.partition) == (topic, 0)
    assert (error.first_offset, error.last_offset, error.records) == (0, gone - 1, gone)
    # Once, and what the spool had is back by then.
    producer.flush(60)
    producer.close()
    log = [int(record.key) for record in harness.read_log(cluster.bootstrap_servers, topic)[0]]
    # The new one comes before them, unless the broker did not know the new topic at first.
    assert sorted(log) == list(range(gone, 21))
    assert [number for number in log if number < 20] == list(range(gone, 20))
    (healed,) = [event for event in seen if isinstance(event, events.LostRecordsRestored)]
    assert healed.records == 20 - gone


class BodyError(Exception):
    """The program's own."""


def collect(things: dict, name: str) -> None:
    del things[name]
    gc.collect()


def test_the_last_call_says_what_is_lost(some_wire, producers, caplog):
    """The ack that reveals the loss is the last thing that happens: `flush`, `close` did not wait for the answer."""
    proxy, cluster = some_wire
    names = ["flush", "close", "raise", "event", "heal", "heal closed", "with", "exit", "dropped"]
    topics = {name: harness.new_topic(cluster, 2 if name == "close" else 1) for name in names}
    options = {
        "raise": {"on_data_loss": "raise"},
        "event": {"on_data_loss": "event"},
        "heal": {"restore_recreated_topics": True},
        "heal closed": {"restore_recreated_topics": True},
    }
    seen = {name: [] for name in names}
    opened = {
        # One is dropped: nobody else may know it.
        name: (SafeProducer if name == "dropped" else producers)(
            bootstrap_servers=proxy.bootstrap_servers,
            spool_dir=producers.spool / name,
            client_id=name,
            on_event=seen[name].append,
            data_loss_check_ms=LONG_MS,
            **options.get(name, {}),
        )
        for name in names
    }

    def send(name: str) -> None:
        partitions = (0, 1) if name == "close" else (0,)
        for future in [opened[name].send(topics[name], b"", partition=number) for number in partitions]:
            future.get(60)

    for _ in range(3):
        for name in names:
            send(name)
    recreate(cluster, topics["close"], partitions=2)
    recreate(cluster, *(topic for name, topic in topics.items() if name != "close"))
    for name in names:
        # The answer whether anything is lost takes its time.
        proxy.on("ListOffsets", topic=topics[name]).delay(0.5)
    for name in names:
        send(name)

    with pytest.raises(DataLossError, match="3 acknowledged records are gone") as caught:
        opened["flush"].flush(60)
    assert (caught.value.first_offset, caught.value.last_offset, caught.value.records) == (0, 2, 3)
    for _ in range(3):
        opened["flush"].flush(60)
    opened["flush"].close()

    with pytest.raises(DataLossError, match=f"And 1 more: {topics['close']}") as caught:
        opened["close"].close()
    losses = [caught.value, *caught.value.others]
    assert sorted((loss.partition, loss.first_offset, loss.last_offset) for loss in losses) == [
        (0, 0, 2),
        (1, 0, 2),
    ]
    opened["close"].close()

    with pytest.raises(DataLossError) as caught:
        opened["raise"].close()
    assert caught.value.records == 3

    opened["event"].flush(60)
    assert [type(e) for e in seen["event"]].count(events.DataLost) == 1
    opened["event"].close()

    # All of it is back when `flush`, or `close`, returns: nothing is raised.
    opened["heal"].flush(60)
    opened["heal closed"].close()
    for name in ("heal", "heal closed"):
        assert harness.end_offset(cluster, topics[name], 0) == 4
        (healed,) = [event for event in seen[name] if isinstance(event, events.LostRecordsRestored)]
        assert healed.records == 3
    opened["heal"].close()

    with pytest.raises(BodyError) as body, opened["with"]:
        raise BodyError("the program's own")
    assert any("3 acknowledged records are gone" in note for note in body.value.__notes__)

    # Nobody is there to catch it: the log has it.
    opened["exit"].parts.shutdown._at_exit()
    assert opened["exit"].parts.lifecycle.closed is not None
    with pytest.warns(ResourceWarning):
        collect(opened, "dropped")
    for name in ("exit", "dropped"):
        harness.until(lambda name=name: events.DataLost in map(type, seen[name]))
        logs.drain(30)
        assert any(
            record.levelno == logging.ERROR and topics[name] in record.getMessage()
            for record in caplog.records
        )


def test_a_close_that_ends_too_early_leaves_it_to_the_next_life(some_wire, producers):
    """What the spool had of it was released, and nothing was said."""
    proxy, cluster = some_wire
    topic = harness.new_topic(cluster, 1)
    options = {
        "spool_segment_bytes": 1 << 20,
        "max_request_size": 500_000,
        "restore_recreated_topics": True,
        "data_loss_check_ms": LONG_MS,
        "request_timeout_ms": 5000,
    }
    first = producers(proxy.bootstrap_servers, **options)
    value = b"x" * 100_000
    for number in range(5):
        first.send(topic, value, b"%d" % number).get(60)
    recreate(cluster, topic)
    proxy.on("ListOffsets", topic=topic).drop(mute=False, forward=False)
    for number in range(5, 25):
        first.send(topic, value, b"%d" % number).durable(60)
        if number == 5:
            harness.until(lambda: first._pump.ledger.doubted, what="suspicion")
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError):
        first.flush(0.1)
    first.close(timeout=0)
    proxy.clear()
    seen = []
    second = producers(proxy.bootstrap_servers, on_event=seen.append, **options)
    second.flush(60)
    second.close()
    (lost,) = [event for event in seen if isinstance(event, events.DataLost)]
    assert (lost.records, lost.restoring_records) == (5, 5)
    log = [int(record.key) for record in harness.read_log(cluster.bootstrap_servers, topic)[0]]
    assert sorted(log) == list(range(25))
    assert [number for number in log if number < 5] == list(range(5))
    assert [number for number in log if number >= 5] == list(range(5, 25))


@pytest.mark.also_real
def test_a_decision_is_about_what_was_known(some_wire, producers):
    """It was also about batches that were parked after the error which the caller had seen."""
    proxy, cluster = some_wire
    topic = harness.new_topic(cluster, 3)
    events = []
    producer = producers(proxy.bootstrap_servers, request_timeout_ms=1000, on_event=events.append)
    for partition in range(3):
        producer.send(topic, b"0", partition=partition).get(60)
    fenced = [proxy.on("Produce", topic=topic, partition=partition) for partition in range(3)]
    for rule in fenced:
        rule.answer_without_forwarding(47)

    def parked():
        return sum(type(event).__name__ == "RecordsUndecidable" for event in events)

    early = [producer.send(topic, b"1", partition=partition) for partition in (0, 1)]
    late = producer.send(topic, b"1", partition=2)
    fenced[2].remove()
    stall = proxy.on("Produce", topic=topic, partition=2).drop(mute=False, forward=False)
    harness.until(lambda: parked() == 2)
    with pytest.raises(UndecidableError, match="The same of 1 more"):
        producer.flush(60)
    stall.remove()
    proxy.on("Produce", topic=topic, partition=2).answer_without_forwarding(47)
    harness.until(lambda: parked() == 3)
    proxy.clear()
    producer.resolve_undecidable(resend=True)
    assert [future.get(60).offset for future in early] == [1, 1]
    assert not late.is_done
    with pytest.raises(UndecidableError, match=f"{topic}-2"):
        producer.flush(60)
    producer.resolve_undecidable(resend=False)
    late.get(60)
    assert harness.end_offset(cluster, topic, 2) == 1
