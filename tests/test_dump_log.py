"""Kafka's own DumpLogSegments reads what we write: every codec, several blocks per batch, and our control batches."""

from __future__ import annotations

import random

import pytest
from dumping import dumped

from kafkasafe import marks
from kafkasafe.record import batch

pytestmark = pytest.mark.kafka

NOW = 1_700_000_000_000


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    def run(segment: bytes) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
        path = tmp_path_factory.mktemp("segment") / "00000000000000000000.log"
        path.write_bytes(segment)
        batches, records = [], []
        for line, fields in dumped([path], "--print-data-log"):
            if line.startswith("baseOffset"):
                batches.append(fields)
            elif line.startswith("| offset"):
                records.append(fields)
        return batches, records

    return run


class Segment:
    def __init__(self):
        self.buf = bytearray()
        self.position = 0

    def add(self, encoded: bytearray, destination: int) -> None:
        batch.stamp_address(encoded, self.position, destination)
        self.buf += encoded
        self.position += batch.read_header(encoded).count

    def add_group(self, *written: marks.Mark) -> None:
        group = marks.Group(1, b"0123456789abcdef", self.position, self.position, False, False, False, ())
        encoded = marks.encode_group(group, written, NOW)
        self.buf += encoded
        self.position += 1 + len(written)


def test_batches_of_every_codec_are_valid_and_hold_their_records(dump):
    rnd = random.Random(5)
    segment = Segment()
    keys = [None if i % 3 == 0 else b"k%d" % i for i in range(9000)]
    # Hexadecimal digits: nothing in a printed line that could be taken for its end, and still hard to compress.
    values = [rnd.randbytes(rnd.randint(0, 60)).hex().encode() for _ in keys]
    timestamps = [NOW + i % 17 - 5 for i in range(len(keys))]
    for compression in batch.Compression:
        encoded = batch.encode(
            keys,
            values,
            timestamps=timestamps,
            headers={7: [("a", b"1"), ("b", None)]},
            compression=compression,
        )
        batch.stamp_identity(encoded, 4711, 3, 10)
        segment.add(encoded, 7)
    batches, records = dump(bytes(segment.buf))
    assert [b["isvalid"] for b in batches] == ["true"] * len(batch.Compression)
    assert [b["compresscodec"].lower() for b in batches] == [c.name.lower() for c in batch.Compression]
    assert {
        (b["producerId"], b["producerEpoch"], b["baseSequence"], b["partitionLeaderEpoch"]) for b in batches
    } == {("4711", "3", "10", "7")}
    assert [int(r["offset"]) for r in records] == list(range(segment.position))
    for number, record in enumerate(records):
        i = number % len(keys)
        assert record.get("key", "").encode() == (keys[i] or b"")
        assert int(record["keySize"]) == (-1 if keys[i] is None else len(keys[i]))
        assert record["payload"].encode() == values[i]
        assert int(record["CreateTime"]) == timestamps[i]
        assert record["headerKeys"] == ("[a,b]" if i == 7 else "[]")


@pytest.mark.parametrize("compression", batch.Compression)
def test_a_batch_of_several_compressed_blocks_is_valid(dump, compression):
    rnd = random.Random(6)
    segment = Segment()
    # More than LZ4's largest block (4 MiB), with blocks that shrink and blocks that do not.
    values = [(rnd.randbytes(350_000).hex() if i % 2 else "0" * 700_000).encode() for i in range(12)]
    segment.add(batch.encode(None, values, timestamps=NOW, compression=compression), 1)
    batches, records = dump(bytes(segment.buf))
    assert [b["isvalid"] for b in batches] == ["true"]
    assert [r["payload"].encode() for r in records] == values


def test_control_batches_with_our_types_are_passed_through(dump):
    segment = Segment()
    segment.add_group(marks.Topic("t", marks.NO_TOPIC_ID, 3), marks.Destination(1, "t", 0))
    segment.add(batch.encode(None, [b"x"], timestamps=NOW), 1)
    segment.add_group(marks.Granted(5, 0), marks.Committed(1, -1, ((3, 17),)))
    batches, records = dump(bytes(segment.buf))
    assert [(b["isvalid"], b["isControl"]) for b in batches] == [
        ("true", "true"),
        ("true", "false"),
        ("true", "true"),
    ]
    assert [r.get("controlType") for r in records] == [
        "UNKNOWN(19200)",
        "UNKNOWN(19201)",
        "UNKNOWN(19202)",
        None,
        "UNKNOWN(19200)",
        "UNKNOWN(19204)",
        "UNKNOWN(19206)",
    ]


def test_damage_is_seen_by_the_oracle_too(dump):
    segment = Segment()
    segment.add(batch.encode(None, [b"x" * 100], timestamps=NOW), 1)
    segment.buf[-20] ^= 1
    batches, _ = dump(bytes(segment.buf))
    assert [b["isvalid"] for b in batches] == ["false"]
