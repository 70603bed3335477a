"""Records accepted before their topic was known: their partitions, and their headers, which are the user's."""

from __future__ import annotations

import harness
import pytest

from kafkasafe import SafeProducer
from kafkasafe import marks as m
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.spool import Spool

NAME = "kafkasafe.partition"
"""Earlier versions kept the partition that the caller chose in a header of this name."""

HEADERS = [
    [(NAME, b"my own text")],
    [(NAME, b"2")],
    [("a", b"1"), (NAME, b"")],
    [(NAME, b"0"), ("z", b"1")],
    [(NAME, b"99999999999")],
    [],
]
GIVEN = [0, None, 1, 0, 0, None]


def found(kafka, topic):
    """By value: (partition, headers)."""
    logs = harness.read_log(kafka.bootstrap_servers, topic)
    return {r.value: (partition, list(r.headers)) for partition, log in logs.items() for r in log}


def send_all(producer, topic):
    return [
        producer.send(topic, b"%d" % index, partition=partition, headers=headers)
        for index, (headers, partition) in enumerate(zip(HEADERS, GIVEN, strict=True))
    ]


@pytest.mark.parametrize("lives", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_headers_are_the_users(some_kafka, producers, lives, alone):
    """One named like ours decided the partition and was taken off, or ended this and every later producer."""
    topic = harness.new_topic(some_kafka, 3)
    producer = producers(
        harness.dead_address() if lives == 2 else some_kafka.bootstrap_servers, linger_ms=0 if alone else 20
    )
    futures = []
    if alone:
        for index, headers in enumerate(HEADERS):
            futures.append(producer.send(topic, b"%d" % index, headers=headers))
            producer.durable(60)
    else:
        futures = send_all(producer, topic)
        producer.durable(60)
    if lives == 2:
        producer.close(timeout=0)
        producer = producers(some_kafka.bootstrap_servers)
    producer.flush(60)
    if lives == 1:
        where = [(future.get(0).partition, future.get(0).offset) for future in futures]
        assert len(set(where)) == len(where)
    there = found(some_kafka, topic)
    assert [there[b"%d" % index][1] for index in range(len(HEADERS))] == HEADERS
    if not alone:
        chosen = [there[b"%d" % index][0] for index in range(len(HEADERS))]
        assert [p if given is not None else None for p, given in zip(chosen, GIVEN, strict=True)] == GIVEN


@pytest.mark.also_real
def test_a_spool_of_an_earlier_version(some_kafka, tmp_path):
    """Which had the given partition in a header."""
    topic = harness.new_topic(some_kafka, 3)
    path = tmp_path / "spool"
    lock = SpoolDirectory.open(path, files=OsFiles()).take_lane()
    spool, _ = Spool.open(
        lock.path, files=OsFiles(), segment_bytes=1 << 20, sync="group", snapshot=list, clock_ms=lambda: 0
    )
    headers = {0: [("n", b"0"), (NAME, b"2")], 2: [(NAME, b"1")], 3: [(NAME, b"mine")]}
    data = codec.encode([b"k"] * 4, [b"%d" % index for index in range(4)], timestamps=1, headers=headers)
    spool.write_group([m.Destination(1, topic, -1)], [(1, data)])
    spool.sync()
    spool.close(closed_mark=False)
    lock.release()

    with SafeProducer(bootstrap_servers=some_kafka.bootstrap_servers, spool_dir=path) as producer:
        producer.flush(60)
    there = found(some_kafka, topic)
    assert there[b"0"] == (2, [("n", b"0")])
    assert there[b"2"] == (1, [])
    assert there[b"3"] == (there[b"1"][0], [(NAME, b"mine")])
