"""Records of one layout are decoded by columns: beside kafka-python's, call by call, and beside our other ways."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest
from kafka.consumer.fetcher import Fetcher
from test_records import LOG_APPEND_TIME, batch, record, sizes_of, story

from kafkasafe.kafkapython import records as room
from kafkasafe.kafkapython.records import Records
from kafkasafe.record import record_decode
from kafkasafe.record.record_decode import NO_HEADERS, Place, read, read_alike

PLACE = Place("topic", 3, 5, 0, 1000, 1_700_000_000_000, None)
SIZES = (None, 0, 1, 15, 63, 64, 100, 200)
TIMES = (0, 1, -1, 63, 64, -64, -65, 8191, 8192, -8193, 2**31, -(2**31), 2**40)


def data(rnd, size):
    return None if size is None else rnd.randbytes(size)


def runs(rnd, most=6):
    """Records of a batch: runs of one layout, and others between them."""
    rows, delta = [], rnd.choice((0, 0, 50, 8000, 2**20))
    for _ in range(rnd.randint(1, most)):
        key, value, time = rnd.choice(SIZES), rnd.choice((*SIZES, 9000)), rnd.choice(TIMES)
        gaps = rnd.random() < 0.2
        # Around `_MANY`; some are whole pieces.
        for _ in range(rnd.choice((1, 63, 64, 65, 130, 300))):
            late = rnd.choice((0, 0, 0, 1)) if rnd.random() < 0.9 else 0
            rows.append(record(delta, time + late, data(rnd, key), data(rnd, value)))
            delta += rnd.choice((1, 1, 5)) if gaps else 1
        if rnd.random() < 0.3:
            rows.append(record(delta, time, b"k", b"v", [("h", rnd.choice((None, b"", b"x" * 70)))]))
            delta += 1
    return rows, delta


def whole(rnd):
    rows, delta = runs(rnd)
    flags = LOG_APPEND_TIME if rnd.random() < 0.3 else 0
    return batch(
        rnd.choice((0, 77, 2**33)), b"".join(rows), len(rows), delta - 1, flags=flags, epoch=2
    ), delta


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("kind", [bytes, memoryview], ids=["bytes", "view"])
def test_runs_of_one_layout_are_the_same_as_kafka_pythons(seed, kind, monkeypatch):
    rnd = random.Random(seed)
    monkeypatch.setattr(room, "_PIECE", rnd.choice((2048, 100)))
    buffer, delta = whole(rnd)
    first = struct.unpack_from(">q", buffer)[0]
    position = first if rnd.random() < 0.4 else first + rnd.randrange(delta)
    tail = buffer[: rnd.choice((0, 5, 40))]
    sizes = sizes_of(rnd)
    expected = story(Fetcher.PartitionRecords, buffer + tail, position, sizes)
    got = story(Records, kind(bytearray(buffer + tail)), position, sizes)
    assert got == expected
    for told in got:
        rows = told[0] if isinstance(told[0], list) else ()
        for row in rows:
            assert {type(row.key), type(row.value)} <= {bytes, type(None)}
            assert type(row.offset) is type(row.timestamp) is type(row.serialized_value_size) is int


@pytest.mark.parametrize("seed", range(80))
def test_damage_in_a_run_gives_the_same_records_and_the_same_error(seed):
    rnd = random.Random(seed)
    broken = bytearray(whole(rnd)[0])
    for _ in range(rnd.choice((1, 1, 4))):
        at = rnd.randrange(61, len(broken))
        broken[at] ^= 1 << rnd.randrange(8)
    check_crcs = rnd.random() < 0.3
    if rnd.random() < 0.8:
        broken[17:21] = struct.pack(">I", crc32c.crc32c(broken[21:]))
    buffer = bytes(broken)
    position = struct.unpack_from(">q", buffer)[0]
    sizes = sizes_of(rnd, 40)
    expected = story(Fetcher.PartitionRecords, buffer, position, sizes, check_crcs=check_crcs)
    assert story(Records, memoryview(buffer), position, sizes, check_crcs=check_crcs) == expected


@pytest.mark.parametrize(("reader", "count"), [(read_alike, 64), (read, 64), (read, 1)])
def test_rows_without_headers_share_a_list_that_cannot_be_changed(reader, count):
    rows = b"".join(record(i, 0, b"k", b"v") for i in range(count))
    assert [row[8] is NO_HEADERS for row in reader(rows, 0, count, PLACE).rows] == [True] * count
    for change in (
        lambda: NO_HEADERS.append(1),
        lambda: NO_HEADERS.extend([1]),
        lambda: NO_HEADERS.insert(0, 1),
        lambda: NO_HEADERS.__iadd__([1]),
        lambda: NO_HEADERS.__setitem__(slice(0), [1]),
    ):
        with pytest.raises(TypeError, match="Change a copy"):
            change()
    assert NO_HEADERS == []


def test_a_run_ends_before_the_first_record_of_another_layout():
    alike = [record(i, 7, b"key", b"value") for i in range(64)]
    others = {
        "longer": record(0, 7, b"key", b"values"),
        "same size": record(0, 7, b"keys", b"valu"),
        "longer number": record(64, 7, b"key", b"valu"),
        "earlier": record(0, 7, b"key", b"value"),
    }
    for name, other in others.items():
        body = b"".join(alike) + other + b"".join(alike)
        piece = read_alike(body, 0, 129, PLACE)
        assert piece.end == sum(map(len, alike)) + (len(b"".join(alike)) + len(other)) * (name == "earlier")
        assert read_alike(body[len(alike[0]) :], 0, 128, PLACE) is None or name == "earlier"


@pytest.mark.parametrize(
    "body",
    [
        record(0, 0, b"k", b"v", attributes=b"\1"),
        record(0, 0, b"k", b"v", [("h", b"")]),
        b"\x0e\0\0\0\2k\2v\0"[:-1],
        b"\x0c\0\0\0\3\0\0\0",
        b"\1\0\0\0\0\0\0",
        b"\xff" * 20,
        b"",
    ],
    ids=["attributes", "headers", "cut", "minus two", "minus", "long", "nothing"],
)
def test_what_has_no_layout_that_kafka_writes_is_left_to_others(body):
    assert read_alike(body * 64, 0, 64, PLACE) is None


def test_few_records_are_left_to_others():
    body = record(1, 0, b"k", b"v") * 64
    assert read_alike(body, 0, 63, PLACE) is None
    assert read_alike(body[:-1], 0, 64, PLACE) is None
    assert len(read_alike(body, 0, 64, PLACE).sizes) == 64


@pytest.mark.parametrize("seed", range(20))
def test_all_ways_to_decode_give_the_same_rows(seed, monkeypatch):
    rnd = random.Random(seed)
    key, value, time = rnd.choice(SIZES), rnd.choice(SIZES), rnd.choice(TIMES)
    start = rnd.choice((64, 8192, 2**21))
    rows = b"".join(record(start + i, time, data(rnd, key), data(rnd, value)) for i in range(64))
    ways = [read_alike(rows, 0, 64, PLACE), read(rows, 0, 64, PLACE)]
    monkeypatch.setattr(record_decode, "_MANY", 1000)
    ways.append(read(rows, 0, 64, PLACE))
    seen = [(list(piece.rows), piece.end, piece.sizes) for piece in ways]
    assert seen[0] == seen[1] == seen[2]
