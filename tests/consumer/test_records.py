"""Our decoder of records beside kafka-python's: each field, each position, each error, call by call."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import crc32c
import kafka.errors as kafka_errors
import pytest
from kafka.codec import gzip_encode
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from kafkasafe.kafkapython import records as room
from kafkasafe.kafkapython.record import Record
from kafkasafe.kafkapython.records import Records
from kafkasafe.record import record_decode
from kafkasafe.record.batch import Compression
from kafkasafe.record.batch.compression import compress

TP = TopicPartition("topic", 3)
NOW = 1_700_000_000_000
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def varint(number):
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(data):
    return varint(-1) if data is None else varint(len(data)) + data


def record(delta, timestamp, key, value, headers=(), attributes=b"\0"):
    pairs = b"".join(field(name.encode()) + field(data) for name, data in headers)
    rest = attributes + varint(timestamp) + varint(delta) + field(key) + field(value)
    rest += varint(len(headers)) + pairs
    return varint(len(rest)) + rest


def batch(base, body, count, last_delta, *, flags=0, producer=-1, epoch=0, codec_id=0, stored=None):
    covered = struct.pack(">hiqqqhii", flags | codec_id, last_delta, NOW, NOW + 7, producer, 0, 0, count)
    covered += body if stored is None else stored
    return struct.pack(">qiibI", base, len(covered) + 9, epoch, 2, crc32c.crc32c(covered)) + covered


def marker(base, producer, kind, epoch=0):
    body = record(0, 0, struct.pack(">hh", 0, kind), b"\0\0\0\0\0\0")
    return batch(base, body, 1, 0, flags=TRANSACTIONAL | CONTROL, producer=producer, epoch=epoch)


def old_batch(rnd, base, count):
    magic = rnd.choice((0, 1))
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=rnd.choice((0, 1)), batch_size=1 << 20)
    for index in range(count):
        builder.append(base + index, NOW, rnd.choice((None, b"k")), b"old%d" % index, [])
    return bytes(builder.build())


def some_bytes(rnd, sizes):
    return rnd.choice((None, b"", rnd.randbytes(rnd.choice(sizes)), rnd.randbytes(rnd.choice(sizes))))


def a_log(rnd):
    """Batches as a broker may give them: (ours, the same uncompressed, aborted transactions)."""
    offset = rnd.choice((0, 5, 2**33))
    ours, plain, aborted, open_since = [], [], [], {}
    for _ in range(rnd.randint(1, 5)):
        kind = rnd.random()
        epoch = rnd.choice((-1, 0, 7))
        if kind < 0.08:
            count = rnd.randint(1, 4)
            ours.append(old_batch(rnd, offset, count))
            plain.append(ours[-1])
            offset += count
            continue
        if kind < 0.14:  # compaction took all records
            gap = rnd.randint(0, 4)
            ours.append(batch(offset, b"", 0, gap, epoch=epoch))
            plain.append(ours[-1])
            offset += gap + 1
            continue
        if open_since and kind < 0.4:
            producer, first = open_since.popitem()
            abort = rnd.random() < 0.6
            if abort:
                aborted.append(SimpleNamespace(producer_id=producer, first_offset=first))
            ours.append(marker(offset, producer, 0 if abort else 1, epoch))
            plain.append(ours[-1])
            offset += 1
            continue
        count = rnd.choice((1, 2, 9, 63, 64, 65, 200, 300))
        holes, headed = rnd.random() < 0.3, rnd.random() < 0.4
        sizes = rnd.choice(((1,), (3, 70), (0, 5, 63, 64, 200), (9000, 1) if count < 70 else (40,)))
        rows, delta = [], 0
        for _ in range(count):
            delta += rnd.choice((0, 0, 1, 90)) if holes else 0
            headers = []
            if headed and rnd.random() < 0.5:
                headers = [
                    (rnd.choice("aäb") * 3, some_bytes(rnd, (4, 80))) for _ in range(rnd.randint(1, 3))
                ]
            rows.append(
                record(
                    delta,
                    rnd.choice((0, -3, 70, 10**6)),
                    some_bytes(rnd, (4,)),
                    some_bytes(rnd, sizes),
                    headers,
                )
            )
            delta += 1
        body = b"".join(rows)
        last = delta - 1 + (rnd.choice((0, 3)) if holes else 0)
        producer = rnd.choice((-1, 11, 12))
        flags = TRANSACTIONAL if producer >= 0 and rnd.random() < 0.8 else 0
        if flags:
            open_since.setdefault(producer, offset)
        flags |= LOG_APPEND_TIME if rnd.random() < 0.3 else 0
        options = {"flags": flags, "producer": producer, "epoch": epoch}
        compression = rnd.choice(list(Compression))
        stored = compress(body, compression, None) if compression else body
        ours.append(batch(offset, body, count, last, codec_id=int(compression), stored=stored, **options))
        plain.append(batch(offset, body, count, last, **options))
        offset += last + 1 + (rnd.choice((0, 4)) if holes else 0)
    rnd.shuffle(aborted)
    return ours, plain, aborted


class Count:
    """In place of what adds up a fetch's metrics."""

    def __init__(self):
        self.calls = []

    def record(self, *what):
        self.calls.append(what)


def story(kind, buffer, position, sizes, **options):
    """Everything that can be seen from outside while all is taken, call by call."""
    count, drained, told = Count(), [], []
    part = kind(
        position, TP, MemoryRecords(buffer), metric_aggregator=count, on_drain=drained.append, **options
    )
    for size in sizes:
        if not part:
            break
        try:
            taken, error = part.take(size), None
        except Exception as raised:
            taken, error = [], (type(raised), str(raised))
        for row in taken:
            assert type(row) in {ConsumerRecord, Record}
        told.append(
            (taken, error, part.next_fetch_offset, part.leader_epoch, part.bytes_read, part.records_read)
        )
        told.append((bool(part), list(count.calls), len(drained)))
    part.drain()
    part.drain()
    told.append((bool(part), count.calls, len(drained)))
    return told


def sizes_of(rnd, most=200):
    return [rnd.choice((1, 2, 30, 64, 500, 1000)) for _ in range(most)] + [None, None]


@pytest.mark.parametrize("seed", range(120))
def test_the_same_as_kafka_python_call_by_call(seed, monkeypatch):
    rnd = random.Random(seed)
    monkeypatch.setattr(room, "_PIECE", rnd.choice((2048, 64, 100)))
    ours, plain, aborted = a_log(rnd)
    ours, plain = b"".join(ours), b"".join(plain)
    cut = rnd.choice((0, 3, 17, 40))
    tail = batch(2**40, record(0, 0, b"k", b"v"), 1, 0)[:cut]
    first = struct.unpack_from(">q", ours)[0]
    position = first if rnd.random() < 0.5 else first + rnd.randint(0, 100)
    sizes = sizes_of(rnd)
    options = {"isolation_level": rnd.choice((COMMITTED, UNCOMMITTED)), "aborted_transactions": aborted}
    options["check_crcs"] = rnd.random() < 0.7
    expected = story(Fetcher.PartitionRecords, plain + tail, position, sizes, **options)
    assert story(Records, ours + tail, position, sizes, **options) == expected


@pytest.mark.parametrize("seed", range(80))
def test_the_same_error_behind_the_same_record(seed):
    """Bytes of the records are changed, and the CRC is right again or not compared."""
    rnd = random.Random(seed)
    batches = a_log(rnd)[1]
    index = rnd.randrange(len(batches))
    broken = bytearray(batches[index])
    begin = 61 if rnd.random() < 0.9 else 12
    for _ in range(rnd.choice((1, 1, 3))):
        at = rnd.randrange(min(begin, len(broken) - 1), len(broken))
        # The codec, and with it what may be decompressed, stays: the reference has no packages for it.
        if at not in (16, 21, 22):
            broken[at] ^= 1 << rnd.randrange(8)
    check_crcs = rnd.random() < 0.5
    if broken[16] == 2 and rnd.random() < 0.6:
        broken[17:21] = struct.pack(">I", crc32c.crc32c(broken[21:]))
    batches[index] = bytes(broken)
    buffer = b"".join(batches)
    position = struct.unpack_from(">q", buffer)[0]
    sizes = sizes_of(rnd, 30)
    expected = story(Fetcher.PartitionRecords, buffer, position, sizes, check_crcs=check_crcs)
    assert story(Records, buffer, position, sizes, check_crcs=check_crcs) == expected


@pytest.mark.parametrize(
    "body",
    [
        record(0, 0, b"k", b"v") + record(1, 0, b"k", b"v", attributes=b"\1"),
        record(0, 0, b"k", b"v") + record(1, 0, b"k", b"v", attributes=b"\x80\0"),
        record(0, 0, b"k", b"v") + record(1, -(2**62), b"k", b"v"),
        record(3, 0, b"k", b"v") + record(1, 0, b"k", b"v"),
        record(0, 0, b"k", b"v") + b"\x0e\0\0\2\3\1\0",
        record(0, 0, b"k", b"v") + b"\x0c\0\0\2\1\1\1",
        record(0, 0, b"k", b"v") * 2 + b"\0",
        record(0, 0, b"k", b"v") + b"\x12\0\0\2\1\1\2\2\xff\1",
        record(0, 0, b"k", b"v") + b"\xff" * 12,
        record(0, 0, b"k", b"v") + b"\1",
        record(0, 0, b"k", b"v"),
    ],
    ids=[
        "attributes",
        "long attributes",
        "early",
        "unordered",
        "minus two",
        "headers",
        "rest",
        "name",
        "long",
        "minus",
        "few",
    ],
)
@pytest.mark.parametrize("before", [0, 100])
def test_what_kafka_does_not_write_is_read_as_kafka_python_does(body, before):
    good = b"".join(record(0, 0, b"k", b"%d" % i) for i in range(before))
    buffer = batch(10, good + body, before + 2, before + 2)
    for sizes in ([None] * 3, [1] * 110):
        expected = story(Fetcher.PartitionRecords, buffer, 10, sizes)
        assert story(Records, buffer, 10, sizes) == expected


class Recording(Deserializer):
    """Notes what it is called with, and raises at one value."""

    def __init__(self, calls, poison=None, error=RuntimeError):
        self.calls, self.poison, self.error = calls, poison, error

    def deserialize(self, topic, headers, data):
        self.calls.append((topic, list(headers), data))
        if self.poison is not None and data == self.poison:
            raise self.error("poison")
        return ("made", data)


class OldStyle:
    """A deserializer without headers, which kafka-python calls once more when it complains."""

    def deserialize(self, topic, data):
        return (topic, data)


@pytest.mark.filterwarnings("ignore:deserializer does not implement")
@pytest.mark.parametrize("count", [5, 150])
@pytest.mark.parametrize("which", ["none", "key", "value", "stop", "type", "old"])
def test_deserializers_are_called_in_the_same_order_and_may_raise(count, which):
    rows = [
        record(i, 0, None if i % 5 == 0 else b"k%d" % i, b"v%d" % i, [("h", b"%d" % i)] if i % 2 else [])
        for i in range(count)
    ]
    buffer = batch(20, b"".join(rows), count, count - 1) + batch(20 + count, record(0, 0, b"a", b"b"), 1, 0)
    error = {"stop": StopIteration, "type": TypeError}.get(which, RuntimeError)
    for sizes in ([1] * (count + 4), [7] * count, [None] * 4):
        stories, calls = [], []
        for kind in (Fetcher.PartitionRecords, Records):
            called = []
            keys = Recording(called, b"k3" if which == "key" else None)
            values = Recording(called, None if which in ("none", "key") else b"v4", error)
            if which == "old":
                keys = values = OldStyle()
            stories.append(story(kind, buffer, 20, sizes, key_deserializer=keys, value_deserializer=values))
            calls.append(called)
        assert stories[0] == stories[1]
        assert calls[0] == calls[1]


def test_a_record_that_cannot_be_deserialized_is_left_out_by_a_seek_behind_it():
    """kafka-python deserializes what stands before the position in the batch, and fails there for ever."""
    buffer = batch(0, b"".join(record(i, 0, None, b"v%d" % i) for i in range(9)), 9, 8)
    calls = []
    values = Recording(calls, b"v4")
    part = Records(5, TP, MemoryRecords(buffer), value_deserializer=values)
    assert [row.value[1] for row in part.take()] == [b"v5", b"v6", b"v7", b"v8"]
    assert part.next_fetch_offset == 9
    with pytest.raises(RuntimeError, match="poison"):
        Fetcher.PartitionRecords(5, TP, MemoryRecords(buffer), value_deserializer=values).take()


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_damaged_compression_is_corrupt_and_no_package_is_asked_for(compression):
    body = record(0, 0, b"k", b"v" * 500)
    good = batch(0, body, 1, 0)
    bad = batch(1, body, 1, 0, codec_id=int(compression), stored=b"\xff" * 40)
    part = Records(0, TP, MemoryRecords(good + bad))
    assert [row.offset for row in part.take()] == [0]
    with pytest.raises(kafka_errors.CorruptRecordError, match="offset 1"):
        part.take()
    assert part.next_fetch_offset == 1


def test_damaged_gzip_and_an_unknown_codec_are_kafka_pythons_errors():
    body = record(0, 0, b"k", b"v" * 500)
    for codec_id, stored in ((1, b"\xff" * 40), (1, gzip_encode(body)[:-9]), (6, body)):
        buffer = batch(0, body, 1, 0) + batch(1, body, 1, 0, codec_id=codec_id, stored=stored)
        expected = story(Fetcher.PartitionRecords, buffer, 0, [None] * 3)
        assert story(Records, buffer, 0, [None] * 3) == expected


def test_a_marker_that_compaction_emptied_is_passed():
    """kafka-python raises RuntimeError there, in every poll."""
    empty = batch(0, b"", 0, 0, flags=TRANSACTIONAL | CONTROL, producer=1)
    part = Records(
        0, TP, MemoryRecords(empty + batch(1, record(0, 0, b"k", b"v"), 1, 0)), isolation_level=COMMITTED
    )
    assert [row.offset for row in part.take()] == [1]


def test_no_batch_is_looked_at_before_its_records_are_asked_for(monkeypatch):
    """What is decompressed at once is one batch, and an error comes no earlier than kafka-python's."""
    opened = []
    decompress = room.decompress
    monkeypatch.setattr(room, "decompress", lambda *args: opened.append(1) or decompress(*args))
    body = b"".join(record(i, 0, b"k", b"v") for i in range(100))
    stored = compress(body, Compression.ZSTD, None)
    buffer = b"".join(batch(100 * i, body, 100, 99, codec_id=4, stored=stored) for i in range(3))
    part = Records(0, TP, MemoryRecords(buffer))
    assert len(part.take(60)) == 60
    assert len(part.take(40)) == 40
    assert len(opened) == 1
    assert len(part.take(150)) == 150
    assert len(opened) == 3


def test_interrupted_within_a_take_nothing_counts_as_taken():
    """The position then is not this one's, and the fetcher throws it away and fetches again."""
    rows = b"".join(record(i, 0, None, b"v%d" % i) for i in range(100))

    class Interrupts(Deserializer):
        def deserialize(self, topic, headers, data):
            if data == b"v50":
                raise KeyboardInterrupt
            return data

    part = Records(0, TP, MemoryRecords(batch(0, rows, 100, 99)), value_deserializer=Interrupts())
    part.take(10)
    with pytest.raises(KeyboardInterrupt):
        part.take(80)
    assert part.next_fetch_offset == -1


@pytest.mark.parametrize("count", [63, 64])
def test_both_ways_to_decode_give_the_same(count, monkeypatch):
    rnd = random.Random(count)
    rows = [record(i, i - 30, some_bytes(rnd, (3, 80)), some_bytes(rnd, (70, 9000))) for i in range(count)]
    buffer = batch(7, b"".join(rows), count, count - 1)
    stories = []
    for many in (1, 1000):
        monkeypatch.setattr(record_decode, "_MANY", many)
        stories.append(story(Records, buffer, 7, [20] * 9))
    assert stories[0] == stories[1]
