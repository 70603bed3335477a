"""`Record` beside kafka-python's `ConsumerRecord`: whatever a program does with one gives the same as with the other."""

from __future__ import annotations

import copy
import dataclasses  # noqa: F401  # the readings use it
import gc
import json  # noqa: F401
import pickle  # noqa: F401

import pytest
from kafka.consumer.fetcher import ConsumerRecord

from kafkasafe.kafkapython.record import Record
from kafkasafe.record.record_decode import NO_HEADERS

FIELDS = ("topic", 3, 7, 1000, 1_700_000_000_000, 0, b"key", b"value", [], None, 3, 5, -1)
WITH_HEADERS = (*FIELDS[:8], [("name", b"x"), ("none", None)], None, 3, 5, 5)


def record_of(fields):
    row = [NO_HEADERS if field == [] else copy.copy(field) for field in fields]
    return tuple.__new__(Record, row)


@pytest.fixture(params=[FIELDS, WITH_HEADERS], ids=["no headers", "headers"])
def both(request):
    fields = request.param
    return record_of(fields), ConsumerRecord(*fields[:8], list(fields[8]), *fields[9:])


def mutated(record):
    record.headers.append(("added", b"1"))
    return record


def unpacked(record):
    topic, *middle, header_size = record
    return topic, middle, header_size


def matched(record):
    match record:
        case ConsumerRecord(topic, partition, headers=headers):
            return topic, partition, headers


def by_tuple_pattern(record):
    match record:
        case (topic, _, _, offset, *rest):
            return topic, offset, rest


def passed_on(*fields):
    return fields


READINGS = [
    "",
    "r.headers",
    "r[8]",
    "r[-5]",
    "r[7:10]",
    "r[::-1]",
    "list(r)",
    "tuple(r)",
    "passed_on(*r)",
    "[*r]",
    "dict(zip(r._fields, r, strict=True))",
    "r._asdict()",
    'r._replace(value=b"other")',
    'r._replace(headers=[("new", b"")]).headers',
    "type(r)._make(r)",
    "repr(r)",
    "str(r)",
    "len(r)",
    "json.dumps(r, default=str)",
    "r + (1,)",
    "r.count(None)",
    'r.index(b"value")',
    'b"value" in r',
    "type(copy.copy(r))",
    "copy.copy(r)",
    "copy.deepcopy(r)",
    "pickle.loads(pickle.dumps(r))",
    "type(pickle.loads(pickle.dumps(r)))",
    "isinstance(r, ConsumerRecord) and isinstance(r, tuple)",
    "dataclasses.is_dataclass(r)",
    "r < (*r[:3], 1001)",
    "sorted([r, r._replace(offset=3)])",
    "unpacked(r)",
    "matched(r)",
    "by_tuple_pattern(r)",
    "",
][1:-1]


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("reading", READINGS)
def test_it_reads_like_kafka_pythons(both, reading, changes):
    ours, theirs = map(mutated, both) if changes else both
    found, expected = (eval(reading, globals(), {"r": record}) for record in (ours, theirs))  # ours
    assert found == expected
    assert type(found) in {type(expected), Record}


@pytest.mark.parametrize("changes", [False, True])
def test_it_equals_kafka_pythons(both, changes):
    ours, theirs = map(mutated, both) if changes else both
    again = record_of(WITH_HEADERS if len(ours.headers) > 1 else FIELDS)
    assert ours == theirs
    assert theirs == tuple(ours)
    assert (ours != theirs) is False
    assert (ours == again) is not changes
    assert ours != theirs._replace(offset=1)
    assert ours != 5
    for one in (ours, theirs):
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)


def test_each_record_has_headers_of_its_own():
    first, second = record_of(FIELDS), record_of(FIELDS)
    first.headers.append(("name", b"value"))
    assert first.headers == first[8] == [("name", b"value")]
    assert first.headers is first.headers
    assert second.headers == NO_HEADERS == []


@pytest.mark.parametrize("name", ["value", "headers", "other"])
def test_it_cannot_be_changed(both, name):
    for one in both:
        with pytest.raises(AttributeError):
            setattr(one, name, 1)
        with pytest.raises(AttributeError):
            delattr(one, name)


def test_a_record_without_headers_is_one_object_for_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        records = [record_of(FIELDS) for _ in range(100)]
        assert gc.get_count()[0] - before < 150
    finally:
        gc.enable()
    assert len(records) == 100
