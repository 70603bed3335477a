"""Gaps and repeats of sequences, against a plain model."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.audit import IdSource, _missing
from kafkasafe.history.audit import Gap, Repeat, judge, runs
from kafkasafe.record import batch

TEMPLATE = batch.read_header(batch.encode(None, [b"x"], timestamps=0))


def header(offset, producer=1, epoch=0, sequence=0, count=1, attributes=0):
    return replace(
        TEMPLATE,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        count=count,
        attributes=attributes,
    )


def log(*batches, start=0):
    """(producer, epoch, sequence, count) one behind the other."""
    offset, headers = start, []
    for producer, epoch, sequence, count in batches:
        headers.append(header(offset, producer, epoch, sequence, count))
        offset += count
    return headers


def test_a_whole_log_has_neither():
    found = judge(runs(log((1, 0, 0, 3), (2, 0, 0, 2), (1, 0, 3, 4), (2, 1, 0, 1))))
    assert {number: (p.records, p.batches, p.epochs, p.gaps, p.repeats) for number, p in found.items()} == {
        1: (7, 2, [0], [], []),
        2: (3, 2, [0, 1], [], []),
    }


def test_a_hole_and_a_repeat():
    headers = log((1, 0, 0, 5), (1, 0, 8, 2), (1, 0, 3, 4), (1, 0, 8, 4))
    producer = judge(runs(headers))[1]
    assert producer.gaps == [Gap(0, 5, 7, 5)]
    # 3 and 4, and 5 and 6 late, are behind what was there; so are 8 and 9 of the last batch.
    assert producer.repeats == [Repeat(0, 3, 6, 7), Repeat(0, 8, 9, 11)]
    assert (producer.missing_records, producer.repeated_records, producer.records) == (3, 6, 15)


def test_the_first_sequence_is_0_unless_retention_removed_it():
    headers = log((1, 0, 7, 3), start=40)
    assert judge(runs(headers), log_start=40)[1].trimmed
    assert not judge(runs(headers), log_start=40)[1].gaps
    assert judge(runs(log((1, 0, 7, 3))))[1].gaps == [Gap(0, 0, 6, 0)]
    # A later epoch begins at 0 whatever retention did.
    assert judge(runs([*headers, header(43, 1, 1, 2)]), log_start=40)[1].gaps == [Gap(1, 0, 1, 43)]


def test_sequences_go_on_at_0_behind_the_last_one():
    last = 2**31 - 1
    found = judge(runs(log((1, 0, last - 1, 2), (1, 0, 0, 2), start=5)), log_start=5)[1]
    assert (found.gaps, found.repeats) == ([], [])
    found = judge(runs(log((1, 0, last - 3, 2), (1, 0, 1, 2), start=5)), log_start=5)[1]
    assert found.gaps == [Gap(0, last - 1, 0, 7)]
    assert found.missing_records == 3


def test_control_batches_and_plain_producers():
    headers = [header(0, 1, 0, 0, 2), header(2, 1, 0, -1, 1, attributes=0x30), header(3, -1, -1, -1, 4)]
    found = judge(runs([*headers, header(7, -1, -1, -1, 1), header(8, 1, 0, 2, 1, attributes=0x10)]))
    assert (found[1].records, found[1].gaps, found[1].transactional) == (3, [], True)
    assert (found[-1].records, found[-1].batches, found[-1].epochs, found[-1].gaps) == (5, 2, [], [])


steps = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from([0, 0, 0, 0, 2, -1])), max_size=25
)


@given(steps, st.integers(0, 25))
def test_parts_of_a_log_say_what_the_whole_says(found, cut):
    following = {1: 0, 2: 0, 3: 0}
    batches, missing = [], 0
    for producer, count, jump in found:
        sequence = max(0, following[producer] + jump)
        missing += max(0, sequence - following[producer])
        batches.append((producer, 0, sequence, count))
        following[producer] = max(following[producer], sequence + count)
    headers = log(*batches)
    whole = judge(runs(headers))
    assert judge([*runs(headers[cut:]), *runs(headers[:cut])]) == whole
    assert sum(producer.missing_records for producer in whole.values()) == missing
    written = [(p, s + i) for p, _, s, count in batches for i in range(count)]
    # What is behind what was due counts as a repeat; without holes that is exactly what is there twice.
    if not missing:
        repeated = sum(producer.repeated_records for producer in whole.values())
        assert repeated == len(written) - len(set(written))


def test_ids_that_python_cannot_read_end_no_count() -> None:
    """Anybody may have written the records. The command ended with a traceback, and the code for lost records."""
    column = pa.array([b"[" * 200_000, b"1" * 5000, b'{"id": %s}' % (b"1" * 5000), b'{"id": 5}'])
    records = pa.record_batch({"value": column})
    assert IdSource("json", "id").of(records) == [None, None, None, "5"]
    assert _missing(IdSource("value").of(records)[1:2]) is None
    assert _missing(["1", "3"]) == 1
