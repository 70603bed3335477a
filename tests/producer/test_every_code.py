"""Every code of Kafka's, and codes that do not exist yet, in every answer that a producer reads.

One partition (or topic, or producer) for each code, all at once behind one fault proxy. Whatever the code: nothing is
lost, nothing is there twice or behind a later record, no partition is asked more than ten times a second, and each
record ends as delivered or as `RejectedError`.
"""

from __future__ import annotations

import bisect
import collections
import logging
import time
from dataclasses import dataclass

import harness
import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

from kafkasafe import RejectedError, SafeProducer, UndecidableError
from kafkasafe.codes.verdicts import AnswerAction, classify_produce
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka

CODES = [-1, *range(1, 134), 134, 999]
MAX_PER_S = 10
HELD_S = 2.5  # how long an error lasts that does not end by itself

FINAL = {code for code in CODES if classify_produce(code).action is AnswerAction.REJECT_BATCH}
# A newer epoch of our producer id wrote to the partition, says the leader: what is not in the log is for the user to
# decide, until then the partition waits.
FENCED = {47, 90}


@dataclass
class Wire:
    proxy: FaultProxy
    cluster: KafkaCluster

    @property
    def servers(self) -> list[str]:
        return self.proxy.bootstrap_servers

    def topic(self, partitions: int = len(CODES)) -> str:
        return harness.new_topic(self.cluster, partitions)


@pytest.fixture(scope="module")
def brokers():
    config = {"auto.create.topics.enable": False}
    with FaultProxy() as proxy, KafkaCluster(1, config=config, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield Wire(proxy, cluster)


@pytest.fixture
def wire(brokers):
    brokers.proxy.forget()
    yield brokers
    brokers.proxy.clear()
    brokers.proxy.cut()  # muted connections
    assert not brokers.proxy.errors


@pytest.fixture
def quick(wire, producers, caplog):
    """A producer; at the end no thread of it may have died, and nothing may have been logged as a bug."""

    def open_one(**options):
        return producers(wire.servers, **{"request_timeout_ms": 3000, **options})

    caplog.set_level(logging.ERROR)
    yield open_one
    crashes = [r for r in caplog.get_records("call") if r.exc_info or "ended by an error" in r.getMessage()]
    assert not crashes, crashes


class Records:
    """What was sent, and how it ended."""

    def __init__(self, producer: SafeProducer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.sent = collections.defaultdict(list)  # by partition: (number, future), in order

    def send(self, partitions, each: int = 1) -> None:
        """One batch to each partition."""
        for partition in partitions:
            for _ in range(each):
                number = len(self.sent[partition])
                value = b"%0*d" % (harness.lives.DIGITS, number)
                future = self.producer.send(self.topic, value, partition=partition)
                self.sent[partition].append((number, future))
        self.producer.durable()

    def settle(self, timeout_s: float = 150.0, *, parked: set[int] = frozenset()) -> dict[int, list]:
        """Waits for all. Returns what was rejected, by partition; anything else is an error.

        Of partitions in `parked` the producer must say that they wait for a decision; it is then made.
        """
        if parked:
            rejected = self._settle(set(self.sent) - parked, timeout_s)
            # A decision is about the batches that wait for one at this moment.
            harness.until(lambda: self.producer.health().undecidable_batches == len(parked), timeout_s)
            with pytest.raises(UndecidableError, match="cannot be known"):
                self.producer.flush(timeout_s)
            self.producer.resolve_undecidable(resend=True)
            return rejected | self._settle(parked, timeout_s)
        return self._settle(set(self.sent), timeout_s)

    def _settle(self, partitions: set[int], timeout_s: float) -> dict[int, list]:
        deadline = time.monotonic() + timeout_s
        rejected = collections.defaultdict(list)
        stuck = []
        for partition in sorted(partitions):
            for number, future in self.sent[partition]:
                try:
                    future.get(max(0.01, deadline - time.monotonic()))
                except RejectedError as error:
                    rejected[partition].append(error)
                except harness.kafka_errors.KafkaTimeoutError as error:
                    stuck.append((partition, number, error))
        assert not stuck, stuck[:5]
        return rejected

    def settle_or_decide(self, timeout_s: float = 150.0) -> set[int]:
        """Waits for all; what is left undecidable is sent again. Returns the partitions where that was so."""
        decided: set[int] = set()
        deadline = time.monotonic() + timeout_s
        while open_ := {p for p, records in self.sent.items() if not all(f.is_done for _, f in records)}:
            assert time.monotonic() < deadline, open_
            try:
                self.producer.flush(0.5)
            except UndecidableError:
                decided |= open_
                self.producer.resolve_undecidable(resend=True)
            except harness.kafka_errors.KafkaTimeoutError:
                pass
        assert not self.settle(1.0)
        return decided

    def audit(self, servers, *, twice: set[int] = frozenset(), log: harness.Log | None = None) -> None:
        """What was delivered is there, once and in order. Partitions in `twice` are not held to the latter two."""
        log = harness.read_log(servers, self.topic) if log is None else log
        bad = {}
        for partition, records in self.sent.items():
            found = harness.numbers_of(log[partition])
            delivered = {number for number, future in records if future.succeeded()}
            if not delivered <= set(found):
                bad[partition] = ("lost", sorted(delivered - set(found)), found)
            elif partition not in twice and found != sorted(set(found)):
                bad[partition] = ("twice or out of order", found)
        assert not bad, (len(bad), sorted(bad.items())[:10])


def read_topics(servers, topics) -> dict[str, harness.Log]:
    """Many topics of one partition, by one consumer."""
    where = [TopicPartition(topic, 0) for topic in topics]
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", max_poll_records=10_000)
    try:
        consumer.assign(where)
        ends = consumer.end_offsets(where)
        logs = {topic: {0: []} for topic in topics}
        deadline = time.monotonic() + 30
        while any(consumer.position(tp) < ends[tp] for tp in where):
            assert time.monotonic() < deadline
            for tp, records in consumer.poll(timeout_ms=500).items():
                logs[tp.topic][0] += records
    finally:
        consumer.close()
    return logs


def peak(times: list[float]) -> float:
    """The most in a second, in any two of them: what was sent a second ago may arrive late on a busy machine."""
    return max((bisect.bisect_left(times, first + 2) - i for i, first in enumerate(times)), default=0) / 2


def busy(wire: Wire, *topics: str) -> dict:
    """Partitions that were asked too often in any second, with how often; partition -1 is the topic's metadata."""
    times = collections.defaultdict(list)
    for call in wire.proxy.requests():
        for where in call.partitions:
            if where[0] in topics:
                times[call.client_id, *where].append(call.time)
    # One Metadata request serves all partitions. They are 0.1 s apart, so that with some jitter 11 begin in a second.
    return {where: count for where, at in times.items() if (count := peak(at)) > MAX_PER_S + (where[-1] < 0)}


# --- Produce ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("forwarded", [True, False], ids=["appended", "not-appended"])
def test_every_code_to_produce(wire, quick, forwarded, lasting) -> None:
    topic = wire.topic()
    partitions = range(len(CODES))
    producer = quick()
    records = Records(producer, topic)
    records.send(partitions)
    records.settle()
    rules = {}
    for partition, code in enumerate(CODES):
        rule = wire.proxy.on("Produce", topic=topic, partition=partition)
        how = rule.answer if forwarded else rule.answer_without_forwarding
        rules[partition] = how(code, times=None if lasting else 1)
    wire.proxy.forget()
    records.send(partitions, each=2)
    records.send(partitions)
    if lasting:
        time.sleep(HELD_S)
        harness.until(lambda: all(rule.hits for rule in rules.values()))
        wire.proxy.clear()
    undecidable = set() if forwarded else {p for p, code in enumerate(CODES) if code in FENCED}
    rejected = records.settle(parked=undecidable)
    assert all(rule.hits for rule in rules.values())
    assert not busy(wire, topic)
    for partition, errors in rejected.items():
        assert CODES[partition] in FINAL
        assert {error.code for error in errors} == {CODES[partition]}
    # Also where the broker appends a batch and then says that it did not.
    records.audit(wire.servers)


# --- what it asks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("api", ["DescribeProducers", "ListOffsets", "Fetch"])
def test_every_code_to_a_question(wire, quick, api, lasting) -> None:
    """Asked before the first send (ListOffsets), and when a batch is in doubt."""
    topic = wire.topic()
    partitions = range(len(CODES))
    proxy = wire.proxy
    records = Records(quick(blocked_timeout_ms=600_000), topic)
    if api != "ListOffsets":
        records.send(partitions)
        records.settle()
    # Of every second partition the batch in doubt is in the log. If nothing is behind the last acknowledged one, there
    # is nothing to read.
    for partition in partitions:
        rule = proxy.on("Produce", topic=topic, partition=partition)
        (rule.answer if partition % 2 or api == "Fetch" else rule.answer_without_forwarding)(7, times=1)
    if api == "Fetch":
        # A leader that forgot the producer: the log must be read.
        proxy.on("DescribeProducers", topic=topic).set(active_producers=[])
    rules = [
        proxy.on(api, topic=topic, partition=partition).answer(code, times=None if lasting else 1)
        for partition, code in enumerate(CODES)
    ]
    proxy.forget()
    records.send(partitions, each=2)
    if lasting:
        time.sleep(HELD_S)
        harness.until(lambda: all(rule.hits for rule in rules))
        proxy.clear()
    rejected = records.settle()
    assert not {code: rule for code, rule in zip(CODES, rules, strict=True) if not rule.hits}
    assert not busy(wire, topic)
    assert not rejected
    records.audit(wire.servers)


def test_every_code_to_metadata(wire, quick) -> None:
    """Of a topic, when it is first looked for, and again when a leader is."""
    topics = {code: f"t-metadata-{code}" for code in CODES}
    with wire.cluster.admin() as admin:
        admin.create_topics([NewTopic(topic, 1, 1) for topic in topics.values()])
    producer = quick(blocked_timeout_ms=600_000)
    everything = {code: Records(producer, topic) for code, topic in topics.items()}
    proxy = wire.proxy
    proxy.forget()
    first = [proxy.on("Metadata", topic=topic).answer(code, times=2) for code, topic in topics.items()]
    for code, records in everything.items():
        number = len(records.sent[0])
        future = producer.send(topics[code], b"%0*d" % (harness.lives.DIGITS, number))
        records.sent[0].append((number, future))
    assert not {code for code, records in everything.items() if records.settle()}
    assert all(rule.hits == 2 for rule in first)
    again = [proxy.on("Metadata", topic=topic).answer(code, times=2) for code, topic in topics.items()]
    moved = [proxy.on("Produce", topic=topic).answer(6, times=1) for topic in topics.values()]
    for code in CODES:
        everything[code].send([0])
    assert not {code for code, records in everything.items() if records.settle()}
    assert not {code: rule for code, rule in zip(CODES, again, strict=True) if not rule.hits}
    assert all(rule.hits for rule in moved)
    assert not busy(wire, *topics.values())
    proxy.forget()  # what is left of `again` is not for the reader
    logs = read_topics(wire.servers, topics.values())
    for records in everything.values():
        records.audit(wire.servers, log=logs[records.topic])


def test_every_code_to_init_producer_id(wire, producers, tmp_path, caplog) -> None:
    """A producer asks once in its life: several producers, each of which is told a part of the codes, one by one."""
    topic = wire.topic(len(CODES))
    shares = [CODES[i::17] for i in range(17)]
    rules = []
    for index, share in enumerate(shares):
        left = list(share)

        def tell(exchange, left=left) -> None:
            exchange.response.error_code = left.pop(0)
            exchange.response.producer_id = -1

        rule = wire.proxy.on("InitProducerId").edit(tell, times=len(share))
        rules.append(rule.when(lambda exchange, name=f"c{index}": exchange.call.client_id == name))
    everything = []
    for index in range(len(shares)):
        producer = producers(wire.servers, client_id=f"c{index}", request_timeout_ms=3000)
        everything.append(Records(producer, topic))
        everything[-1].send([index])
    for records in everything:
        assert not records.settle()
    assert [rule.hits for rule in rules] == [len(share) for share in shares]
    times = collections.defaultdict(list)
    for call in wire.proxy.requests("InitProducerId"):
        times[call.client_id].append(call.time)
    assert max(map(peak, times.values())) <= MAX_PER_S
    log = harness.read_log(wire.servers, topic)
    for records in everything:
        records.audit(wire.servers, log=log)
    assert not [r for r in caplog.records if r.name.startswith("kafkasafe") and r.exc_info]


def test_who_waits_is_told_that_the_cluster_grants_no_producer_id(wire, producers, caplog) -> None:
    """Without IDEMPOTENT_WRITE, brokers before 2.8 grant none. The errors gave no reason, and the log said it at INFO."""

    def deny(exchange) -> None:
        exchange.response.error_code = 31
        exchange.response.producer_id = -1

    topic = wire.topic(1)
    wire.proxy.on("InitProducerId").edit(deny)
    producer = producers(wire.servers)
    future = producer.send(topic, b"1")
    why = r"grants no producer id.*CLUSTER_?AUTHORIZATION_?FAILED.*IDEMPOTENT_WRITE"
    caplog.set_level(logging.WARNING)

    def is_logged():
        return any(getattr(record, "event", "") == "no_producer_id" for record in caplog.records)

    harness.until(is_logged)
    for wait in (future.get, producer.flush):
        with pytest.raises(WaitTimeoutError, match=f"(?i){why}"):
            wait(1)
    wire.proxy.clear()
    assert future.get(60).offset == 0


# --- answers that cannot be ------------------------------------------------------------------------------------------

ABSURD = [-(2**63), -(2**31), -7, -2, 0, 1, 2**31, 2**62, 2**63 - 1]


def test_absurd_offsets(wire, quick) -> None:
    """Base offsets and log start offsets that no log can have, beside success and beside 59."""
    cases = [
        {"code": code, name: value} for code in (0, 59) for name in ("base_offset", "log_start_offset") for value in ABSURD
    ]  # fmt: skip
    topic = wire.topic(len(cases))
    records = Records(quick(), topic)
    records.send(range(len(cases)), each=3)
    records.settle()
    for partition, case in enumerate(cases):
        rule = wire.proxy.on("Produce", topic=topic, partition=partition)
        (rule.answer_without_forwarding if case["code"] else rule.answer)(**case, times=1)
    wire.proxy.forget()
    for _ in range(3):
        records.send(range(len(cases)))
        time.sleep(0.2)
    assert not records.settle()
    assert not busy(wire, topic)
    records.audit(wire.servers)


@pytest.mark.parametrize("field", ["offset", "leader_epoch"])
def test_absurd_answers_about_the_log(wire, quick, field) -> None:
    """What ListOffsets says before the first send, and when batches are in doubt and the log must be read."""
    values = ABSURD if field == "offset" else [v for v in ABSURD if -(2**31) <= v < 2**31]
    topic = wire.topic(2 * len(values))
    records = Records(quick(), topic)
    proxy = wire.proxy
    early, late = range(len(values)), range(len(values), 2 * len(values))
    for partition, value in enumerate(values):
        proxy.on("ListOffsets", topic=topic, partition=partition).set(**{field: value}, times=1)
    records.send(early)
    records.send(late)
    records.settle()
    proxy.on("DescribeProducers", topic=topic).set(active_producers=[], times=len(values))
    for partition, value in zip(late, values, strict=True):
        proxy.on("Produce", topic=topic, partition=partition).answer(7, times=1)
        proxy.on("ListOffsets", topic=topic, partition=partition).set(**{field: value}, times=2)
    proxy.forget()
    records.send([*early, *late])
    time.sleep(HELD_S)
    proxy.clear()
    assert not busy(wire, topic)
    decided = records.settle_or_decide()
    assert not busy(wire, topic)
    records.audit(wire.servers, twice=decided)


@pytest.mark.parametrize("api", ["Produce", "ListOffsets", "DescribeProducers", "Metadata", "Fetch"])
def test_answers_about_what_nobody_asked(wire, quick, api) -> None:
    """Another partition, another topic; and nothing about what was asked."""
    proxy = wire.proxy
    topic = wire.topic(6)
    records = Records(quick(), topic)
    records.send(range(6))
    records.settle()
    if api == "Metadata":
        proxy.on(api).add("t-nobody", 3, error_code=3, leader_id=77).add(topic, 4711, leader_id=99)
        proxy.on(api, topic=topic).leave_out(times=2)
    else:
        proxy.on(api).add("t-nobody", 3).add(topic, 4711, error_code=3).add(topic, -5)
        for partition in range(3):
            proxy.on(api, topic=topic, partition=partition).leave_out(times=2)
    if api != "Produce":
        proxy.on("DescribeProducers", topic=topic).set(active_producers=[], times=12)
        for partition in range(6):
            proxy.on("Produce", topic=topic, partition=partition).answer(6, times=1)
    proxy.forget()
    records.send(range(6), each=2)
    time.sleep(HELD_S / 2)
    proxy.clear()
    assert not records.settle()
    assert not busy(wire, topic)
    records.audit(wire.servers)


@pytest.mark.parametrize("hang_up", [False, True], ids=["whole-frame", "connection-ends"])
def test_answers_that_end_too_early(wire, producers, caplog, hang_up) -> None:
    """Each answer on a producer's way, from the first, cut at ever more places."""
    proxy = wire.proxy
    sizes = [0, 1, 3, 4, 5, 8, 12, 20, 33, 60]
    asked = [
        "ApiVersions",
        "Metadata",
        "InitProducerId",
        "ListOffsets",
        "Produce",
        "DescribeProducers",
        "Fetch",
    ]
    topic = wire.topic(len(asked))
    everything = []
    rules = []
    for partition, api in enumerate(asked):
        rule = None
        for size in sizes:
            rule = proxy.on(api).truncate(size, times=1, hang_up=hang_up)
            # One after another: a rule begins when the one before it has acted.
            before = rules[-1] if rules and rules[-1]._does.api is rule._does.api else None
            name = f"cut-{api}-{hang_up}"
            rule.when(
                lambda exchange, name=name, before=before: (
                    exchange.call.client_id == name and (before is None or before.hits)
                )
            )
            rules.append(rule)
        if api in {"DescribeProducers", "Fetch"}:
            proxy.on("Produce", topic=topic, partition=partition).answer(6, times=1)
        if api == "Fetch":
            proxy.on("DescribeProducers", topic=topic, partition=partition).set(active_producers=[])
        producer = producers(
            wire.servers,
            client_id=f"cut-{api}-{hang_up}",
            spool_dir=producers.spool / api,
            request_timeout_ms=1000,
        )
        everything.append(Records(producer, topic))
        everything[-1].send([partition])
    for records in everything:
        assert not records.settle()
    assert not [rule for rule in rules if not rule.hits]
    assert not busy(wire, topic)
    log = harness.read_log(wire.servers, topic)
    for records in everything:
        records.audit(wire.servers, log=log)
    assert not [r for r in caplog.records if r.name.startswith("kafkasafe") and r.exc_info]
