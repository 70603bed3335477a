"""A broker that forgot the producer, on real brokers old and new: because retention came by, or because data is lost.

What brokers answer to the next batch (KAFKA-5793, "spurious OutOfOrderSequence"):

    ============  ===============================  ==========================================
    Kafka         records removed on purpose       acknowledged records lost
    ============  ===============================  ==========================================
    0.11.0        45, though nothing is wrong      45
    1.0 to 2.3    59, log start > last acked       59, log start <= last acked
    2.8, 4.x      success                          success, at an offset acknowledged before
    ============  ===============================  ==========================================

Whatever it is: the batch is delivered, once and in order. A loss is told with its exact range; what was removed on
purpose is never called a loss. The same with a restart of the producer in between, which has a new producer id then and
only the spool's memory, and with a batch in doubt at that restart, which still has its old one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import shutil
import time

import harness
import pytest
from kafka import KafkaProducer, TopicPartition

from kafkasafe import DataLossError, UndecidableError, events
from kafkasafe.cluster.api import ProduceRequest
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import batch as codec
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

FORGETS = ("1.1.1", "2.3.1")  # answer 59
SPURIOUS = "0.11.0.3"  # answers 45
SILENT = ("2.8.2", "4.3.0")  # answer with success
VERSIONS = (SPURIOUS, *FORGETS, *SILENT)
WITH_TOPIC_IDS = SILENT
RETENTION = (SPURIOUS, *FORGETS)

ACKED = 24  # records acknowledged before something happens
RETAIN = 100_000_000


class Site:
    """A cluster behind a fault proxy. Two brokers where one has to be elected uncleanly."""

    def __init__(self, version: str, stack: contextlib.ExitStack) -> None:
        self.version = version
        nodes = range(1, 3 if version in FORGETS else 2)
        self.proxy = stack.enter_context(FaultProxy(nodes))
        config = {
            # A producer that asks for its deleted topic would create it.
            "auto.create.topics.enable": False,
            # The first check is 30 s after the start of the broker, in all old versions.
            "log.retention.check.interval.ms": 300,
            "min.insync.replicas": 1,
        }
        if version == SPURIOUS:
            config["delete.topic.enable"] = True
        self.cluster = stack.enter_context(
            KafkaCluster(len(nodes), version=version, config=config, proxy_ports=self.proxy.ports)
        )
        self.proxy.connect(self.cluster)
        self.outage: concurrent.futures.Future | None = None
        self.retention: concurrent.futures.Future | None = None

    @property
    def servers(self) -> list[str]:
        return self.proxy.bootstrap_servers

    def topic(self, **more) -> str:
        return harness.new_topic(self.cluster, 1, **{"replication_factor": 1, **more})

    def delete_records(self, topic: str) -> None:
        with self.cluster.admin() as admin:
            admin.delete_records({TopicPartition(topic, 0): -1})

    def recreate(self, *topics: str) -> None:
        for topic in topics:
            self.cluster.delete_topic(topic)
        for topic in topics:
            # ZooKeeper forgets a topic a little later than the brokers.
            for _ in range(100):
                try:
                    self.cluster.create_topic(topic, 1, replication_factor=1)
                    break
                except harness.kafka_errors.TopicAlreadyExistsError:
                    time.sleep(0.1)

    def wipe(self, *topics: str) -> None:
        """A lost disk, of one broker only that has one."""
        self.cluster.kill(1)
        for topic in topics:
            shutil.rmtree(self.cluster.data_dir(1) / f"{topic}-0")
        self.cluster.start(1)
        for topic in topics:
            self.cluster.wait_in_sync(topic)

    def fail_over(self, topics: dict[str, list[Owner]], kept: dict[str, int]) -> None:
        """Records are acknowledged by broker 1 alone; then it dies, and broker 2 leads without them."""
        for topic, owners in topics.items():
            for owner in owners:
                owner.write(kept[topic])
        for topic in topics:
            self.cluster.wait_in_sync(topic)
        self.cluster.kill(2)
        for topic in topics:
            harness.until(lambda topic=topic: self.cluster.partition_state(topic).in_sync == (1,), 120)
        for topic, owners in topics.items():
            for owner in owners:
                owner.write(ACKED - kept[topic])
        for owners in topics.values():
            for owner in owners:
                owner.before()
        self.cluster.kill(1)
        self.cluster.start(2)
        for topic in topics:
            assert self.cluster.leader(topic) == 2
        self.cluster.start(1)
        for topic in topics:
            self.cluster.wait_in_sync(topic)

    def plain_writes(self, topic: str, records: int) -> None:
        """Somebody else writes to the topic."""
        options = {"enable_idempotence": False, "kafka_client": harness.tidy_client}
        with KafkaProducer(bootstrap_servers=self.servers, **options) as plain:
            for _ in range(records):
                plain.send(topic, b"9" * harness.lives.DIGITS)
            plain.flush(60)

    def log(self, topic: str) -> list[int]:
        """Numbers of the records, as a plain consumer reads them, others' left out."""
        numbers = harness.numbers_of(harness.read_log(self.servers, topic)[0])
        return [number for number in numbers if number != int("9" * harness.lives.DIGITS)]


class Owner:
    """A SafeProducer with a spool of its own that writes numbered records to one topic.

    Args:
        site: Where.
        producers: Opens SafeProducers.
        topic: Topic.
        how: "living": it stays. "restarted": it is closed before the fault, and opened after it. "in doubt": the same,
            and one more batch is on disk by then whose request got no answer.
        options: Of the producer.
    """

    def __init__(self, site: Site, producers, topic: str, how: str = "living", **options) -> None:
        self.site, self.topic, self.how = site, topic, how
        self.seen: list = []
        self.raised: list[DataLossError] = []
        self.sent = 0
        options = {"retain_acked_bytes": RETAIN, "request_timeout_ms": 1500, **options}
        spool = producers.spool / topic
        self._open = lambda: producers(site.servers, spool_dir=spool, on_event=self.seen.append, **options)
        self.producer = self._open()

    def write(self, records: int) -> None:
        """Acknowledged, in batches of three."""
        for number in range(self.sent, self.sent + records):
            future = harness.send(self.producer, self.topic, number)
            if number % 3 == 2:
                future.get(60)
        self.sent += records
        self.producer.flush(60)

    def before(self) -> None:
        """Ends the first life, if it is to end."""
        if self.how == "in doubt":
            rule = self.site.proxy.on("Produce", topic=self.topic).hang_up(forward=False)
            harness.send(self.producer, self.topic, self.sent).durable(60)
            self.sent += 1
            rule.wait()
            self.producer.close(timeout=0)
            rule.remove()
        elif self.how == "restarted":
            self.producer.close()

    def resume(self) -> None:
        """The next batch, or the one in doubt."""
        if self.how != "living":
            self.producer = self._open()
        if self.how != "in doubt":
            self._noting(lambda: harness.send(self.producer, self.topic, self.sent))
            self.sent += 1

    def after(self) -> None:
        """The same, until it is delivered, and nothing says any more that something else may be lost."""
        self.resume()
        self._noting(lambda: self.producer.flush(60))

    def _noting(self, call) -> None:
        """A loss is raised once; the same call is possible then."""
        try:
            call()
        except DataLossError as error:
            self.raised.append(error)
            call()

    def close(self) -> None:
        self.producer.close()
        self.counters = self.producer.metrics()["kafkasafe"]

    def events(self, kind: type) -> list:
        return [event for event in self.seen if isinstance(event, kind)]

    def lost(self) -> events.DataLost:
        """The one loss that was told."""
        harness.until(lambda: self.events(events.DataLost), what=f"a loss to be told of {self.topic}")
        (lost,) = self.events(events.DataLost)
        return lost

    def told(self, first: int, *, healed: bool) -> None:
        """Exactly the records from `first` on were called lost, and all of them were put back, or none."""
        lost = self.lost()
        count = ACKED - first
        assert (lost.first_offset, lost.last_offset, lost.records) == (first, ACKED - 1, count), lost
        assert lost.restoring_records == (count if healed else 0), lost
        raised = [(e.topic, e.partition, e.first_offset, e.last_offset, e.records) for e in self.raised]
        assert raised == ([] if healed else [(self.topic, 0, first, ACKED - 1, count)])
        if healed:
            harness.until(lambda: self.events(events.LostRecordsRestored), what=f"{self.topic} to be healed")
            (back,) = self.events(events.LostRecordsRestored)
            assert back.records == count

    def complete(self, first: int = 0, *, kept: int = 0) -> None:
        """The first `kept` records, and all from `first` on, are in the log, once, in order."""
        self.close()
        log = self.site.log(self.topic)
        assert sorted(log) == [*range(kept), *range(first, self.sent)], log
        before = [number for number in log if number < ACKED]
        assert before == sorted(before)


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """All clusters at the same time. What kills brokers comes first; then retention works while the tests run."""
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(len(VERSIONS)) as pool:
        opened = stack.enter_context(harness.Producers(tmp_path_factory.mktemp("spools")))
        stacks = {version: stack.enter_context(contextlib.ExitStack()) for version in VERSIONS}
        made = dict(zip(VERSIONS, pool.map(lambda v: Site(v, stacks[v]), VERSIONS), strict=True))
        for version, site in made.items():
            site.outage = pool.submit(election if version in FORGETS else lost_disk, site, opened)
        concurrent.futures.wait(site.outage for site in made.values())
        for version in RETENTION:
            made[version].retention = pool.submit(retention, made[version], opened)
        yield made
        concurrent.futures.wait(made[version].retention for version in RETENTION)
        for own in stacks.values():
            pool.submit(own.close)


@pytest.fixture
def site(sites, request):
    of = sites[request.param]
    yield of
    of.proxy.clear()


def everywhere(*versions: str):
    return pytest.mark.parametrize("site", versions or VERSIONS, indirect=True)


# --- removed on purpose -----------------------------------------------------------------------------------------------


def retention(site: Site, producers) -> Owner:
    """Retention removes everything under a living producer; then it goes on."""
    owner = Owner(site, producers, site.topic(config={"retention.ms": -1}))
    owner.write(ACKED)
    site.cluster.alter_topic(owner.topic, {"retention.ms": 1})

    def trimmed() -> bool:
        return int(site.cluster.log_segments(owner.topic)[0].stem) == ACKED

    harness.until(trimmed, 120, "retention")
    site.cluster.alter_topic(owner.topic, {"retention.ms": -1})
    owner.after()
    return owner


def harmless(owner: Owner) -> None:
    """Delivered, once, and nobody was alarmed."""
    owner.complete(ACKED)
    assert not owner.events(events.DataLost)
    assert not owner.events(events.RecordsUndecidable)
    version = owner.site.version
    if owner.how == "living":
        # This is what the brokers really did.
        assert owner.counters.get("produce_error_59", 0) == (version in FORGETS)
        assert owner.counters.get("produce_error_45", 0) == (version == SPURIOUS)
    elif owner.how == "in doubt" and version in FORGETS:
        assert owner.counters["produce_error_59"] >= 1


@everywhere(*RETENTION)
def test_retention_is_no_loss(site) -> None:
    harmless(site.retention.result(120))


@everywhere()
def test_deleted_records_are_no_loss(site, producers) -> None:
    owners = [Owner(site, producers, site.topic(), how) for how in ("living", "restarted", "in doubt")]
    for owner in owners:
        owner.write(ACKED)
        owner.before()
        site.delete_records(owner.topic)
    for owner in owners:
        owner.after()
        harmless(owner)


# --- lost -------------------------------------------------------------------------------------------------------------


@everywhere()
def test_a_topic_that_is_created_again(site, producers) -> None:
    """All that was acknowledged is told as lost. It goes into the new topic only where that was asked for."""
    told, healed, restarted, doubtful, raising = owners = [
        Owner(site, producers, site.topic()),
        Owner(site, producers, site.topic(), restore_recreated_topics=True),
        Owner(site, producers, site.topic(), "restarted"),
        Owner(site, producers, site.topic(), "in doubt", restore_recreated_topics=True),
        Owner(site, producers, site.topic(), on_data_loss="raise"),
    ]
    for owner in owners:
        owner.write(ACKED)
        owner.before()
    site.recreate(*(owner.topic for owner in owners))
    for owner in owners:
        owner.after()
    told.told(0, healed=False)
    healed.told(0, healed=True)
    restarted.told(0, healed=False)
    doubtful.told(0, healed=True)
    raising.told(0, healed=False)
    for owner in (told, restarted, raising):
        owner.complete(ACKED)
        if site.version not in WITH_TOPIC_IDS:
            assert "no topic ids are known" in owner.lost().evidence
    healed.complete()
    doubtful.complete()


@everywhere(*FORGETS)
def test_an_unclean_election(site) -> None:
    site.outage.result()


def election(site: Site, producers) -> None:
    """Of a follower that has half of it, and of one that has nothing."""

    def owner(how: str = "living", **options) -> Owner:
        topic = ""
        while not topic or site.cluster.leader(topic) != 1:  # clients cannot place replicas before Kafka 2.4
            topic = site.topic(replication_factor=2, config={"unclean.leader.election.enable": True})
        return Owner(site, producers, topic, how, **options)

    half = ACKED // 2
    shorter = [owner(), owner("restarted"), owner("in doubt"), owner(on_data_loss="raise")]
    empty = [owner(), owner("restarted", restore_recreated_topics=True), owner(restore_recreated_topics=True)]
    kept = {o.topic: half for o in shorter} | {o.topic: 0 for o in empty}
    site.fail_over({o.topic: [o] for o in (*shorter, *empty)}, kept)
    for o in (*shorter, *empty):
        o.after()
    for o in shorter[:3]:
        o.told(half, healed=True)
        o.complete()
    shorter[3].told(half, healed=False)
    shorter[3].complete(ACKED, kept=half)
    empty[0].told(0, healed=False)
    empty[0].complete(ACKED)
    for o in empty[1:]:
        o.told(0, healed=True)
        o.complete()


@everywhere(SPURIOUS, *SILENT)
def test_a_wiped_log(site) -> None:
    site.outage.result()


def lost_disk(site: Site, producers) -> None:
    """Of the new brokers' answers only the offset tells. 0.11 says 45, as it does when nothing is wrong."""
    heal = {} if site.version in WITH_TOPIC_IDS else {"restore_recreated_topics": True}
    owners = [
        Owner(site, producers, site.topic(), **heal),
        Owner(site, producers, site.topic(), "restarted", **heal),
        Owner(site, producers, site.topic(), "in doubt", **heal),
        Owner(site, producers, site.topic(), on_data_loss="raise"),
    ]
    for owner in owners:
        owner.write(ACKED)
        owner.before()
    site.wipe(*(owner.topic for owner in owners))
    for owner in owners:
        owner.after()
    for owner in owners[:3]:
        owner.told(0, healed=True)
        owner.complete()
    owners[3].told(0, healed=False)
    owners[3].complete(ACKED)


@everywhere()
def test_a_loss_that_others_wrote_over(site, producers) -> None:
    """The log is longer than what was acknowledged again: what is acknowledged next tells nothing."""
    # Too late for the check of the log's end, where something else is to tell.
    check_ms = 1000 if site.version in WITH_TOPIC_IDS else 600_000
    owners = [
        Owner(site, producers, site.topic(), restore_recreated_topics=True, data_loss_check_ms=check_ms)
    ]
    if site.version in WITH_TOPIC_IDS:
        owners += [Owner(site, producers, site.topic(), "restarted", restore_recreated_topics=True)]
    for owner in owners:
        owner.write(ACKED)
        owner.before()
    site.recreate(*(owner.topic for owner in owners))
    for owner in owners:
        site.plain_writes(owner.topic, 2 * ACKED)
        owner.after()
        owner.told(0, healed=True)
        owner.complete()
        if site.version in WITH_TOPIC_IDS:
            assert owner.lost().reason == "topic id"
            continue
        code, reason = (45, "sequence") if site.version == SPURIOUS else (59, "unknown producer")
        assert owner.counters[f"produce_error_{code}"] >= 1
        assert owner.lost().reason == reason


# --- codes that no broker sends, or no broker any more ----------------------------------------------------------------


@everywhere("1.1.1", "4.3.0")
@pytest.mark.parametrize("code", [46, 22, 45, 47, 90])
def test_an_appended_batch_is_delivered_whatever_is_answered(site, producers, code) -> None:
    """46 means just that. What the others mean the broker is asked."""
    owner = Owner(site, producers, site.topic())
    owner.write(3)
    rule = site.proxy.on("Produce", topic=owner.topic).answer(code, times=1)
    owner.write(21)
    assert rule.hits == 1
    owner.complete()
    assert not owner.events(events.DataLost)
    assert not owner.events(events.RecordsUndecidable)


@everywhere("1.1.1", "4.3.0")
@pytest.mark.parametrize("log_start_offset", [-1, 0, 2**63 - 1])
def test_59_of_a_log_that_has_everything(site, producers, log_start_offset) -> None:
    """It says that nothing was appended; where the log starts it need not say, or may say wrongly."""
    owner = Owner(site, producers, site.topic())
    owner.write(3)
    rule = site.proxy.on("Produce", topic=owner.topic)
    rule.answer_without_forwarding(59, times=1, log_start_offset=log_start_offset)
    owner.write(21)
    assert rule.hits == 1
    owner.complete()
    assert not owner.events(events.DataLost)


@everywhere("1.1.1", "4.3.0")
def test_a_newer_owner_of_the_producer_id_stops_the_partition(site, producers) -> None:
    """As a copy of the spool would, somebody writes under the next epoch of the same producer id."""
    owner = Owner(site, producers, site.topic())
    owner.write(6)
    producer_id = owner.producer._pump.lanes[0].journal.views.producer_id
    steal(site, owner.topic, producer_id)
    futures = [harness.send(owner.producer, owner.topic, number) for number in range(6, 9)]
    with pytest.raises(UndecidableError, match=f"fenced: .* a newer epoch .*producer_id={producer_id}"):
        owner.producer.flush(60)
    (parked,) = owner.events(events.RecordsUndecidable)
    assert parked.records == 3
    # It waits, in the next life as well, until somebody decides.
    owner.producer.close(timeout=0)
    owner.producer = owner._open()
    with pytest.raises(UndecidableError):
        owner.producer.flush(60)
    assert not any(future.is_done and future.succeeded() for future in futures)
    owner.producer.resolve_undecidable(resend=True)
    owner.sent = 9
    owner.write(3)
    owner.complete()
    assert not owner.events(events.DataLost)


def steal(site: Site, topic: str, producer_id: int) -> None:
    """One record of another owner, under the next epoch."""
    data = codec.encode(None, [b"9" * harness.lives.DIGITS], timestamps=int(time.time() * 1000))
    codec.stamp_identity(data, producer_id, 1, 0)
    answers: list = []
    thief = over_sockets({"bootstrap_servers": site.servers, "client_id": "thief"})
    thief.start()
    try:
        thief.refresh_metadata([topic], answers.append)
        harness.until(lambda: answers, 120)
        request = ProduceRequest(None, topic, 0, data, 0)
        thief.produce([request], -1, 5000, lambda _, reply: answers.append(reply))
        harness.until(lambda: len(answers) == 2, 120)
    finally:
        thief.close(5)
    assert answers[1].error_code == 0, answers
