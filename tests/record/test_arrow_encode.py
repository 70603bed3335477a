"""Arrow columns → batches, against the encoder of Python objects and against the decoder."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.record import arrow_encode, batch
from kafkasafe.record.partition import partition_for_key

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

fields = st.none() | st.binary(max_size=200)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=8), "value": fields}), max_size=3
)
rows = st.lists(st.tuples(fields, fields, headers), min_size=1, max_size=80)


def encoded(
    keys, values, *, timestamp, headers=None, base_timestamp=None, compression=batch.Compression.NONE
):
    """One whole batch, as the sink makes it from columns."""
    rows = arrow_encode.Rows.of(keys, values, headers)
    base = timestamp if base_timestamp is None else base_timestamp
    body, _ = arrow_encode.records(rows, np.arange(len(rows)), timestamp_delta=timestamp - base)
    return batch.frame(body, len(rows), base_timestamp=base, max_timestamp=timestamp, compression=compression)


def sparse(lists):
    return {i: [(h["key"], h["value"]) for h in hs] for i, hs in enumerate(lists) if hs}


@given(rows, st.sampled_from(batch.Compression), st.integers(0, 3))
def test_bytes_are_those_of_the_other_encoder(rows, compression, skip):
    keys, values, lists = zip(*rows, strict=True)
    # A slice of an array shares its buffers: offsets that do not begin at 0.
    columns = [
        pa.array([*column[:1] * skip, *column], kind)[skip:]
        for column, kind in ((keys, pa.binary()), (values, pa.binary()), (lists, HEADERS))
    ]
    made = encoded(
        columns[0], columns[1], headers=columns[2], timestamp=1_700_000_000_000, compression=compression
    )
    assert made == batch.encode(
        keys, values, timestamps=1_700_000_000_000, headers=sparse(lists), compression=compression
    )


@given(rows, st.integers(1, 1 << 34))
def test_a_base_timestamp_does_not_show_in_the_records(rows, delta):
    keys, values, lists = zip(*rows, strict=True)
    made = encoded(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        headers=pa.array(lists, HEADERS),
        timestamp=1_700_000_000_000,
        base_timestamp=1_700_000_000_000 - delta,
    )
    found = batch.decode(made)
    assert found.header.base_timestamp == 1_700_000_000_000 - delta
    assert found.timestamps == [1_700_000_000_000] * len(rows)
    assert (found.keys, found.values, found.headers) == (list(keys), list(values), sparse(lists))


@given(rows)
def test_no_record_is_larger_than_was_said(rows):
    keys, values, lists = (
        pa.array(column, kind)
        for column, kind in zip(zip(*rows, strict=True), (pa.binary(), pa.binary(), HEADERS), strict=True)
    )
    sizes = arrow_encode.Rows.of(keys, values, lists).sizes()
    made = encoded(keys, values, headers=lists, timestamp=5, base_timestamp=5 - (1 << 34))
    assert len(made) - batch.HEADER_BYTES <= sizes.sum()


@pytest.mark.parametrize("compression", batch.Compression)
def test_large_and_small_records_in_one_batch(compression):
    rng = random.Random(4)
    values = [rng.randbytes(rng.choice([0, 1, 63, 64, 127, 128, 8191, 8192, 300_000])) for _ in range(300)]
    made = encoded(None, pa.array(values), timestamp=1, compression=compression)
    assert batch.decode(made).values == values


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view(), pa.string_view(), pa.binary(3)],
)
def test_all_types_of_bytes_and_text(kind):
    values = (
        pa.array([b"abc", None, b"def"], pa.binary()).cast(pa.string()).cast(kind)
        if "string" in str(kind)
        else (pa.array([b"abc", None, b"def"], kind))
    )
    made = encoded(values, pa.chunked_array([values]), timestamp=1)
    assert batch.decode(made).values == [b"abc", None, b"def"]


def test_a_column_without_anything():
    made = encoded(pa.nulls(2), pa.nulls(2), timestamp=1, headers=pa.nulls(2))
    assert batch.decode(made).values == [None, None]
    assert arrow_encode.partitions_of(pa.nulls(2), 3).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"values": pa.array([1])}, TypeError, "int64"),
        ({"values": pa.array([b""]), "keys": pa.array([b"", b""])}, ValueError, "2 keys"),
        ({"values": pa.array([b""]), "headers": pa.array([1])}, TypeError, "array<struct"),
        ({"values": pa.array([b""]), "headers": pa.array([[1]])}, TypeError, "array<struct"),
        ({"values": pa.array([b""]), "headers": pa.array([[{"k": "x"}]])}, TypeError, "array<struct"),
        ({"values": pa.array([b""]), "headers": pa.array([[None]], HEADERS)}, ValueError, "header"),
        (
            {"values": pa.array([b""]), "headers": pa.array([[{"value": b""}]], HEADERS)},
            ValueError,
            "without a key",
        ),
    ],
)
def test_what_cannot_be_encoded_is_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        encoded(arguments.pop("keys", None), arguments.pop("values"), timestamp=1, **arguments)


@given(st.lists(st.none() | st.binary(max_size=30), max_size=60), st.integers(1, 20))
def test_keys_go_where_kafka_sends_them(keys, n):
    found = arrow_encode.partitions_of(pa.array([b"skipped", *keys], pa.binary())[1:], n)
    assert found.tolist() == [-1 if key is None else partition_for_key(key, n) for key in keys]
