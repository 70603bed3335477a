"""`spool="never"`: no file at all. What is acknowledged is safe; what is not is lost with the process, and no more."""

from __future__ import annotations

import collections
import json
import os
import random
import textwrap
import time

import harness
import lives
import numpy as np
import pytest
from programs import python

from kafkasafe import (
    ConfigError,
    DataLossError,
    DeliveryTimeoutError,
    RejectedError,
    SafeProducer,
    SpoolFullError,
    events,
)
from kafkasafe.demo.ledger import Ledger

MIB = 1024 * 1024


@pytest.fixture
def unspooled(broker):
    """Opens producers that have no spool; closes what a failed test leaves open."""
    opened: list[SafeProducer] = []

    def life(**options) -> SafeProducer:
        opened.append(SafeProducer(bootstrap_servers=broker.servers, spool="never", **options))
        return opened[-1]

    yield life
    for producer in opened:
        producer.parts.lifecycle.end(producer.parts.lifecycle.closed or RuntimeError("the test is over"))
        producer._pump.stop(10.0)


def outage(broker) -> None:
    broker.proxy.refuse()
    broker.proxy.cut()


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [
        {"spool_dir": "/somewhere"},
        {"spool_lane": 1},
        {"spool_segment_bytes": 2 * MIB},
        {"spool_sync": "os"},
        {"spool_after_ms": 5},
        {"rejected_max_bytes": 5},
        {"retain_acked_bytes": 5},
        {"retain_acked_ms": 5000},
        {"restore_recreated_topics": True},
        {"on_corrupt": "quarantine"},
    ],
    ids=lambda option: next(iter(option)),
)
def test_an_option_about_files_is_refused(option):
    (name,) = option
    with pytest.raises(ConfigError, match=rf"spool='never' writes no file, so {name}="):
        SafeProducer(bootstrap_servers=harness.dead_address(), spool="never", **option)


def test_a_record_must_fit_into_memory_four_times():
    with pytest.raises(ConfigError, match="spool_max_bytes=80000000 or more"):
        SafeProducer(bootstrap_servers=harness.dead_address(), spool="never", max_request_size=20_000_000)


# -- no file -----------------------------------------------------------------------------------------------------------

SCRIPT = """
    import json, os, sys
    from kafkasafe import SafeProducer

    touched = []
    CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}

    def watch(event, args):
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (writes and args[0] not in {os.devnull, b"/dev/null"}) or event in CHANGES or event == "fcntl.flock":
            touched.append(f"{event} {args!r}")

    sys.addaudithook(watch)
    with SafeProducer(bootstrap_servers=sys.argv[1].split(","), spool="never") as producer:
        for number in range(500):
            future = producer.send(sys.argv[2], b"%d" % number)
        future.durable(60)
        where = producer.spool_dir
    json.dump([touched, where, future.get(0).offset], sys.stdout)
"""


@pytest.mark.kafka
def test_no_file_is_written_and_no_home_is_needed(kafka):
    """As in a container with a read-only root file system, run by a user whom /etc/passwd does not know."""
    topic = harness.new_topic(kafka, 1)
    environment = {
        name: value for name, value in os.environ.items() if name not in {"XDG_STATE_HOME", "TMPDIR"}
    }
    # The directory is for the other producers of the machine.
    environment |= {
        "HOME": "/nonexistent",
        "KAFKASAFE_SPOOL_DIR": "/nonexistent/spool",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = python("-c", textwrap.dedent(SCRIPT), ",".join(kafka.bootstrap_servers), topic, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], None, 499]


# -- as with a spool ---------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_once_and_in_order_through_lost_answers_and_cut_connections(broker, unspooled):
    topic = harness.new_topic(broker.cluster, 3)
    seen: list = []
    producer = unspooled(on_event=seen.append, batch_size=3000, request_timeout_ms=3000)
    futures = []
    called: list[int] = []
    for number in range(3000):
        futures.append(harness.send(producer, topic, number))
        futures[-1].add_callback(lambda metadata: called.append(metadata.offset))
        if number % 500 == 250:
            # What is on its way may be appended, and its answer is gone.
            broker.proxy.cut()
    producer.flush(120)
    assert [future.succeeded() for future in futures] == [True] * 3000
    assert len(called) == 3000
    log = harness.read_log(broker.servers, topic)
    harness.audit(log, range(3000))
    assert sum(map(len, log.values())) == 3000
    assert sum(event.records for event in seen if isinstance(event, events.RecordsCommitted)) == 3000
    assert producer.metrics(raw=True)["records_committed"] == 3000
    producer.close()


@pytest.mark.kafka
def test_memory_is_bounded_in_an_outage_and_nothing_accepted_is_dropped(broker, unspooled):
    topic = harness.new_topic(broker.cluster, 1)
    producer = unspooled(spool_max_bytes=16 * MIB, max_request_size=MIB, max_block_ms=300)
    harness.send(producer, topic, 0).get(60)
    outage(broker)
    value = b"." * 100_000
    futures: list = []

    def fill() -> None:
        while len(futures) < 1000:
            futures.append(producer.send(topic, b"%0*d" % (lives.DIGITS, len(futures) + 1) + value))

    with pytest.raises(
        SpoolFullError, match=r"No room in memory \(spool='never', spool_max_bytes=16777216\)"
    ):
        fill()
    kept = {definition.name: number for definition, _, number in producer.metric_samples()}
    assert 10 * MIB < kept["spool_bytes"] <= kept["spool_capacity_bytes"] == 16 * MIB
    assert producer.metrics(raw=True).get("fsync_count", 0) == 0
    # The journal's own notes are no growth that nobody counts.
    assert producer._pump.ledger.room.used < 2 * MIB
    with pytest.raises(
        harness.kafka_errors.KafkaTimeoutError,
        match="in memory and will be delivered while this producer is open",
    ):
        producer.durable(0.1)
    with pytest.raises(
        harness.kafka_errors.KafkaTimeoutError, match=r"was not durable .* Brokers cannot be used"
    ):
        futures[0].durable(0.1)
    broker.proxy.restore()
    producer.durable(120)
    assert {d.name: n for d, _, n in producer.metric_samples()}["spool_bytes"] == 0
    numbers = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
    assert numbers == list(range(len(futures) + 1))
    producer.close()


@pytest.mark.kafka
def test_what_is_rejected_goes_to_its_future_and_to_the_handler(broker, unspooled):
    topic = harness.new_topic(broker.cluster, 1, config={"max.message.bytes": 5000})
    letters: list = []
    seen: list = []
    producer = unspooled(on_rejected=lambda **letter: letters.append(letter), on_event=seen.append)
    before = producer.send(topic, b"before")
    bad = producer.send(topic, b"x" * 20_000, b"key")
    after = producer.send(topic, b"after")
    with pytest.raises(RejectedError, match="With spool='never' no copy is kept"):
        bad.get(60)
    with pytest.raises(RejectedError):
        bad.durable(60)
    assert (before.get(60).offset, after.get(60).offset) == (0, 1)
    ((letter,), (event,)) = letters, [e for e in seen if isinstance(e, events.RecordsRejected)]
    assert (letter["key"], letter["value"], letter["error"]) == (b"key", b"x" * 20_000, bad.exception)
    assert (event.records, event.code, event.kept_in) == (1, 10, "")
    producer.close()


# -- what is lost ------------------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_close_says_how_much_is_lost(broker, unspooled, caplog):
    topic = harness.new_topic(broker.cluster, 1)
    producer = unspooled()
    harness.send(producer, topic, 0).get(60)
    outage(broker)
    futures = [harness.send(producer, topic, number) for number in range(1, 8)]
    errors: list = []
    futures[3].add_errback(errors.append)
    with pytest.raises(DeliveryTimeoutError, match="7 records had not been acknowledged when it was closed"):
        producer.close(timeout=0.2)
    assert {type(future.exception) for future in futures} == {DeliveryTimeoutError}
    harness.until(lambda: errors)  # close() had 0.2 s for all
    assert errors == [futures[3].exception]
    assert "7 records had not been acknowledged" in caplog.text
    producer.close()  # once is enough


@pytest.mark.kafka
def test_a_loss_of_the_cluster_is_raised(broker, unspooled):
    topic = harness.new_topic(broker.cluster, 1)
    seen: list = []
    producer = unspooled(on_event=seen.append, request_timeout_ms=3000)
    for number in range(10):
        harness.send(producer, topic, number).get(60)
    broker.cluster.lose_log(topic)
    harness.send(producer, topic, 10)
    with pytest.raises(DataLossError, match="With spool='never' no copy of them is left"):
        producer.flush(120)
    (lost,) = [event for event in seen if isinstance(event, events.DataLost)]
    assert (lost.first_offset, lost.last_offset, lost.records) == (0, 9, 10)
    producer.close()


@pytest.mark.kafka
def test_a_delivery_timeout_ends_the_future_and_not_the_record(broker, unspooled):
    topic = harness.new_topic(broker.cluster, 1)
    producer = unspooled(delivery_timeout_ms=500)
    harness.send(producer, topic, 0).get(60)
    outage(broker)
    future = harness.send(producer, topic, 1)
    with pytest.raises(DeliveryTimeoutError, match="in memory, as long as this producer lives"):
        future.durable(60)
    broker.proxy.restore()
    harness.until(lambda: broker.end_offset(topic) == 2, 120, "the record")
    producer.close()


def test_what_a_delivery_timeout_gave_up_is_waited_for(fake_kafka):
    """close() found nothing to wait for, although the cluster was back, and ended with what was to be delivered."""
    fake_kafka.create_topic("orders", partitions=1)
    fake_kafka.refuse()
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool="never", delivery_timeout_ms=100
    )
    future = producer.send("orders", b"one")
    with pytest.raises(DeliveryTimeoutError, match="do not send it again"):
        future.get(120)
    with pytest.raises(
        harness.kafka_errors.KafkaTimeoutError,
        match="The others stay in memory, even after delivery_timeout_ms",
    ):
        producer.durable(0.1)
    fake_kafka.restore()
    producer.close()
    assert fake_kafka.values("orders") == [b"one"]


@pytest.mark.kafka
@pytest.mark.crash
def test_kill_9_loses_no_more_than_was_not_acknowledged(kafka, zygote, tmp_path):
    """The loss window, measured: each life is killed while records flow, and the next one is the program's own resend."""
    kills, limit = 12, 400_000
    rnd = random.Random(20)
    topic = harness.new_topic(kafka, 3)
    ledger = Ledger(tmp_path / "ledger", limit)
    acked, accepted = ledger["acked"], ledger["accepted"]
    for _ in range(kills):
        ledger.set_limit(limit)
        life = zygote.stream(
            tmp_path,
            kafka.bootstrap_servers,
            topic,
            rnd.getrandbits(31),
            pause_s=0.002,
            options={"spool": "never", "batch_size": 20_000},
        )
        before = acked.sum()
        harness.until(lambda: acked.sum() > before + 300 or life.ended() is not None, 120)  # noqa: B023
        time.sleep(rnd.random() * 0.05)
        assert life.kill() == -9, life.tail()
    log = harness.read_log(kafka.bootstrap_servers, topic)
    # Every acknowledged record is there; whatever is there is there once, and in order.
    harness.audit(log, np.flatnonzero(acked | ledger["durable"]).tolist())
    found = {number for records in log.values() for number in harness.numbers_of(records)}
    lost = set(np.flatnonzero(accepted).tolist()) - found
    unacknowledged = set(np.flatnonzero(accepted.astype(bool) & ~acked.astype(bool)).tolist())
    assert lost <= unacknowledged
    assert not (tmp_path / "spool").exists()
    # A program that sends again what it has no acknowledgement of has twice at most what was appended without one.
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool="never") as producer:
        for number in sorted(unacknowledged):
            harness.send(producer, topic, number)
    log = harness.read_log(kafka.bootstrap_servers, topic)
    copies = collections.Counter(number for records in log.values() for number in harness.numbers_of(records))
    assert set(copies) >= set(np.flatnonzero(accepted).tolist())
    assert {number for number, count in copies.items() if count > 1} == unacknowledged - lost
    print(
        f"{int(accepted.sum())} accepted, {kills} kills: {len(lost)} lost, {len(unacknowledged - lost)} twice"
    )
