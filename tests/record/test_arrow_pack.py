"""Rows of many partitions → batches: nothing is lost, doubled or out of order, and limits are kept."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.record import batch
from kafkasafe.record.arrow_encode import Rows
from kafkasafe.record.arrow_pack import ArrowPacker

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW = 1_700_000_000_000

field = st.none() | st.binary(max_size=70)
row = st.tuples(st.integers(0, 3), field, field, st.none() | st.just([{"key": "h", "value": b"1"}]))
arrow_batches = st.lists(st.lists(row, max_size=40), max_size=5)


def rows_of(rows):
    _, keys, values, headers = zip(*rows, strict=True) if rows else ([], [], [], [])
    return Rows.of(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(headers, HEADERS))


def pack(packer, batches):
    """Everything that comes out; the time goes on with each batch of rows."""
    for number, rows in enumerate(batches):
        partitions = np.array([row[0] for row in rows], np.int64)
        yield from packer.add("t", partitions, rows_of(rows), NOW + number)
    yield from packer.rest()


@given(
    arrow_batches,
    st.integers(1, 2000),
    st.sampled_from([1, 3000, 1_000_000]),
    st.integers(0, 30),
    st.sampled_from([batch.Compression.NONE, batch.Compression.LZ4]),
)
def test_each_partition_gets_its_rows_in_order(batches, batch_bytes, held_bytes, head_from, compression):
    packer = ArrowPacker(
        batch_bytes=batch_bytes,
        held_bytes=held_bytes,
        head_rows=5,
        head_from=head_from,
        compression=compression,
    )
    found: dict[int, list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]] = {}
    for (topic, partition), count, data in pack(packer, batches):
        assert topic == "t"
        made = batch.decode(data)
        assert batch.verify(data).count == count == len(made.values)
        assert made.header.compression is compression
        assert set(made.timestamps) == {made.header.max_timestamp}
        assert NOW <= made.header.max_timestamp < NOW + len(batches)
        # The limit is of records at their largest, so batches are smaller, unless one record is larger.
        if compression is batch.Compression.NONE:
            assert count == 1 or len(data) <= batch_bytes + batch.HEADER_BYTES
        found.setdefault(partition, []).extend(
            (key, value, made.headers.get(index, []))
            for index, (key, value) in enumerate(zip(made.keys, made.values, strict=True))
        )
    wanted: dict[int, list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]]] = {}
    for partition, key, value, headers in (row for rows in batches for row in rows):
        lists = [(header["key"], header["value"]) for header in headers or ()]
        wanted.setdefault(partition, []).append((key, value, lists))
    assert found == wanted


@pytest.mark.parametrize("partitions", [2, np.full(100, 2)])
def test_a_head_is_small_and_has_the_base_that_was_asked_for(partitions):
    rows = Rows.of(None, pa.array([b"%d" % number for number in range(100)]))
    packer = ArrowPacker(
        batch_bytes=10_000, held_bytes=1_000_000, head_rows=7, head_base=lambda now: now - (1 << 33)
    )
    head, rest = (*packer.add("t", partitions, rows, NOW), *packer.rest())
    assert (head.place, head.rows, rest.place, rest.rows) == (("t", 2), 7, ("t", 2), 93)
    assert batch.read_header(head.data).base_timestamp == NOW - (1 << 33)
    assert batch.read_header(rest.data).base_timestamp == NOW
    assert batch.decode(head.data).timestamps == [NOW] * 7
    assert batch.decode(rest.data).values == [b"%d" % number for number in range(7, 100)]


def test_a_small_beginning_has_no_head():
    packer = ArrowPacker(batch_bytes=10_000, held_bytes=1_000_000, head_rows=7, head_from=100)
    rows = Rows.of(None, pa.array([b"x"] * 100))
    assert not list(packer.add("t", 0, rows, NOW))
    (only,) = packer.rest()
    assert only.rows == 100
    assert not list(packer.rest())


def test_what_is_held_is_bounded_whatever_the_number_of_partitions():
    packer = ArrowPacker(batch_bytes=900_000, held_bytes=100_000, head_rows=64, head_from=1 << 20)
    held = 0
    for number in range(60):
        rows = Rows.of(None, pa.array([bytes(1000)] * 40))
        out = sum(len(one.data) for one in packer.add("t", np.arange(40) + 40_000 * (number % 2), rows, NOW))
        held += 40_000 - out
        assert held < 150_000
    assert sum(one.rows for one in packer.rest()) * 1000 < 150_000


def test_no_rows_are_no_batch():
    packer = ArrowPacker(batch_bytes=1, held_bytes=1, head_rows=1)
    assert not list(packer.add("t", 0, Rows.of(None, pa.array([], pa.binary())), NOW))
    assert not list(packer.rest())
