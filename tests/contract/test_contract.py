"""What a broker answers: each case on the fake and on real brokers, of the current version and of 2.8.

Where they differ the fake is wrong. A case gets a `Side`: a cluster, and raw requests to it.
"""

import itertools
import time
import uuid

import pytest
import rawclient
from kafka.errors import TopicAlreadyExistsError
from rawclient import Raw, make_batch
from waiting import until

from kafkasafe.record.batch import encode, iter_headers
from kafkasafe.testing import FakeCluster, KafkaCluster

CURRENT, OLD = "4.3.0", "2.8.2"
PATIENCE_S = 120
HOUR_MS = 3_600_000
NO_ID = uuid.UUID(int=0)

_numbers = itertools.count(1)


class Side:
    """One cluster with one broker, and what the cases ask of it."""

    def __init__(self, cluster, version):
        self.cluster = cluster
        self.version = version
        self.new = version == CURRENT
        self.fake = isinstance(cluster, FakeCluster)
        self._raw = None

    def raw(self):
        if self._raw is None:
            self._raw = Raw(*self.cluster.client_address(1))
        return self._raw

    def drop(self):
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def ask(self, name, version, **fields):
        return self.raw().ask(name, version, **fields)

    def topic(self, partitions=1, **config):
        name = f"t{next(_numbers)}-{uuid.uuid4().hex[:6]}"
        self.cluster.create_topic(
            name, partitions, config={k.replace("_", "."): v for k, v in config.items()}
        )
        return name

    def restart(self, topic):
        """A hard one; returns when the broker leads the topic and knows under which epoch."""
        self.drop()
        self.cluster.restart(1, hard=True)
        until(lambda: self._leads(topic))

    def _leads(self, topic):
        found = self.metadata(topic)
        if found.error_code or not found.partitions or found.partitions[0].leader_id != 1:
            return False
        epoch = found.partitions[0].leader_epoch
        return self.fetch(topic, 0, leader_epoch=epoch).error_code in {0, 1}

    def recreate(self, topic):
        self.cluster.delete_topic(topic)
        until(lambda: self.metadata(topic).error_code == 3)

        def created():
            try:
                self.cluster.create_topic(topic)
            except TopicAlreadyExistsError:  # a controller of 2.8 takes a moment longer than its brokers
                return False
            return True

        until(created)

    @property
    def now_ms(self):
        return self.cluster.now_ms() if self.fake else time.time_ns() // 1_000_000

    def pid(self):
        """A producer id that no other case has; brokers do not check that it was given."""
        return 100_000 + next(_numbers)

    def produce(self, topic, data, partition=0, acks=-1, version=9, transactional_id=None):
        answer = self.ask(
            "Produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=30_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": data}]}],
        )
        return answer.responses[0].partition_responses[0]

    def send(self, topic, count=1, *, pid=-1, epoch=-1, seq=-1, timestamp=None, **more):
        values = [b"v%d" % number for number in range(count)]
        data = make_batch(*values, pid=pid, epoch=epoch, seq=seq, timestamp=timestamp, now_ms=self.now_ms)
        return self.produce(topic, data, **more)

    def write(self, topic, count=1, **more):
        """A send that is not what is tested: until the broker has taken it, and says where the log ends."""
        end = self.offset(topic, -1).offset
        until(lambda: self.send(topic, count, **more).error_code == 0)
        until(lambda: self.offset(topic, -1).offset == end + count)

    def offset(
        self, topic, timestamp, version=None, isolation_level=0, replica_id=-1, leader_epoch=-1, partition=0
    ):
        answer = self.ask(
            "ListOffsets",
            version or (8 if self.new else 6),
            replica_id=replica_id,
            isolation_level=isolation_level,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": partition,
                            "current_leader_epoch": leader_epoch,
                            "timestamp": timestamp,
                        }
                    ],
                }
            ],
        )
        return answer.topics[0].partitions[0]

    def fetch(self, topic, offset, **more):
        return rawclient.fetch(self.ask, topic, offset, **more)

    def fetch_some(self, topic, offset, **more):
        """A fetch that waits for nothing may be answered with nothing."""
        deadline = time.monotonic() + 60
        while not (answer := self.fetch(topic, offset, **more)).records:
            assert time.monotonic() < deadline, answer
        return answer

    def epoch_end(self, topic, epoch, leader_epoch=-1):
        answer = self.ask(
            "OffsetForLeaderEpoch",
            4,
            replica_id=-1,
            topics=[
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": 0, "current_leader_epoch": leader_epoch, "leader_epoch": epoch}
                    ],
                }
            ],
        )
        return answer.topics[0].partitions[0]

    def producers(self, topic):
        answer = self.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
        return answer.topics[0].partitions[0]

    def known(self, topic, pid):
        """(epoch, last sequence) of a producer, None if it is not known."""
        found = self.producers(topic)
        assert found.error_code == 0
        for producer in found.active_producers:
            if producer.producer_id == pid:
                return producer.producer_epoch, producer.last_sequence
        return None

    def delete_records(self, topic, before):
        answer = self.ask(
            "DeleteRecords",
            2,
            timeout_ms=30_000,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": before}]}],
        )
        return answer.topics[0].partitions[0]

    def metadata(self, topic, *, create=False, topic_id=NO_ID, version=10):
        answer = self.ask(
            "Metadata",
            version,
            topics=[{"name": topic, "topic_id": topic_id}],
            allow_auto_topic_creation=create,
            include_topic_authorized_operations=False,
        )
        return answer.topics[0]

    def leader_epoch(self, topic):
        return self.metadata(topic).partitions[0].leader_epoch


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("fake", CURRENT), id="fake-4.3"),
        pytest.param(("fake", OLD), id="fake-2.8"),
        pytest.param(("real", CURRENT), id="kafka-4.3", marks=pytest.mark.kafka),
        pytest.param(("real", OLD), id="kafka-2.8", marks=pytest.mark.kafka),
    ],
)
def side(request):
    kind, version = request.param
    with (FakeCluster if kind == "fake" else KafkaCluster)(brokers=1, version=version) as cluster:
        made = Side(cluster, version)
        yield made
        made.drop()


# -- Sequences ---------------------------------------------------------------------------------------------------------


def test_in_order_batches_are_appended(side):
    topic, pid = side.topic(), side.pid()
    answers = [side.send(topic, 3, pid=pid, epoch=0, seq=seq) for seq in (0, 3, 6)]
    assert [(a.error_code, a.base_offset, a.log_append_time_ms, a.log_start_offset) for a in answers] == [
        (0, 0, -1, 0),
        (0, 3, -1, 0),
        (0, 6, -1, 0),
    ]
    assert side.known(topic, pid) == (0, 8)


def test_a_repetition_in_the_window_has_its_first_offset(side):
    topic, pid = side.topic(), side.pid()
    for seq in range(5):
        side.send(topic, pid=pid, epoch=0, seq=seq)
    answers = [side.send(topic, pid=pid, epoch=0, seq=seq) for seq in range(5)]
    assert [(a.error_code, a.base_offset) for a in answers] == [(0, seq) for seq in range(5)]
    assert side.offset(topic, -1).offset == 5


def test_a_repetition_outside_of_the_window_is_45(side):
    topic, pid = side.topic(), side.pid()
    for seq in range(6):
        side.send(topic, pid=pid, epoch=0, seq=seq)
    again = side.send(topic, pid=pid, epoch=0, seq=0)
    assert (again.error_code, again.base_offset) == (45, -1)


def test_a_gap_is_45_and_nothing_is_appended(side):
    topic, pid = side.topic(), side.pid()
    side.send(topic, pid=pid, epoch=0, seq=0)
    assert side.send(topic, pid=pid, epoch=0, seq=2).error_code == 45
    assert side.offset(topic, -1).offset == 1
    assert side.known(topic, pid) == (0, 0)


def test_an_unknown_id_may_begin_anywhere(side):
    topic, pid = side.topic(), side.pid()
    assert side.send(topic, pid=pid, epoch=5, seq=123).error_code == 0
    assert side.known(topic, pid) == (5, 123)


def test_other_boundaries_are_45_other_bytes_are_a_repetition(side):
    topic, pid = side.topic(), side.pid()
    side.send(topic, 2, pid=pid, epoch=0, seq=0)
    assert side.send(topic, 1, pid=pid, epoch=0, seq=0).error_code == 45
    other = make_batch(b"not", b"the same", pid=pid, epoch=0, seq=0, now_ms=side.now_ms)
    answer = side.produce(topic, other)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert side.offset(topic, -1).offset == 2


def test_a_new_epoch_begins_at_0_and_an_old_one_is_over(side):
    topic, pid = side.topic(), side.pid()
    side.send(topic, pid=pid, epoch=1, seq=0)
    assert side.send(topic, pid=pid, epoch=2, seq=1).error_code == 45
    assert side.send(topic, pid=pid, epoch=2, seq=0).error_code == 0
    assert side.send(topic, pid=pid, epoch=1, seq=1).error_code == 47
    assert side.known(topic, pid) == (2, 0)


def test_sequences_wrap(side):
    topic, pid = side.topic(), side.pid()
    assert side.send(topic, 2, pid=pid, epoch=0, seq=2**31 - 2).error_code == 0
    assert side.known(topic, pid) == (0, 2**31 - 1)
    assert side.send(topic, 2, pid=pid, epoch=0, seq=0).error_code == 0
    assert side.known(topic, pid) == (0, 1)


def test_a_restart_leaves_a_window_of_one(side):
    topic, pid = side.topic(), side.pid()
    for seq in range(3):
        side.send(topic, pid=pid, epoch=0, seq=seq)
    side.restart(topic)
    last = side.send(topic, pid=pid, epoch=0, seq=2)
    assert (last.error_code, last.base_offset) == (0, 2)
    assert side.send(topic, pid=pid, epoch=0, seq=1).error_code == 45
    assert side.send(topic, pid=pid, epoch=0, seq=3).base_offset == 3


def test_a_restart_forgets_by_the_batches_own_time(side):
    topic, young, old = side.topic(), side.pid(), side.pid()
    week_ms = 8 * 24 * HOUR_MS
    side.send(topic, pid=young, epoch=0, seq=0)
    side.send(topic, pid=old, epoch=0, seq=0, timestamp=side.now_ms - week_ms)
    side.restart(topic)
    assert side.known(topic, young) == (0, 0)
    assert side.known(topic, old) is None
    again = side.send(topic, pid=old, epoch=0, seq=0, timestamp=side.now_ms - week_ms)
    assert (again.error_code, again.base_offset) == (0, 2)


def test_after_expiry_a_repetition_is_appended_again(side):
    if not side.new:
        pytest.skip("Kafka before 3.5 cannot change the expiry while it runs")
    topic, pid = side.topic(), side.pid()
    side.send(topic, pid=pid, epoch=0, seq=0)
    side.cluster.expire_producers([topic])
    again = side.send(topic, pid=pid, epoch=0, seq=0)
    assert (again.error_code, again.base_offset) == (0, 1)


def test_deleted_records_leave_their_producer_known(side):
    topic, pid = side.topic(), side.pid()
    for seq in range(3):
        side.send(topic, pid=pid, epoch=0, seq=seq)
    assert side.delete_records(topic, -1).low_watermark == 3
    assert side.known(topic, pid) == (0, 2)
    assert side.send(topic, pid=pid, epoch=0, seq=5).error_code == 45
    answer = side.send(topic, pid=pid, epoch=0, seq=3)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 3, 3)


def test_a_wiped_log_takes_the_next_sequence_at_offset_0(side):
    topic, pid = side.topic(), side.pid()
    for seq in range(4):
        side.send(topic, pid=pid, epoch=0, seq=seq)
    side.drop()
    lost = side.cluster.lose_log(topic)
    assert lost.offsets == range(4)
    until(lambda: side._leads(topic) and side.producers(topic).error_code == 0)
    assert side.known(topic, pid) is None
    answer = side.send(topic, pid=pid, epoch=0, seq=4)
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (0, 0, 0)


def test_a_recreated_topic_takes_the_next_sequence_at_offset_0(side):
    topic, pid = side.topic(), side.pid()
    side.send(topic, pid=pid, epoch=0, seq=0)
    side.recreate(topic)
    answer = side.send(topic, pid=pid, epoch=0, seq=1)
    assert (answer.error_code, answer.base_offset) == (0, 0)


@pytest.mark.parametrize("acks", [1, -1])
def test_both_acks_deduplicate(side, acks):
    topic, pid = side.topic(), side.pid()
    offsets = [side.send(topic, pid=pid, epoch=0, seq=0, acks=acks).base_offset for _ in range(2)]
    assert offsets == [0, 0]


def test_acks_0_has_no_answer(side):
    topic = side.topic()
    data = make_batch(b"v", now_ms=side.now_ms)
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    side.raw().send("Produce", 9, transactional_id=None, acks=0, timeout_ms=1000, topic_data=rows)
    until(lambda: side.offset(topic, -1).offset == 1)


def test_other_acks_are_21(side):
    assert side.send(side.topic(), acks=2).error_code == 21


# -- What is wrong with a batch ----------------------------------------------------------------------------------------


def damaged(data, at, value):
    changed = bytearray(data)
    changed[at] = value
    return bytes(changed)


def test_a_wrong_checksum_is_2(side):
    topic = side.topic()
    data = make_batch(b"value", now_ms=side.now_ms)
    answer = side.produce(topic, damaged(data, len(data) - 2, 1))
    assert (answer.error_code, answer.base_offset) == (2, -1)
    assert side.offset(topic, -1).offset == 0


def test_a_base_offset_is_87(side):
    data = make_batch(b"value", now_ms=side.now_ms)
    assert side.produce(side.topic(), damaged(data, 7, 1)).error_code == 87


def test_two_batches_at_once_are_87(side):
    data = make_batch(b"value", now_ms=side.now_ms)
    assert side.produce(side.topic(), data + data).error_code == 87


def test_an_older_format_is_87(side):
    data = make_batch(b"value", now_ms=side.now_ms)
    assert side.produce(side.topic(), damaged(data, 16, 1)).error_code == 87


def test_a_control_batch_of_a_client_is_87(side):
    from kafkasafe.record.batch import encode_control

    data = bytes(encode_control([(b"\0\0\0\1", b"\0\0\0\0\0\0")], timestamp=side.now_ms))
    assert side.produce(side.topic(), data).error_code == 87


def test_a_batch_that_is_too_large_is_10(side):
    topic = side.topic(max_message_bytes=1000)
    data = make_batch(bytes(2000), now_ms=side.now_ms)
    assert side.produce(topic, data).error_code == 10
    assert side.produce(topic, make_batch(bytes(900), now_ms=side.now_ms)).error_code == 0


def test_the_limit_of_a_batch_is_exact(side):
    data = make_batch(bytes(900), now_ms=side.now_ms)
    assert side.produce(side.topic(max_message_bytes=len(data)), data).error_code == 0
    assert side.produce(side.topic(max_message_bytes=len(data) - 1), data).error_code == 10


def test_the_limit_is_that_of_compressed_bytes(side):
    topic = side.topic(max_message_bytes=1000)
    data = make_batch(bytes(5000), now_ms=side.now_ms, compression=1)
    assert side.produce(topic, data).error_code == 0


def test_a_timestamp_far_ahead_is_refused_by_the_current_version_only(side):
    topic = side.topic()
    good, ahead = side.now_ms, side.now_ms + 2 * HOUR_MS
    data = make_batch(b"a", b"b", b"c", timestamp=[good, ahead, ahead])
    answer = side.produce(topic, data)
    if side.new:
        assert (answer.error_code, answer.base_offset) == (32, -1)
        assert [error.batch_index for error in answer.record_errors] == [1, 2]
        assert side.offset(topic, -1).offset == 0
    else:
        assert (answer.error_code, answer.base_offset) == (0, 0)


def test_the_timestamp_is_looked_at_before_the_sequence(side):
    topic, pid = side.topic(), side.pid()
    side.send(topic, pid=pid, epoch=0, seq=0)
    code = side.send(topic, pid=pid, epoch=0, seq=9, timestamp=side.now_ms + 2 * HOUR_MS).error_code
    assert code == (32 if side.new else 45)


def test_a_compacted_topic_takes_no_record_without_a_key(side):
    topic = side.topic(cleanup_policy="compact")

    def send(keys):
        return side.produce(topic, bytes(encode(keys, [b"v"] * len(keys), timestamps=side.now_ms)))

    answer = send([b"k", None, b"k", None])
    assert (answer.error_code, answer.base_offset) == (87, -1)
    assert [error.batch_index for error in answer.record_errors] == [1, 3]
    assert send([b"k", b""]).error_code == 0


def test_old_timestamps_are_taken(side):
    assert side.send(side.topic(), timestamp=1).error_code == 0


def test_log_append_time_replaces_the_timestamps(side):
    topic, pid = side.topic(message_timestamp_type="LogAppendTime"), side.pid()
    before = side.now_ms
    answer = side.send(topic, 2, pid=pid, epoch=0, seq=0, timestamp=before + 100 * HOUR_MS)
    assert answer.error_code == 0
    assert before - 1000 <= answer.log_append_time_ms <= side.now_ms + 1000
    (_, header), *_ = iter_headers(side.fetch_some(topic, 0).records)
    assert header.is_log_append_time
    assert header.max_timestamp == answer.log_append_time_ms
    again = side.send(topic, 2, pid=pid, epoch=0, seq=0, timestamp=before + 100 * HOUR_MS)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert again.log_append_time_ms == answer.log_append_time_ms


def test_a_repetition_tells_a_time_even_without_log_append_time(side):
    topic, pid = side.topic(), side.pid()
    stamp = side.now_ms - 5000
    assert side.send(topic, pid=pid, epoch=0, seq=0, timestamp=stamp).log_append_time_ms == -1
    assert side.send(topic, pid=pid, epoch=0, seq=0, timestamp=stamp).log_append_time_ms == stamp


def refusals(side):
    """By a name for each: the answer to a batch that is refused, of a log that begins at offset 1."""
    topic, pid = side.topic(max_message_bytes=1000), side.pid()
    for seq in (0, 1):
        side.send(topic, pid=pid, epoch=1, seq=seq)
    assert side.delete_records(topic, 1).error_code == 0
    until(lambda: side.offset(topic, -2).offset == 1)
    data = make_batch(b"value", now_ms=side.now_ms)
    yield "gap", side.send(topic, pid=pid, epoch=1, seq=9)
    yield "old epoch", side.send(topic, pid=pid, epoch=0, seq=2)
    yield "too large", side.produce(topic, make_batch(bytes(2000), now_ms=side.now_ms))
    yield "checksum", side.produce(topic, damaged(data, len(data) - 2, 1))
    yield "base offset", side.produce(topic, damaged(data, 7, 1))
    yield "two batches", side.produce(topic, data + data)
    yield "older format", side.produce(topic, damaged(data, 16, 1))
    yield "no partition", side.produce(topic, data, partition=7)
    yield "acks", side.send(topic, acks=2)
    if side.new:
        ahead = make_batch(b"a", b"b", timestamp=[side.now_ms, side.now_ms + 2 * HOUR_MS])
        yield "ahead", side.produce(topic, ahead)
    name = f"txn-{uuid.uuid4().hex[:8]}"

    def in_transaction(seq, given):
        mine = {"pid": given.producer_id, "epoch": given.producer_epoch, "seq": seq}
        batch = make_batch(b"x", **mine, now_ms=side.now_ms, transactional=True)
        return side.produce(topic, batch, transactional_id=name)

    given = init_transactional(side, name)
    if side.new:  # older brokers take it
        yield "outside of the transaction", in_transaction(0, given)
    assert add_partitions(side, name, given.producer_id, given.producer_epoch, topic) == 0
    until(lambda: in_transaction(0, given).error_code == 0)
    init_transactional(side, name)
    until(lambda: side.offset(topic, -1, isolation_level=1).offset == 4)
    yield "fenced", in_transaction(1, given)
    answers = []
    if not side.new:  # newer ones want no more replicas than there are
        side.cluster.alter_topic(topic, {"min.insync.replicas": 2})
        # A batch that is being appended while the option changes is answered by 20 (after append).
        until(lambda: answers.append(side.send(topic)) or answers[-1].error_code == 19)
        yield "replicas", answers[-1]
    side.cluster.alter_topic(topic, {"min.insync.replicas": 1, "cleanup.policy": "compact"})
    until(lambda: answers.append(side.produce(topic, data)) or answers[-1].error_code == 87)
    yield "no key", answers[-1]


def test_what_the_answer_to_a_refused_batch_says(side):
    """The journal decides by the log's start, and people read the message: both as brokers give them, code by code."""
    found = {
        name: (answer.error_code, answer.log_start_offset, bool(answer.error_message))
        for name, answer in refusals(side)
    }
    of_version = (
        # That a transaction has the partition is asked of its coordinator, before the log.
        {"ahead": (32, 1, True), "outside of the transaction": (48, -1, True), "fenced": (47, -1, False)}
        if side.new
        else {"replicas": (19, 1, False), "fenced": (47, 1, False)}
    )
    assert found == of_version | {
        "gap": (45, 1, False),
        "old epoch": (47, 1, False),
        "too large": (10, -1, False),
        "checksum": (2, -1, False),
        "base offset": (87, 1, False),
        "two batches": (87, -1, False),
        "older format": (87, -1, False),
        "no partition": (3, -1, False),
        "acks": (21, -1, False),
        "no key": (87, 1, True),
    }


def test_a_partition_that_is_not_there_is_3(side):
    topic = side.topic()
    assert side.send(topic, partition=7).error_code == 3
    assert side.send("nowhere").error_code == 3


def test_the_codec_is_kept(side):
    topic = side.topic()
    for codec in (0, 1, 2, 3, 4):
        data = make_batch(b"x" * 100, now_ms=side.now_ms, compression=codec)
        assert side.produce(topic, data).base_offset == codec
    codecs = [header.compression for _, header in iter_headers(side.fetch_some(topic, 0).records)]
    assert codecs == [0, 1, 2, 3, 4]


# -- Reading -----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_log(side):
    topic = side.topic()
    base = side.now_ms - 100_000
    for number in range(3):
        side.write(topic, 2, timestamp=base + 1000 * number)
    asked = {
        -2: (0, -1),
        -1: (6, -1),
        base: (0, base),
        base + 1: (2, base + 1000),
        base + 2000: (4, base + 2000),
    }
    for timestamp, wanted in asked.items():
        found = side.offset(topic, timestamp)
        assert (found.error_code, found.offset, found.timestamp, found.leader_epoch) == (0, *wanted, 0)
    nothing = side.offset(topic, base + 2001)
    assert (nothing.error_code, nothing.offset, nothing.timestamp, nothing.leader_epoch) == (0, -1, -1, -1)


def test_offsets_of_an_empty_log(side):
    topic = side.topic()
    for timestamp, offset in ((-2, 0), (-1, 0), (0, -1)):
        assert side.offset(topic, timestamp).offset == offset
    assert side.offset(topic, -1).leader_epoch == 0
    assert side.epoch_end(topic, 0).end_offset == 0


def test_the_record_with_the_largest_timestamp(side):
    topic = side.topic()
    base = side.now_ms - 100_000
    for stamp in (base, base + 5000, base + 1000):
        side.write(topic, 2, timestamp=[stamp, stamp - 1])
    until(lambda: side.offset(topic, -3).error_code != 6)
    found = side.offset(topic, -3)
    # Before ListOffsets v7 the number is a time like any other.
    first = (0, 2, base + 5000) if side.new else (0, 0, base)
    assert (found.error_code, found.offset, found.timestamp) == first
    assert side.offset(side.topic(), -3).offset == -1


def test_offsets_after_deleted_records(side):
    topic = side.topic()
    side.send(topic, 5)
    side.send(topic, 5)
    assert side.delete_records(topic, 7).low_watermark == 7
    assert (side.offset(topic, -2).offset, side.offset(topic, -1).offset) == (7, 10)
    assert side.offset(topic, 0).offset == 7
    assert side.fetch(topic, 6).error_code == 1
    found = side.fetch_some(topic, 7)
    assert (found.error_code, found.log_start_offset) == (0, 7)
    (_, first), *_ = iter_headers(found.records)
    assert first.base_offset == 5
    assert side.delete_records(topic, 11).error_code == 1


def test_fetch_at_the_end_and_beyond(side):
    topic = side.topic()
    side.send(topic, 3)
    found = side.fetch(topic, 3)
    assert (found.error_code, found.high_watermark, found.last_stable_offset, bytes(found.records)) == (
        0,
        3,
        3,
        b"",
    )
    beyond = side.fetch(topic, 4)
    assert (beyond.error_code, beyond.high_watermark) == (1, -1)


def test_fetch_begins_with_the_batch_that_holds_the_offset(side):
    topic = side.topic()
    side.write(topic, 3)
    side.write(topic, 3)
    headers = [header for _, header in iter_headers(side.fetch_some(topic, 4).records)]
    assert [(header.base_offset, header.partition_leader_epoch) for header in headers] == [(3, 0)]


def test_a_first_batch_that_is_too_large_comes_whole(side):
    topic = side.topic()
    side.write(topic, 50)
    side.write(topic, 50)
    headers = [header for _, header in iter_headers(side.fetch_some(topic, 0, max_bytes=10).records)]
    assert [header.base_offset for header in headers] == [0]


def test_a_restart_is_a_new_epoch_where_somebody_saw_it(side):
    """The only broker of 2.8 is its own controller: when it is back it finds itself leading, as before."""
    topic = side.topic()
    assert side.leader_epoch(topic) == 0
    side.restart(topic)
    assert (side.leader_epoch(topic) > 0) is side.new


def test_leader_epochs_are_compared(side):
    topic = side.topic()
    side.restart(topic)
    epoch = side.leader_epoch(topic)
    for ask in (
        lambda known: side.fetch(topic, 0, leader_epoch=known).error_code,
        lambda known: side.offset(topic, -1, leader_epoch=known).error_code,
        lambda known: side.epoch_end(topic, 0, leader_epoch=known).error_code,
    ):
        assert [ask(epoch), ask(epoch + 1), ask(-1)] == [0, 75, 0]
        assert epoch == 0 or ask(epoch - 1) == 74


def test_where_epochs_end(side):
    topic = side.topic()
    side.send(topic, 3)
    side.restart(topic)
    latest = side.leader_epoch(topic)
    side.send(topic, 2)
    asked = {epoch: side.epoch_end(topic, epoch) for epoch in (0, latest, latest + 1, -1)}
    assert {epoch: (a.error_code, a.leader_epoch, a.end_offset) for epoch, a in asked.items()} == {
        0: (0, 0, 3 if latest else 5),
        latest: (0, latest, 5),
        latest + 1: (0, -1, -1),
        -1: (0, -1, -1),
    }
    assert side.offset(topic, -2).leader_epoch == 0
    assert side.offset(topic, -1).leader_epoch == latest


def test_fetch_notices_another_history(side):
    topic = side.topic()
    side.send(topic, 3)
    side.restart(topic)
    epoch = side.leader_epoch(topic)
    side.send(topic, 2)
    good = side.fetch_some(topic, 3, last_epoch=0)
    assert good.error_code == 0
    assert good.diverging_epoch is None or good.diverging_epoch.end_offset == -1
    assert good.records
    bad = side.fetch(topic, 4, last_epoch=0)
    assert bad.error_code == 0
    if epoch:
        assert (bad.diverging_epoch.epoch, bad.diverging_epoch.end_offset) == (0, 3)
        assert not bad.records
    assert side.fetch(topic, 4, last_epoch=epoch + 1).error_code == 1


def test_look_ups_of_what_is_not_there(side):
    topic = side.topic()
    assert side.fetch("nowhere", 0).error_code == 3
    assert side.offset("nowhere", -1).error_code == 3
    assert side.epoch_end("nowhere", 0).error_code == 3
    assert side.producers("nowhere").error_code == 3
    assert side.offset(topic, -1, partition=9).error_code == 3


# -- Topics ------------------------------------------------------------------------------------------------------------


def test_metadata_of_a_topic(side):
    topic = side.topic(2)
    found = side.metadata(topic)
    assert (found.error_code, found.is_internal, found.topic_id.int != 0) == (0, False, True)
    rows = sorted(
        (p.partition_index, p.leader_id, p.leader_epoch, *p.replica_nodes, *p.isr_nodes)
        for p in found.partitions
    )
    assert rows == [(0, 1, 0, 1, 1), (1, 1, 0, 1, 1)]


def test_metadata_of_what_is_not_there(side):
    assert side.metadata("nowhere").error_code == 3
    assert side.metadata("no topic!").error_code == 17
    if side.new:
        unknown = uuid.uuid4()
        found = side.metadata(None, topic_id=unknown, version=12)
        assert (found.error_code, found.topic_id) == (100, unknown)


def test_a_topic_is_made_when_it_is_named(side):
    name = f"auto-{uuid.uuid4().hex[:8]}"
    found = side.metadata(name, create=True)
    assert (found.error_code, list(found.partitions)) == (3 if side.new else 5, [])
    until(lambda: side.metadata(name).error_code == 0)
    assert len(side.metadata(name).partitions) == 1


def test_a_recreated_topic_has_another_id(side):
    topic = side.topic()
    before = side.metadata(topic).topic_id
    side.recreate(topic)
    after = side.metadata(topic)
    assert after.error_code == 0
    assert after.topic_id != before
    assert after.partitions[0].leader_epoch == 0


def test_topics_that_cannot_be_made(side):
    def create(name, partitions=1, copies=1, **configs):
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": copies,
            "assignments": [],
            "configs": rows,
        }
        return (
            side.ask("CreateTopics", 5, topics=[topic], timeout_ms=30_000, validate_only=False)
            .topics[0]
            .error_code
        )

    topic = side.topic()
    assert create(topic) == 36
    assert create("no topic!") == 17
    assert create("a", partitions=0) == 37
    assert create("a", copies=2) == 38
    assert create("a", no_such_setting="1") == 40


def create_topics(side, *names, validate_only=False, version=5, **configs):
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    more = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": rows}
    topics = [{"name": name} | more for name in names]
    return side.ask(
        "CreateTopics", version, topics=topics, timeout_ms=30_000, validate_only=validate_only
    ).topics


def test_settings_out_of_their_range_are_40(side):
    for name, value in (
        ("retention_ms", "-2"),
        ("retention_ms", str(2**63)),
        ("min_insync_replicas", "0"),
        ("max_message_bytes", "-1"),
        ("message_timestamp_type", "createtime"),
        ("unclean_leader_election_enable", "maybe"),
        ("cleanup_policy", "nonsense"),
        ("segment_ms", "0"),
    ):
        [found] = create_topics(side, f"set-{uuid.uuid4().hex[:8]}", **{name: value})
        assert found.error_code == 40, (name, value)
    [found] = create_topics(side, f"set-{uuid.uuid4().hex[:8]}", segment_bytes=str((1 << 20) - 1))
    assert found.error_code == (40 if side.new else 0)
    for name, value in (("retention_ms", "-1"), ("min_insync_replicas", "9"), ("max_message_bytes", "0")):
        [found] = create_topics(side, f"set-{uuid.uuid4().hex[:8]}", **{name: value})
        assert (found.error_code, found.error_message) == (0, None)
        assert name.replace("_", ".") in {row.name for row in found.configs}


def test_more_replicas_in_sync_than_there_are_is_what_only_older_brokers_ask_for(side):
    topic, codes = side.topic(min_insync_replicas=2), []
    until(lambda: codes.append(side.send(topic).error_code) or codes[-1] in {0, 19})
    assert codes[-1] == (0 if side.new else 19)
    assert side.send(topic, acks=1).error_code == 0
    until(lambda: side.offset(topic, -1).offset == (2 if side.new else 1))


def test_settings_of_other_versions_are_40(side):
    def codes(name, value):
        [found] = create_topics(side, f"set-{uuid.uuid4().hex[:8]}", **{name: value})
        return found.error_code, name.replace("_", ".") in {row.name for row in found.configs or ()}

    of_new, of_old = ((0, True), (40, False)) if side.new else ((40, False), (0, True))
    assert codes("message_timestamp_before_max_ms", "1000") == of_new
    assert codes("message_timestamp_after_max_ms", "1000") == of_new
    assert codes("message_downconversion_enable", "true") == of_old
    if side.new or not side.fake:  # the fake of 2.8 does not model these
        assert codes("message_timestamp_difference_max_ms", "1000") == of_old
        assert codes("message_format_version", "2.8-IV1") == of_old


def test_a_topic_named_twice_is_42_and_one_named_alike_is_17(side):
    name = uuid.uuid4().hex[:8]
    assert {found.error_code for found in create_topics(side, f"{name}.x", f"{name}.x")} == {42}
    assert create_topics(side, f"{name}.x")[0].error_code == 0
    until(lambda: side.metadata(f"{name}.x").error_code == 0)
    assert create_topics(side, f"{name}_x")[0].error_code == 17


def test_a_topic_that_is_only_tried_out(side):
    name = uuid.uuid4().hex[:8]
    [found] = create_topics(side, name, validate_only=True)
    assert (found.error_code, found.num_partitions, found.replication_factor) == (0, 1, 1)
    assert side.metadata(name).error_code == 3


def test_the_answer_to_a_deletion_has_the_id(side):
    topic = side.topic()
    until(lambda: side.metadata(topic).error_code == 0)
    topic_id = side.metadata(topic).topic_id
    answer = side.ask("DeleteTopics", 6, topics=[{"name": topic, "topic_id": NO_ID}], timeout_ms=30_000)
    answered = answer.responses[0]
    assert (answered.error_code, answered.topic_id) == (0, topic_id if side.new else None)


def test_a_topic_grows(side):
    topic = side.topic()

    def grow(name, count):
        topics = [{"name": name, "count": count, "assignments": None}]
        return (
            side.ask("CreatePartitions", 1, topics=topics, timeout_ms=30_000, validate_only=False)
            .results[0]
            .error_code
        )

    assert grow(topic, 3) == 0
    until(lambda: len(side.metadata(topic).partitions) == 3)
    assert grow(topic, 2) == 37
    assert grow("nowhere", 2) == 3
    until(lambda: side.send(topic, partition=2).error_code == 0)


def test_deleting_what_is_not_there_is_3(side):
    answer = side.ask("DeleteTopics", 4, topic_names=["nowhere"], timeout_ms=30_000)
    assert answer.responses[0].error_code == 3


# -- Producer ids and transactions -------------------------------------------------------------------------------------


def init(side, transactional_id=None, timeout_ms=60_000, version=4, pid=-1, epoch=-1):
    return side.ask(
        "InitProducerId",
        version,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=pid,
        producer_epoch=epoch,
    )


def init_transactional(side, name):
    found = []

    def ready():
        coordinator = side.ask("FindCoordinator", 3, key=name, key_type=1)
        if coordinator.error_code:
            return False
        found[:] = [init(side, name)]
        return found[0].error_code not in {14, 15, 16, 51}

    until(ready)
    return found[0]


def add_partitions(side, name, pid, epoch, topic):
    answer = side.ask(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )
    return answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def end(side, name, pid, epoch, *, committed):
    codes = []

    def done():
        answer = side.ask(
            "EndTxn", 3, transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=committed
        )
        codes[:] = [answer.error_code]
        return answer.error_code != 51

    until(done)
    return codes[0]


def test_producer_ids_are_given_once(side):
    until(lambda: init(side).error_code == 0)
    first, second = init(side), init(side)
    assert (first.error_code, first.producer_epoch, second.producer_epoch) == (0, 0, 0)
    assert first.producer_id != second.producer_id


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction(side, committed):
    topic, name = side.topic(), f"txn-{uuid.uuid4().hex[:8]}"
    given = init_transactional(side, name)
    assert given.error_code == 0
    pid, epoch = given.producer_id, given.producer_epoch
    assert add_partitions(side, name, pid, epoch, topic) == 0

    def send(seq):
        data = make_batch(b"x", pid=pid, epoch=epoch, seq=seq, now_ms=side.now_ms, transactional=True)
        return side.produce(topic, data, transactional_id=name)

    until(lambda: send(0).error_code == 0)
    side.send(topic)
    assert (side.offset(topic, -1).offset, side.offset(topic, -1, isolation_level=1).offset) == (2, 0)
    held = side.fetch(topic, 0, isolation_level=1)
    assert (held.last_stable_offset, bytes(held.records)) == (0, b"")
    assert end(side, name, pid, epoch, committed=committed) == 0
    until(lambda: side.offset(topic, -1, isolation_level=1).offset == 3)
    found = side.fetch_some(topic, 0, isolation_level=1)
    headers = [header for _, header in iter_headers(found.records)]
    assert [(header.is_transactional, header.is_control) for header in headers] == [
        (True, False),
        (False, False),
        (True, True),
    ]
    aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
    assert aborted == ([] if committed else [(pid, 0)])
    assert end(side, name, pid, epoch, committed=committed) == 0
    assert end(side, name, pid, epoch, committed=not committed) == 48


def test_who_comes_later_fences(side):
    topic, name = side.topic(), f"txn-{uuid.uuid4().hex[:8]}"
    first = init_transactional(side, name)
    second = init_transactional(side, name)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
    assert add_partitions(side, name, first.producer_id, first.producer_epoch, topic) == 90
    assert add_partitions(side, name, first.producer_id + 1000, first.producer_epoch, topic) == 49
    assert end(side, name, first.producer_id, first.producer_epoch, committed=True) == 90


def test_a_batch_of_a_fenced_producer_is_47(side):
    topic, name = side.topic(), f"txn-{uuid.uuid4().hex[:8]}"
    given = init_transactional(side, name)
    pid, epoch = given.producer_id, given.producer_epoch
    assert add_partitions(side, name, pid, epoch, topic) == 0

    def send(seq):
        data = make_batch(b"x", pid=pid, epoch=epoch, seq=seq, now_ms=side.now_ms, transactional=True)
        return side.produce(topic, data, transactional_id=name).error_code

    until(lambda: send(0) == 0)
    init_transactional(side, name)
    until(lambda: side.offset(topic, -1, isolation_level=1).offset == 2)
    assert send(1) == 47


def test_a_batch_outside_of_its_transaction(side):
    topic, name = side.topic(), f"txn-{uuid.uuid4().hex[:8]}"
    given = init_transactional(side, name)
    data = make_batch(
        b"x", pid=given.producer_id, epoch=given.producer_epoch, seq=0, now_ms=side.now_ms, transactional=True
    )
    code = side.produce(topic, data, transactional_id=name).error_code
    assert code == (48 if side.new else 0)


# -- Groups ------------------------------------------------------------------------------------------------------------


def test_offsets_of_a_group(side):
    topic, group = side.topic(2), f"group-{uuid.uuid4().hex[:8]}"
    until(lambda: side.ask("FindCoordinator", 3, key=group, key_type=0).error_code == 0)

    def commit(generation=-1, member="", partition=0, name=topic, metadata="m"):
        part = {
            "partition_index": partition,
            "committed_offset": 7,
            "committed_leader_epoch": 3,
            "committed_metadata": metadata,
        }
        answer = side.ask(
            "OffsetCommit",
            7,
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=None,
            topics=[{"name": name, "partitions": [part]}],
        )
        return answer.topics[0].partitions[0].error_code

    def committed():
        answer = side.ask(
            "OffsetFetch",
            7,
            group_id=group,
            require_stable=False,
            topics=[{"name": topic, "partition_indexes": [0, 1]}],
        )
        rows = [
            (p.committed_offset, p.committed_leader_epoch, p.metadata, p.error_code)
            for p in answer.topics[0].partitions
        ]
        return answer.error_code, rows

    until(lambda: commit() == 0)
    assert committed() == (0, [(7, 3, "m", 0), (-1, -1, "", 0)])
    assert commit(generation=5, member="nobody") in {22, 25}
    assert commit(partition=9) == 3
    assert commit(metadata="m" * 4097) == 12
    assert committed() == (0, [(7, 3, "m", 0), (-1, -1, "", 0)])
    side.cluster.delete_topic(topic)
    until(lambda: committed() == (0, [(-1, -1, "", 0), (-1, -1, "", 0)]))


def test_a_member_needs_an_id(side):
    group = f"group-{uuid.uuid4().hex[:8]}"
    until(lambda: side.ask("FindCoordinator", 3, key=group, key_type=0).error_code == 0)

    def join(member=""):
        return side.ask(
            "JoinGroup",
            5,
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"meta"}],
        )

    until(lambda: join().error_code == 79)
    given = join().member_id
    answer = join(given)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.protocol_name) == (
        0,
        1,
        given,
        "range",
    )
    assert [(one.member_id, bytes(one.metadata)) for one in answer.members] == [(given, b"meta")]
    beat = {"group_id": group, "group_instance_id": None}
    assert side.ask("Heartbeat", 3, generation_id=1, member_id="nobody", **beat).error_code == 25
    assert side.ask("Heartbeat", 3, generation_id=9, member_id=given, **beat).error_code == 22
    shares = [{"member_id": given, "assignment": b"share"}]
    synced = side.ask("SyncGroup", 3, generation_id=1, member_id=given, assignments=shares, **beat)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"share")
    assert side.ask("Heartbeat", 3, generation_id=1, member_id=given, **beat).error_code == 0
    gone = side.ask(
        "LeaveGroup", 3, group_id=group, members=[{"member_id": given, "group_instance_id": None}]
    )
    assert (gone.error_code, gone.members[0].error_code) == (0, 0)
    assert side.ask("Heartbeat", 3, generation_id=1, member_id=given, **beat).error_code == 25


# -- What they speak ---------------------------------------------------------------------------------------------------


def test_the_fake_speaks_no_version_that_the_broker_does_not(side):
    from kafkasafe.kafkapython import frames
    from kafkasafe.testing.fake.settings import profile_of

    answer = side.ask("ApiVersions", 3, client_software_name="contract", client_software_version="1")
    spoken = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    for name, (oldest, newest) in profile_of(side.version).apis.items():
        known = frames.api(name)
        assert spoken[known.key][0] == oldest, name
        assert min(spoken[known.key][1], known.request.max_version) == newest, name
