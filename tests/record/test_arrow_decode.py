"""Fetch responses → Arrow, against kafka-python's reader, against the codec that reads batch by batch, and against damage."""

from __future__ import annotations

import itertools
import mmap
import random
import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.structs import TopicPartition

from kafkasafe.record import batch
from kafkasafe.record.arrow_decode import COLUMNS, SCHEMA, Decoder, OldFormatError
from kafkasafe.record.batch import Compression, CorruptBatchError
from kafkasafe.record.batch.compression import compress

NOW = 1_700_000_000_000
TP = TopicPartition("topic", 0)

LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
ABORT, COMMIT = (struct.pack(">hh", 0, kind) for kind in (0, 1))


class Decoded(NamedTuple):
    table: pa.Table
    next_offset: int


def decode(buffer, **options):
    """All records of a buffer, and where reading continues."""
    decoder = Decoder(buffer, **options)
    table = pa.Table.from_batches(iter(decoder.read, None), schema=decoder.schema)
    return Decoded(table, decoder.next_offset)


@dataclass(frozen=True)
class Record:
    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: list


@dataclass(frozen=True)
class Batch:
    """A batch as a broker may have it; `encode` is not the codec under test."""

    base: int
    last_delta: int
    records: list[Record]
    flags: int = 0
    producer: int = -1
    epoch: int = 0
    compression: Compression = Compression.NONE
    max_timestamp: int = NOW + 5

    @property
    def next_offset(self):
        return self.base + self.last_delta + 1

    def encode(self, *, compressed=True):
        body = b"".join(map(encode_record, self.records))
        flags = self.flags
        if compressed and self.compression is not Compression.NONE and self.records:
            body = compress(body, self.compression, None)
            flags |= self.compression
        covered = struct.pack(
            ">hiqqqhii",
            flags,
            self.last_delta,
            NOW,
            self.max_timestamp,
            self.producer,
            0 if self.producer >= 0 else -1,
            0 if self.producer >= 0 else -1,
            len(self.records),
        )
        return with_crc(self.base, self.epoch, covered + body)


def with_crc(base, epoch, covered):
    return struct.pack(">qiibI", base, len(covered) + 9, epoch, 2, crc32c.crc32c(covered)) + covered


def varint(number):
    number = (number << 1) ^ (number >> 63)
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(content):
    return varint(-1) if content is None else varint(len(content)) + content


def encode_record(record):
    rest = b"\0" + varint(record.timestamp_delta) + varint(record.offset_delta)
    rest += field(record.key) + field(record.value) + varint(len(record.headers))
    rest += b"".join(field(name.encode()) + field(value) for name, value in record.headers)
    return varint(len(rest)) + rest


def simple(base, count, *, size=20, **options):
    records = [Record(i, i, b"k%d" % (base + i), b"%0*d" % (size, base + i), []) for i in range(count)]
    return Batch(base, count - 1, records, **options)


def control(base, kind, producer):
    return Batch(base, 0, [Record(0, 0, kind, b"\0" * 6, [])], TRANSACTIONAL | CONTROL, producer)


def encoded(batches, **options):
    return b"".join(b.encode(**options) for b in batches)


CONTENT = st.none() | st.binary(max_size=5) | st.binary(max_size=200) | st.just(bytes(70))
PAIRS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


@st.composite
def record_lists(draw):
    kind = draw(st.sampled_from(["few", "uniform", "many", "runs", "headed"]))
    rnd = random.Random(draw(st.integers(0, 2**32)))  # drawing each number would be too much for hypothesis
    if kind == "few":
        return draw(
            st.lists(
                st.builds(Record, st.just(0), st.integers(-5, 70_000), CONTENT, CONTENT, PAIRS), max_size=5
            )
        )
    count = rnd.randint(1, 400)
    sizes = {"uniform": (7,), "many": (0, 1, 5, 56, 64, 300), "runs": (20,), "headed": (3, 9)}[kind]
    records = []
    for index in range(count):
        if kind == "runs" and index % 270 == 269:
            sizes = (rnd.randint(0, 9000),)
        value = rnd.randbytes(rnd.choice(sizes))
        key = rnd.choice((None, value[:3])) if kind == "many" else b"key"
        headers = []
        if kind == "headed" and rnd.random() < 0.7:
            headers = [(f"h{i}", rnd.choice((None, b"", value))) for i in range(rnd.choice((1, 2, 2, 30)))]
        records.append(Record(0, rnd.choice((0, 0, 3)), key, value, headers))
    return records


@st.composite
def logs(draw):
    """Batches as they follow each other in a log, and the aborted transactions that a broker would list."""
    rnd = random.Random(draw(st.integers(0, 2**32)))  # drawing each number would be too much for hypothesis
    offset = draw(st.sampled_from([0, 7, 2**33]))
    batches, open_since, aborted = [], {}, []
    for records in draw(st.lists(record_lists(), min_size=1, max_size=5)):
        producer = rnd.choice((-1, -1, 11, 12))
        transactional = producer >= 0 and rnd.random() < 0.8
        compacted = rnd.random() < 0.3
        delta, deltas = 0, []
        for _ in records:
            delta += rnd.randint(0, 3) if compacted else 0
            deltas.append(delta)
            delta += 1
        records = [
            Record(d, r.timestamp_delta, r.key, r.value, r.headers)
            for d, r in zip(deltas, records, strict=True)
        ]
        last = max(0, delta - 1) + (rnd.randint(0, 3) if compacted else 0)
        flags = TRANSACTIONAL if transactional else 0
        if rnd.random() < 0.3:
            flags |= LOG_APPEND_TIME
        compression = rnd.choice(list(Compression))
        batches.append(
            Batch(offset, last, records, flags, producer, rnd.choice((-1, 0, 3)), compression=compression)
        )
        if transactional:
            open_since.setdefault(producer, offset)
        offset += last + 1 + (rnd.randint(0, 5) if compacted else 0)
        for producer, first in list(open_since.items()):
            if rnd.random() < 0.6:
                kind = rnd.choice((ABORT, COMMIT))
                batches.append(control(offset, kind, producer))
                offset += 1
                del open_since[producer]
                if kind is ABORT:
                    aborted.append((producer, first))
    rnd.shuffle(aborted)
    return batches, aborted


def by_kafka_python(buffer, from_offset, aborted, *, read_committed):
    """(rows, (next offset, last leader epoch)) as KafkaConsumer reads them."""
    reader = Fetcher.PartitionRecords(
        from_offset,
        TP,
        MemoryRecords(buffer),
        isolation_level=IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED,
        aborted_transactions=[SimpleNamespace(producer_id=p, first_offset=f) for p, f in aborted],
    )
    rows = [
        (r.offset, r.timestamp, r.timestamp_type, r.leader_epoch, r.key, r.value, r.headers)
        for r in reader.take()
    ]
    return rows, (reader.next_fetch_offset, reader.leader_epoch)


def rows_of(table):
    assert table.schema == SCHEMA
    table.validate(full=True)
    columns = table.to_pydict()
    columns["timestamp"] = table["timestamp"].cast(pa.int64()).to_pylist()
    columns["headers"] = [[(h["key"], h["value"]) for h in headers] for headers in columns["headers"]]
    return list(zip(*columns.values(), strict=True))


class TestAgainstKafkaPython:
    @given(logs(), st.booleans(), st.data())
    @settings(max_examples=100)
    def test_the_same_records_and_the_same_next_offset(self, log, read_committed, data):
        batches, aborted = log
        position = data.draw(st.integers(batches[0].base, batches[0].next_offset - 1))
        cut = data.draw(st.integers(0, 80))
        plain = encoded(batches, compressed=False)
        tail = simple(batches[-1].next_offset, 3).encode()[:cut]
        expected, end = by_kafka_python(plain, position, aborted, read_committed=read_committed)
        options = {"from_offset": position, "aborted": aborted, "read_committed": read_committed}
        decoded = decode(encoded(batches) + tail, **options)
        assert rows_of(decoded.table) == expected
        assert decoded.next_offset == end[0]
        decoder = Decoder(encoded(batches), **options)
        while decoder.read() is not None:
            pass
        assert (decoder.next_offset, decoder.leader_epoch) == end

    @given(logs(), st.integers(20, 300), st.sampled_from([1, 500, 1 << 26]), st.booleans())
    @settings(max_examples=40)
    def test_piece_by_piece_is_all_of_it_and_each_piece_says_where_it_ends(
        self, log, most, most_bytes, read_committed
    ):
        batches, aborted = log
        buffer = encoded(batches)
        whole = decode(buffer, aborted=aborted, read_committed=read_committed)
        decoder = Decoder(memoryview(buffer), aborted=aborted, read_committed=read_committed)
        pieces, given_rows = [], 0
        while (piece := decoder.read(most, most_bytes)) is not None:
            assert 0 < piece.num_rows <= most
            assert decoder.next_offset > piece["offset"][-1].as_py()
            # Whoever stops here and reads again from there gets the rest.
            rest = decode(
                buffer, from_offset=decoder.next_offset, aborted=aborted, read_committed=read_committed
            )
            given_rows += piece.num_rows
            assert whole.table.slice(given_rows) == rest.table
            pieces.append(piece)
        assert pa.Table.from_batches(pieces, schema=SCHEMA) == whole.table
        assert decoder.next_offset == whole.next_offset
        assert decoder.read(most) is None


class TestAgainstTheCodec:
    @pytest.mark.parametrize("compression", Compression)
    @pytest.mark.parametrize("count", [1, 63, 255, 256, 257, 8193])
    @pytest.mark.parametrize("kind", ["uniform", "variable", "headed"])
    def test_every_size(self, compression, count, kind):
        rnd = random.Random(count)
        values = (
            [b"12"] * count
            if kind == "uniform"
            else [rnd.randbytes(rnd.choice((0, 1, 55, 64, 130))) for _ in range(count)]
        )
        keys = [b"%05d" % (i % 7) for i in range(count)] if kind == "headed" else None
        headers = {i: [("a", b"b"), ("c", None)] for i in range(0, count, 3)} if kind == "headed" else None
        one = batch.encode(keys, values, timestamps=NOW, headers=headers, compression=compression)
        batch.stamp_address(one, 5, 2)
        other = bytearray(one)
        batch.stamp_address(other, 5 + count, 3)
        table = decode(one + other).table
        expected = batch.decode(one)
        assert table["value"].to_pylist() == expected.values * 2
        assert table["key"].to_pylist() == expected.keys * 2
        assert table["offset"].to_pylist() == list(range(5, 5 + 2 * count))
        assert table["leader_epoch"].to_pylist() == [2] * count + [3] * count
        assert table["timestamp"].cast(pa.int64()).to_pylist() == expected.timestamps * 2
        pairs = [[(h["key"], h["value"]) for h in record] for record in table["headers"].to_pylist()]
        assert pairs == [expected.headers.get(i, []) for i in range(count)] * 2

    @given(logs())
    @settings(max_examples=40)
    def test_batch_by_batch(self, log):
        batches, _ = log
        buffer = encoded(batches)
        expected = []
        for at, header in batch.iter_headers(buffer):
            if header.count and not header.is_control:
                columns = batch.decode(buffer, at)
                expected += zip(
                    columns.offsets, columns.timestamps, columns.keys, columns.values, strict=True
                )
        assert [(r[0], r[1], r[4], r[5]) for r in rows_of(decode(buffer).table)] == expected


def plain(records):
    """With copies instead of views."""
    for name in ("key", "value"):
        at = records.schema.get_field_index(name)
        assert records.schema.field(at).type == pa.binary_view()
        records = records.set_column(at, name, records.column(at).cast(pa.binary()))
    return records


class TestViews:
    @given(logs(), st.booleans(), st.data())
    @settings(max_examples=60)
    def test_the_same_as_copies(self, log, read_committed, data):
        batches, aborted = log
        position = data.draw(st.integers(batches[0].base, batches[0].next_offset - 1))
        most = data.draw(st.none() | st.integers(50, 300))
        buffer = (
            encoded(batches) + simple(batches[-1].next_offset, 3).encode()[: data.draw(st.integers(0, 80))]
        )
        options = {"from_offset": position, "aborted": aborted, "read_committed": read_committed}
        copies = decode(buffer, **options)
        # A part of a larger piece of memory, as a response is.
        decoder = Decoder(memoryview(bytearray(b"before" + buffer + b"after"))[6:-5], **options, views=True)
        parts = []
        while (part := decoder.read(most)) is not None:
            part.validate(full=True)
            parts.append(plain(part))
        assert pa.Table.from_batches(parts, schema=SCHEMA) == copies.table
        assert decoder.next_offset == copies.next_offset

    @pytest.mark.parametrize("compression", Compression)
    @pytest.mark.parametrize("sizes", [(0,), (12,), (13,), (-1,), (-1, 0), (1, 4, 12, 13, 40), (0, 13, -1)])
    def test_sizes_around_what_is_kept_in_the_view(self, compression, sizes):
        values = [None if (n := sizes[i % len(sizes)]) < 0 else b"%064d" % i * (n > 0) for i in range(40)]
        values = [v and v[-sizes[i % len(sizes)] :] for i, v in enumerate(values)]
        records = [Record(i, 0, values[-1 - i], value, []) for i, value in enumerate(values)]
        one = Batch(0, len(records) - 1, records, compression=compression).encode()
        records = Decoder(one, views=True).read()
        records.validate(full=True)
        assert records["value"].to_pylist() == values
        assert records["key"].to_pylist() == values[::-1]

    def test_only_values_that_are_not_in_the_view_keep_the_buffer(self):
        records = Decoder(simple(0, 30, size=12).encode(), views=True).read()
        assert len(records["value"].buffers()) == 2
        buffer = simple(0, 30, size=13).encode()
        records = Decoder(buffer, views=True).read()
        address = pa.py_buffer(buffer).address
        assert [each.address for each in records["value"].buffers()[2:]] == [address]

    def test_a_buffer_that_is_owned_in_between(self):
        buffer = encoded([simple(0, 30), simple(30, 30)])
        memory = bytearray(buffer)
        decoder = Decoder(memoryview(memory))
        first = decoder.read(10)
        assert isinstance(decoder.own_buffer(), bytes)
        memory[:] = bytes(len(memory))
        rest = list(iter(decoder.read, None))
        assert pa.Table.from_batches([first, *rest]) == decode(buffer).table


class TestWhatIsDelivered:
    def test_nothing_is_nothing(self):
        decoded = decode(b"", from_offset=9)
        assert (decoded.table.num_rows, decoded.next_offset) == (0, 9)
        assert decoded.table.schema == SCHEMA

    def test_a_batch_that_is_cut_is_no_progress(self):
        buffer = simple(9, 3).encode()[:-1]
        decoded = decode(buffer, from_offset=9)
        assert (decoded.table.num_rows, decoded.next_offset) == (0, 9)

    def test_batches_without_records_and_markers_are_passed(self):
        buffer = encoded([Batch(4, 5, []), control(10, COMMIT, 1), control(11, ABORT, 1)])
        assert decode(buffer, from_offset=4).next_offset == 12
        # Compaction may leave of a marker's batch the header alone.
        empty = Batch(4, 0, [], TRANSACTIONAL | CONTROL, 1)
        decoded = decode(encoded([empty]), from_offset=4, aborted=[(1, 0)], read_committed=True)
        assert decoded.next_offset == 5

    def test_two_transactions_of_one_producer_and_one_of_another(self):
        mine = {"flags": TRANSACTIONAL, "producer": 1}
        theirs = {"flags": TRANSACTIONAL, "producer": 2}
        buffer = encoded(
            [
                simple(0, 2, **mine),  # aborted
                simple(2, 2, **theirs),  # committed
                simple(4, 1),  # none
                simple(5, 1, producer=1),  # idempotent alone
                control(6, ABORT, 1),
                simple(7, 2, **mine),  # committed
                control(9, COMMIT, 2),
                control(10, COMMIT, 1),
                simple(11, 1, **mine),  # aborted
                control(12, ABORT, 1),
            ]
        )
        aborted = [(1, 11), (1, 0)]
        read = decode(buffer, aborted=aborted, read_committed=True)
        assert read.table["offset"].to_pylist() == [2, 3, 4, 5, 7, 8]
        assert read.next_offset == 13
        read = decode(buffer, aborted=aborted)
        assert read.table["offset"].to_pylist() == [0, 1, 2, 3, 4, 5, 7, 8, 11]

    def test_only_the_columns_that_are_asked_for(self):
        buffer = encoded([simple(0, 3), simple(3, 2)])
        whole = decode(buffer).table
        for names in (["value"], ["headers", "offset"], list(COLUMNS), []):
            table = decode(buffer, columns=names).table
            assert table.schema.names == [name for name in COLUMNS if name in names]
            assert table.num_rows == (5 if names else 0)
            assert all(table[name] == whole[name] for name in names)
        with pytest.raises(ValueError, match=r"No columns \['values'\]; there are offset, timestamp"):
            Decoder(buffer, columns=["values"])

    def test_what_was_read_does_not_hold_the_buffer(self):
        buffer = bytearray(encoded([simple(0, 300)]))
        table = decode(buffer).table
        expected = table.to_pydict()
        buffer[:] = bytes(len(buffer))
        assert table.to_pydict() == expected
        buffer.clear()

    def test_the_epoch_is_that_of_what_was_given_last(self):
        decoder = Decoder(encoded([simple(0, 3, epoch=4), simple(3, 2, epoch=6), control(5, COMMIT, 1)]))
        told = [(decoder.read(2).num_rows, decoder.next_offset, decoder.leader_epoch) for _ in range(3)]
        assert told == [(2, 2, 4), (1, 3, 4), (2, 5, 6)]
        assert decoder.read(2) is None
        assert (decoder.next_offset, decoder.leader_epoch) == (6, 0)

    def test_limits(self):
        with pytest.raises(ValueError, match="max_records is 0"):
            Decoder(b"").read(0)
        with mmap.mmap(-1, 2**31) as large, pytest.raises(ValueError, match="2147483648 bytes"):
            Decoder(large)

    def test_records_with_very_many_headers(self):
        many = [(f"{i}", b"v") for i in range(2000)]
        records = [Record(i, 0, None, None, many if i % 2 else many[: 1500 + i]) for i in range(20)]
        table = decode(Batch(0, 19, records).encode()).table
        assert [len(h) for h in table["headers"].to_pylist()] == [len(r.headers) for r in records]
        assert table["headers"][3].as_py()[-1] == {"key": "1999", "value": b"v"}


def damaged(body, count, last=None, **options):
    flags = options.get("flags", 0)
    covered = struct.pack(">hiqqqhii", flags, count - 1 if last is None else last, NOW, NOW, 1, 0, 0, count)
    return with_crc(2, 0, covered + body)


def raw(length=None, *, offset=0, key=b"\1", value=b"\2v", headers=b"\0"):
    rest = b"\0\0" + varint(offset) + key + value + headers
    return varint(len(rest) if length is None else length) + rest


LIES = {
    "ends too early": (damaged(raw(), 2), "2 records claimed in"),
    "more bytes": (damaged(raw() + raw() + b"\0" * 20, 2), "2 records end at byte"),
    "negative length": (damaged(varint(-8) + raw()[1:], 1), "does not end where"),
    "over the end": (damaged(raw(200), 1), "their batch at"),
    "over everything": (damaged(raw(70_000) + raw(offset=1), 2), "runs over the end"),
    "key too long": (damaged(raw(key=varint(500)), 1), "key or value that runs over"),
    "key too negative": (damaged(raw(key=varint(-2)), 1), "key or value that runs over"),
    "value too long": (damaged(raw(value=varint(500)), 1), "key or value that runs over"),
    "does not fill": (damaged(raw(headers=b"\0\0\0"), 1), "does not fill its length"),
    "headers negative": (damaged(raw(headers=varint(-1)), 1), "number of headers"),
    "headers too many": (damaged(raw(headers=varint(99)), 1), "number of headers"),
    "header over the end": (damaged(raw(headers=b"\2" + varint(50)), 1), "header that runs over"),
    "header nameless": (damaged(raw(headers=b"\2\1\1"), 1), "without a name"),
    "header not UTF-8": (damaged(raw(headers=b"\2\2\xff\1"), 1), "not UTF-8"),
    "header does not fill": (damaged(raw(headers=b"\2\2a\1\0"), 1), "does not fill its length"),
    "many headers do not fill": (
        damaged(b"".join(raw(offset=i, headers=b"\2\2a\1" + bytes(i == 19)) for i in range(20)), 20),
        "does not fill its length",
    ),
    "many headers run over": (
        damaged(b"".join(raw(offset=i, headers=b"\2\2a" + varint(50)) for i in range(20)), 20),
        "runs over",
    ),
    "offsets do not ascend": (damaged(raw(offset=1) + raw(offset=1), 2), "do not ascend"),
    "offset outside": (damaged(raw(offset=2), 1, 1), "outside"),
    "offset negative": (damaged(raw(offset=-1), 1), "outside"),
    "long number": (damaged(b"\xff" * 12, 1), "more than 64 bits"),
    "none claimed": (damaged(raw(), 0, 0), "0 records end at byte"),
    "none claimed, compressed": (
        damaged(compress(raw(), Compression.GZIP, None), 0, 0, flags=Compression.GZIP),
        "0 records end at byte",
    ),
    "not gzip": (damaged(raw(), 1, flags=1), "cannot be decompressed"),
}


class TestDamage:
    @pytest.mark.parametrize("lie", LIES)
    @pytest.mark.parametrize("limits", [(None, 1 << 26), (1, 1)])
    @pytest.mark.parametrize("views", [False, True])
    def test_what_is_good_before_it_is_given_and_it_stays_where_it_is(self, lie, limits, views):
        buffer, message = LIES[lie]
        whole = simple(0, 2).encode() + buffer + simple(50, 3).encode()
        decoder = Decoder(whole, views=views)
        offsets = []
        with pytest.raises(CorruptBatchError, match=message) as caught:
            offsets.extend(
                o for piece in iter(lambda: decoder.read(*limits), None) for o in piece["offset"].to_pylist()
            )
        assert str(caught.value).startswith("Offsets 2 to ")
        assert (offsets, decoder.next_offset) == ([0, 1], 2)
        with pytest.raises(CorruptBatchError, match=message):
            decoder.read()
        with pytest.raises(CorruptBatchError, match=message):
            decode(whole)

    def test_a_flipped_bit_is_found_by_the_crc(self):
        buffer = bytearray(encoded([simple(0, 2), simple(2, 2)]))
        buffer[-3] ^= 1
        with pytest.raises(CorruptBatchError, match=r"Offsets 2 to 3: their CRC is 0x"):
            decode(buffer)
        assert decode(buffer, check_crcs=False).table.num_rows == 4
        # Of batches that are passed over too: a marker decides what is delivered.
        marker = bytearray(encoded([control(0, COMMIT, 1)]))
        marker[-9] ^= 1
        with pytest.raises(CorruptBatchError, match="Offsets 0 to 0"):
            decode(marker)

    def test_a_batch_that_compaction_has_emptied_is_no_damage(self):
        for body, flags in ((b"", 0), (b"", Compression.GZIP), (compress(b"", Compression.GZIP, None), 1)):
            emptied = damaged(body, 0, 3, flags=flags)
            for before, after in itertools.product(([], [simple(0, 2)]), ([], [simple(6, 2)])):
                found = decode(encoded(before) + emptied + encoded(after))
                assert found.table["offset"].to_pylist() == [
                    batch.base + number for batch in before + after for number in range(2)
                ]
                assert found.next_offset == (8 if after else 6)

    def test_batches_that_go_back(self):
        decoder = Decoder(encoded([simple(0, 3), simple(2, 3)]))
        assert decoder.read().num_rows == 3
        with pytest.raises(CorruptBatchError, match="Offsets 2 to 4: the batch before it ends at 2"):
            decoder.read()
        assert decoder.next_offset == 3

    def test_headers_that_are_none(self):
        with pytest.raises(CorruptBatchError, match="claims a length of 3"):
            decode(struct.pack(">qi", 0, 3) + bytes(20))
        with pytest.raises(CorruptBatchError, match="magic 3"):
            decode(struct.pack(">qiib", 0, 60, 0, 3) + bytes(60))
        with pytest.raises(CorruptBatchError, match=r"Offset 4: a control record without a type"):
            decode(control(4, b"\0\0\0", 1).encode(), aborted=[(1, 0)], read_committed=True)
        empty = damaged(b"\0", 1, flags=TRANSACTIONAL | CONTROL)
        with pytest.raises(CorruptBatchError, match="without a type"):
            decode(empty, aborted=[(1, 0)], read_committed=True)

    def test_a_bomb_does_not_go_off(self):
        bomb = Batch(0, 0, [Record(0, 0, None, bytes(10_000_000), [])], compression=Compression.ZSTD).encode()
        with pytest.raises(CorruptBatchError, match="larger than 1000000 bytes"):
            decode(bomb, max_body_bytes=1_000_000)

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_refused_behind_what_is_good(self, magic):
        old = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
        old.append(2, timestamp=NOW, key=b"k", value=b"v")
        decoder = Decoder(simple(0, 2).encode() + bytes(old.build()))
        assert decoder.read().num_rows == 2
        with pytest.raises(OldFormatError, match=f"format {magic}"):
            decoder.read()
        assert decoder.next_offset == 2

    @given(st.binary(max_size=400), st.integers(1, 5))
    @settings(max_examples=200)
    def test_any_bytes_are_records_or_an_error(self, body, count):
        whole = damaged(body, count, 10)
        try:
            expected = batch.decode(whole)
        except (CorruptBatchError, IndexError):
            expected = None
        try:
            table = decode(whole).table
        except CorruptBatchError:
            assert expected is None
        else:
            assert expected is not None
            assert table["value"].to_pylist() == expected.values
