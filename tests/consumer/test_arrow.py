"""`poll_arrow` and `poll_batches` on real brokers: the same records and the same guarantees as `poll`, as Arrow."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import threading
import time
from types import SimpleNamespace

import consuming
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from consuming import Writer, collect, kafka_errors, new_topic, until
from kafka import KafkaConsumer, TopicPartition
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata

from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged
from kafkasafe.kafkapython.arrow_records import ArrowRecords
from kafkasafe.kafkapython.records import Kind
from kafkasafe.record import batch
from kafkasafe.testing.broker import KafkaCluster

COLUMNS = [
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
    "leader_epoch",
]
NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster():
    config = {
        "offsets.topic.replication.factor": 2,
        "transaction.state.log.replication.factor": 2,
        "transaction.state.log.min.isr": 1,
        "min.insync.replicas": 1,
        "log.cleaner.backoff.ms": 100,
        "log.retention.ms": -1,  # timestamps of these records are old
    }
    with KafkaCluster(brokers=2, config=config) as running:
        yield running


def gather(consumer, count, timeout_s=60.0, **options):
    """Polls until so many records are there; returns one table."""
    tables, rows = [], 0
    deadline = time.monotonic() + timeout_s
    while rows < count:
        assert time.monotonic() < deadline, f"{rows} of {count} records within {timeout_s} s"
        table = consumer.poll_arrow(500, **options)
        table.validate(full=True)
        tables.append(table)
        rows += table.num_rows
    return pa.concat_tables(tables)


def rows_of(table):
    columns = {name: table[name].to_pylist() for name in COLUMNS}
    columns["timestamp"] = table["timestamp"].cast(pa.int64()).to_pylist()
    columns["headers"] = [[(h["key"], h["value"]) for h in headers] for headers in columns["headers"]]
    return list(zip(*columns.values(), strict=True))


def rows_of_records(records):
    return [tuple(getattr(record, name) for name in COLUMNS) for record in records]


class Written:
    """Writes with librdkafka, in transactions, and notes what stands at which offset."""

    def __init__(self, cluster, topic, **options):
        self.topic = topic
        self.at = {}
        options = {key.replace("_", "."): value for key, value in options.items()}
        self.producer = Producer(
            # Idempotent: otherwise a batch that came before its topic was ready is appended behind the next ones.
            {
                "bootstrap.servers": ",".join(cluster.bootstrap_servers),
                "linger.ms": 20,
                "enable.idempotence": True,
                **options,
            }
        )

    def write(self, count, *, committed=True, headers=None, timestamp=NOW, value=None):
        for number in range(count):
            key = None if number % 3 == 0 else b"key-%d" % number
            content = b"%d" % number * (number % 40) if value is None else value
            content = None if number % 11 == 10 else content
            note = functools.partial(self._note, committed, (timestamp, key, content, headers or []))
            self.producer.produce(
                self.topic, content, key, 0, headers=headers, timestamp=timestamp, on_delivery=note
            )
        assert self.producer.flush(60) == 0

    def _note(self, committed, content, error, message):
        assert error is None
        self.at[message.offset()] = (committed, *content)

    def rows(self, *, read_committed, epoch=0):
        return [
            (self.topic, 0, offset, timestamp, 0, key, value, headers, epoch)
            for offset, (committed, timestamp, key, value, headers) in sorted(self.at.items())
            if committed or not read_committed
        ]


@pytest.mark.kafka
class TestRecords:
    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    def test_transactions_headers_and_nulls_in_every_codec(self, cluster, consumers, codec):
        topic = new_topic(cluster)
        written = Written(cluster, topic, compression_type=codec, transactional_id=f"{topic}-t")
        other = Written(cluster, topic, compression_type=codec)
        written.producer.init_transactions(60)
        for committed in (True, False, True, False, False):
            written.producer.begin_transaction()
            written.write(300, committed=committed, headers=[("a", b"1"), ("a", None), ("ü", b"")])
            other.write(70)  # between the transaction's batches
            written.write(30, committed=committed)
            if committed:
                written.producer.commit_transaction(60)
            else:
                written.producer.abort_transaction(60)
        written.at |= other.at
        for level in ("read_committed", "read_uncommitted"):
            expected = written.rows(read_committed=level == "read_committed")
            consumer = consumers.assigned(topic, auto_offset_reset="earliest", isolation_level=level)
            assert rows_of(gather(consumer, len(expected))) == expected
            # Past the last marker, which is not delivered.
            end = max(written.at) + 2
            until(
                lambda c=consumer, end=end: (
                    c.poll_arrow(100).num_rows == 0 and c.position(TopicPartition(topic, 0)) == end
                )
            )
            # From the middle of a batch.
            middle = expected[len(expected) // 2]
            consumer.seek(TopicPartition(topic, 0), middle[2])
            assert rows_of(gather(consumer, 1, max_records=1)) == [middle]

    def test_what_compaction_left_is_what_others_read(self, cluster, consumers):
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": 1 << 20,
            "min.cleanable.dirty.ratio": 0.01,
            "max.compaction.lag.ms": 100,
        }
        topic = new_topic(cluster, config=config)
        rnd = random.Random(5)
        written = 2500
        producer = Producer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap_servers),
                "batch.num.messages": 50,
                "enable.idempotence": True,
            }
        )
        for number in range(written):
            producer.produce(topic, b"%d" % number * 300, b"%d" % rnd.randrange(40), 0)
        assert producer.flush(60) == 0

        def read(consumer):
            return [r.offset for r in collect_all(consumer, TopicPartition(topic, 0), written)]

        plain = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        plain.assign([TopicPartition(topic, 0)])
        try:

            def compacted():
                plain.seek_to_beginning()
                return len(read(plain)) < written / 2

            until(compacted, 120, "the log cleaner")
            consumer = consumers.assigned(topic, auto_offset_reset="earliest")

            def same():
                # The cleaner may come again in between.
                plain.seek_to_beginning()
                consumer.seek_to_beginning()
                expected, tables = read(plain), []
                while consumer.position(TopicPartition(topic, 0)) < written:
                    tables.append(consumer.poll_arrow(500))
                return [o for table in tables for o in table["offset"].to_pylist()] == expected

            until(same)
        finally:
            plain.close()

    def test_the_brokers_time_and_batches_by_partition(self, cluster, consumers):
        topic = new_topic(cluster, 2, config={"message.timestamp.type": "LogAppendTime"})
        before = int(time.time() * 1000)
        for partition in (0, 1):
            consuming.produce(cluster, topic, [b"%d" % n for n in range(20 + partition)], partition)
        consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest", max_poll_records=3)
        found = {}
        until(lambda: found.update(consumer.poll_batches(500)) or len(found) == 2)
        for tp, records in found.items():
            assert isinstance(records, pa.RecordBatch)
            assert records.schema.names == [*COLUMNS[2:5], "leader_epoch", "key", "value", "headers"]
            assert records["value"].to_pylist() == [b"%d" % n for n in range(20 + tp.partition)]
            assert set(records["timestamp_type"].to_pylist()) == {1}
            assert min(records["timestamp"].cast(pa.int64()).to_pylist()) >= before
        some = consumer.metrics()["consumer-fetch-manager-metrics"]
        assert some["records-consumed-rate"] > 0
        assert some["bytes-consumed-rate"] > 0

    def test_columns_limits_and_mistakes(self, cluster, consumers):
        topic = new_topic(cluster, 2)
        for partition in (0, 1):
            consuming.produce(cluster, topic, [b"%d" % n for n in range(30)], partition)
        consumer = consumers.assigned(
            topic, 0, 1, auto_offset_reset="earliest", value_deserializer=Exploding()
        )
        table = gather(consumer, 25, max_records=25, columns=["value"])
        assert table.schema.names == ["value"]
        assert table.num_rows == 25
        # Other columns: what is left of the fetch is read again.
        rest = gather(consumer, 35, max_records=20, columns=["partition", "topic"])
        assert rest.schema.names == ["topic", "partition"]
        assert (table.num_rows + rest.num_rows, set(rest["topic"].to_pylist())) == (60, {topic})
        empty = consumer.poll_arrow()
        assert (empty.num_rows, empty.schema.names) == (0, COLUMNS)
        assert consumer.poll_batches() == {}
        with pytest.raises(ValueError, match=r"No columns \['keys'\]; there are topic"):
            consumer.poll_arrow(columns=["keys"])
        with pytest.raises(ValueError, match=r"No columns \['topic'\]; there are offset"):
            consumer.poll_batches(columns=["topic"])
        with pytest.raises(ValueError, match="max_records"):
            consumer.poll_arrow(max_records=0)
        with pytest.raises(ValueError, match="negative"):
            consumer.poll_arrow(-1)
        consumer.close()
        with pytest.raises(kafka_errors.IllegalStateError):
            consumer.poll_arrow()

    def test_many_fetches_make_one_batch(self, cluster, consumers):
        topic = new_topic(cluster)
        written = Written(cluster, topic, batch_num_messages=10)
        written.write(200, value=b"v" * 500)
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", max_partition_fetch_bytes=7000)
        fetcher = consumer._fetcher
        consumer.poll(0, 1)
        until(lambda: consumer.poll(100, max_records=1))
        values = []
        while len(values) < 199:
            # A reply that arrives while the one before is taken.
            until(lambda: fetcher._completed_fetches or not fetcher.in_flight_fetches())
            for records in consumer.poll_batches(500).values():
                values += records["value"].to_pylist()
        assert len(values) == 199


class Exploding(Deserializer):
    def deserialize(self, topic, headers, data):
        raise AssertionError("deserializers are for records")


def collect_all(consumer, tp, end):
    """All records up to an offset that compaction may have taken."""
    records = []
    deadline = time.monotonic() + 60
    while consumer.position(tp) < end:
        assert time.monotonic() < deadline
        for some in consumer.poll(timeout_ms=500).values():
            records += some
    return records


@pytest.mark.kafka
class TestPositions:
    def test_records_and_batches_in_turn(self, cluster, consumers):
        topic = new_topic(cluster, 3)
        for partition in range(3):
            written = Written(cluster, topic, batch_num_messages=7)
            for number in range(400):
                written.producer.produce(topic, b"%d" % number, partition=partition)
            assert written.producer.flush(60) == 0
        consumer = consumers.assigned(
            topic,
            0,
            1,
            2,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=3000,
            consumer_timeout_ms=100,
        )
        rnd = random.Random(3)
        got = {TopicPartition(topic, partition): [] for partition in range(3)}
        paused = None
        deadline = time.monotonic() + 120
        while sum(map(len, got.values())) < 1200:
            assert time.monotonic() < deadline
            match rnd.randrange(5):
                case 0:
                    for tp, records in consumer.poll(50, max_records=rnd.randint(1, 60)).items():
                        got[tp] += [int(record.value) for record in records]
                case 1:
                    for record in itertools.islice(consumer, rnd.randint(1, 20)):
                        got[TopicPartition(topic, record.partition)].append(int(record.value))
                    # An iterator is not to be mixed with poll, says kafka-python; with poll_arrow it may be.
                    for tp, records in consumer.poll_batches(50).items():
                        got[tp] += map(int, records["value"].to_pylist())
                case 2:
                    table = consumer.poll_arrow(
                        50, max_records=rnd.randint(1, 60), columns=["partition", "value"]
                    )
                    for row in table.to_pylist():
                        got[TopicPartition(topic, row["partition"])].append(int(row["value"]))
                case 3:
                    for tp, records in consumer.poll_batches(50, rnd.randint(1, 60)).items():
                        got[tp] += map(int, records["value"].to_pylist())
                        assert consumer.position(tp) == records["offset"][-1].as_py() + 1
                case _:
                    if paused is not None:
                        consumer.resume(paused)
                        paused = None
                    else:
                        paused = rnd.choice(list(got))
                        consumer.pause(paused)
        assert list(got.values()) == [list(range(400))] * 3

    @pytest.mark.parametrize("way", ["poll", "poll_arrow"])
    def test_what_was_left_of_a_paused_partition_comes_when_it_is_resumed(self, cluster, consumers, way):
        topic = new_topic(cluster, 2)
        for partition in (0, 1):
            consuming.produce(cluster, topic, [b"%d" % n for n in range(50)], partition)
        consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest")

        def read(count, **options):
            if way == "poll_arrow":
                table = gather(consumer, count, **options)
                return list(zip(*table.select(["partition", "offset"]).to_pydict().values(), strict=True))
            return [(record.partition, record.offset) for record in collect(consumer, count)]

        consumer.config["max_poll_records"] = 10
        ((partition, last),) = set(read(10, max_records=10)[-1:])
        consumer.pause(TopicPartition(topic, partition))
        others = read(50)
        assert others == [(1 - partition, offset) for offset in range(50)]
        consumer.resume(TopicPartition(topic, partition))
        assert read(49 - last) == [(partition, offset) for offset in range(last + 1, 50)]

    def test_pause_seek_and_resume(self, cluster, consumers):
        topic = new_topic(cluster, 2)
        tp, other = (TopicPartition(topic, partition) for partition in (0, 1))
        for partition in (0, 1):
            consuming.produce(cluster, topic, [b"%d" % n for n in range(50)], partition)
        consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest")
        first = gather(consumer, 10, max_records=10)
        assert first.num_rows == 10
        consumer.pause(tp)
        left = 50 - first["partition"].to_pylist().count(1)
        assert set(gather(consumer, left)["partition"].to_pylist()) == {1}
        assert consumer.poll_arrow(200).num_rows == 0
        consumer.seek(other, 45)
        assert gather(consumer, 5)["offset"].to_pylist() == [45, 46, 47, 48, 49]
        consumer.resume(tp)
        taken = first["partition"].to_pylist().count(0)
        assert gather(consumer, 50 - taken)["offset"].to_pylist() == list(range(taken, 50))
        consumer.seek(tp, 20)
        assert gather(consumer, 5, max_records=5)["offset"].to_pylist() == list(range(20, 25))
        consumer.seek(tp, 48)  # what was fetched behind 25 is of another time
        assert gather(consumer, 2)["offset"].to_pylist() == [48, 49]
        assert consumer.position(tp) == 50

    def test_a_rebalance_loses_nothing(self, cluster, consumers):
        topic = new_topic(cluster, 4)
        options = {
            "group_id": f"{topic}-g",
            "auto_offset_reset": "earliest",
            "max_partition_fetch_bytes": 4000,
            "heartbeat_interval_ms": 200,
        }
        for partition in range(4):
            consuming.produce(cluster, topic, [b"%d" % n + bytes(90) for n in range(500)], partition)
        first = consumers(topic, **options)
        got = set()

        def read(consumer):
            table = consumer.poll_arrow(50, max_records=60, columns=["partition", "offset"])
            # A commit that came too late for the rebalance (a busy machine) gives a part to the other one again.
            got.update(zip(*table.to_pydict().values(), strict=True))

        until(lambda: read(first) or len(got) > 300)
        second = consumers(topic, **options)  # auto-commits where it is when partitions are taken from it
        alive = [first, second]

        def both(done):
            for consumer in alive:
                read(consumer)
            return done()

        until(lambda: both(lambda: len(second.assignment()) == 2))
        until(lambda: both(lambda: len(got) > 1200))
        second.commit()
        alive.remove(second)
        second.close()
        until(lambda: both(lambda: len(got) >= 2000))
        assert sorted(got) == [(partition, offset) for partition in range(4) for offset in range(500)]
        first.commit()
        kept = first.committed(TopicPartition(topic, 0), metadata=True)
        assert isinstance(kept, OffsetAndMetadata)
        assert kept.offset == 500
        assert (
            kept.metadata
        )  # the lineage: what was read as batches is remembered as what was read as records

    def test_through_leader_changes(self, cluster, consumers):
        topic = new_topic(cluster)
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        stop = threading.Event()
        offsets = []

        def write():
            with Writer(cluster) as writer:
                while not stop.is_set():
                    offsets.extend(writer.write(topic, 1, timeout_s=60))

        thread = threading.Thread(target=write)
        thread.start()
        tables = []
        try:
            for _ in range(3):
                enough = len(offsets) + 30
                until(lambda n=enough: tables.append(consumer.poll_arrow(100)) or len(offsets) > n)
                mover = threading.Thread(target=cluster.move_leader, args=(topic,))
                mover.start()
                until(lambda m=mover: tables.append(consumer.poll_arrow(100)) or not m.is_alive())
                mover.join()
        finally:
            stop.set()
            thread.join()
        read = pa.concat_tables(tables)
        rest = max(offsets) + 1 - read.num_rows
        if rest:
            read = pa.concat_tables([read, gather(consumer, rest)])
        assert read["offset"].to_pylist() == list(range(max(offsets) + 1))
        epochs = read["leader_epoch"].to_pylist()
        assert epochs == sorted(epochs)
        assert len(set(epochs)) >= 4
        assert consumers.of(LogDiverged) == []

    def test_a_divergence_is_found_behind_batches_too(self, cluster, consumers):
        topic = new_topic(cluster, replication_factor=2)
        consuming.produce(cluster, topic, [b"kept"] * 4)
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")

        def write_and_read():
            consuming.produce(cluster, topic, [b"lost"] * 3, acks=1)
            assert gather(consumer, 7)["value"].to_pylist() == [b"kept"] * 4 + [b"lost"] * 3

        assert list(cluster.unclean_failover(topic, during=write_and_read).offsets) == [4, 5, 6]
        consuming.produce(cluster, topic, [b"new"] * 8)
        with pytest.raises(LogDivergedError) as caught:
            until(lambda: consumer.poll_arrow(500).num_rows)
        assert (caught.value.event.divergent_offset, caught.value.event.rolled_back) == (4, (4, 6))
        consumer.seek(TopicPartition(topic, 0), 4)
        assert gather(consumer, 8)["value"].to_pylist() == [b"new"] * 8


@pytest.mark.kafka
class TestDamage:
    @pytest.mark.parametrize("way", ["poll", "poll_arrow"])
    def test_a_damaged_batch_stops_its_partition_where_it_is(self, cluster, consumers, way):
        topic = new_topic(cluster, assignments={0: [1], 1: [1]})
        bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
        for value in (b"first", b"second", b"third"):
            consuming.produce(cluster, topic, [value])
        (path,) = cluster.log_segments(topic, 0)
        place = path.read_bytes().index(b"second")
        flip(path, place)
        consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="earliest")

        def poll():
            if way == "poll":
                return [(r.partition, r.offset) for some in consumer.poll(500).values() for r in some]
            return list(
                zip(
                    *consumer.poll_arrow(500, columns=["partition", "offset"]).to_pydict().values(),
                    strict=True,
                )
            )

        assert until(poll) == [(0, 0)]
        for number in range(3):
            consuming.produce(cluster, topic, [b"x"], 1)
            others, errors = [], []
            deadline = time.monotonic() + 60
            # It goes on saying so, and does not hold up the other partition.
            while not (others and errors):
                assert time.monotonic() < deadline, (others, errors)
                try:
                    others += poll()
                except kafka_errors.CorruptRecordError as error:
                    errors.append(str(error))
            assert others == [(1, number)]
            assert consumer.position(bad) == 1
        assert consumer.position(good) == 3
        if way == "poll_arrow":
            assert f"{topic}-0: Offsets 1 to 1: their CRC is" in errors[0]
            assert "The position stays 1" in errors[0]
        else:
            assert (
                "The position stays before this batch. If the network may have damaged it, poll again."
                in errors[0]
            )
            assert "To skip the batch, seek past it." in errors[0]
        flip(path, place)
        got = []

        def repaired():
            with contextlib.suppress(kafka_errors.CorruptRecordError):  # of a fetch from before
                got.extend(poll())
            return len(got) == 2

        until(repaired)
        assert got == [(0, 1), (0, 2)]

    def test_seek_leaves_it_out(self, cluster, consumers):
        topic = new_topic(cluster, assignments={0: [1]})
        for value in (b"first", b"second"):
            consuming.produce(cluster, topic, [value])
        (path,) = cluster.log_segments(topic, 0)
        flip(path, path.read_bytes().index(b"first"))
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        with pytest.raises(kafka_errors.CorruptRecordError):
            until(lambda: consumer.poll_arrow(500).num_rows)
        consumer.seek(TopicPartition(topic, 0), 1)
        assert gather(consumer, 1)["value"].to_pylist() == [b"second"]


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


class Numbers(Deserializer):
    def deserialize(self, topic, headers, data):
        return int(data)


@pytest.mark.kafka
def test_a_failing_deserializer_does_not_hang_poll(cluster, consumers):
    topic = new_topic(cluster)
    for value in (b"1", b"x", b"3"):  # kafka-python deserializes what is in a batch before the position, too
        consuming.produce(cluster, topic, [value])
    consumer = consumers.assigned(topic, auto_offset_reset="earliest", value_deserializer=Numbers())
    offsets = []
    for _ in range(3):
        # Each poll says so again, and the position is where it was.
        with pytest.raises(ValueError, match="invalid literal"):
            until(lambda: offsets.extend(r.offset for some in consumer.poll(500).values() for r in some))
        assert consumer.position(TopicPartition(topic, 0)) == 1
    assert offsets == [0]
    consumer.seek(TopicPartition(topic, 0), 2)
    assert [record.value for record in collect(consumer, 1)] == [3]


class TestOldFormats:
    """Messages that brokers before 0.11 wrote; no broker that runs here writes them any more."""

    @pytest.mark.parametrize("columns", [None, ["offset", "value"]])
    @pytest.mark.parametrize("views", [False, True])
    def test_between_new_ones(self, columns, views):
        buffer = bytearray(batch.encode([b"k"] * 2, [b"0", b"1"], timestamps=NOW))
        for magic in (0, 1):
            old = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
            for offset in (2 + 2 * magic, 3 + 2 * magic):
                old.append(offset, timestamp=NOW, key=None, value=b"%d" % offset)
            buffer += old.build()
        new = batch.encode(None, [b"6", b"7"], timestamps=NOW, headers={1: [("h", b"v")]})
        batch.stamp_address(new, 6, 9)
        drained = []
        part = ArrowRecords(
            Kind(frozenset(columns or [*COLUMNS[2:], "leader_epoch"]), views),
            1,
            TopicPartition("t", 0),
            MemoryRecords(bytes(buffer + new)),
            check_crcs=True,
            isolation_level=0,
            aborted_transactions=None,
            metric_aggregator=SimpleNamespace(record=lambda *what: drained.append(what)),
            on_drain=drained.append,
        )
        taken = []
        while part:
            records = part.take(3)
            if records is not None:
                records.validate(full=True)
                taken.append(records)
                assert part.next_fetch_offset == records["offset"][-1].as_py() + 1
        assert [r["offset"].to_pylist() for r in taken] == [[1], [2, 3, 4], [5, 6, 7]]
        assert len({tuple(r.schema.names) for r in taken}) == 1
        table = pa.Table.from_batches(taken)
        assert table["value"].to_pylist() == [b"%d" % n for n in range(1, 8)]
        assert drained == [(TopicPartition("t", 0), len(buffer + new), 7), part]
        assert part.take(1) is None
        part.drain()
        assert len(drained) == 2
        if columns is None:
            assert table["timestamp"].cast(pa.int64()).to_pylist() == [NOW, -1, -1, NOW, NOW, NOW, NOW]
            assert table["headers"].to_pylist()[-1] == [{"key": "h", "value": b"v"}]
            assert table["leader_epoch"].to_pylist()[-1] == part.leader_epoch == 9
