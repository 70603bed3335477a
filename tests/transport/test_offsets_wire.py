"""ListOffsets about many partitions: the same bytes and the same answers as kafka-python's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.frame import KafkaBytes

from kafkasafe.codes.names import all_codes
from kafkasafe.kafkapython.offsets_wire import OffsetsHeader, decode_offsets, encode_offsets

VERSIONS = range(1, 11)


def theirs(
    version: int, topics: dict[str, list[int]], timestamp: int, isolation: int, timeout_ms: int
) -> bytes:
    topic = ListOffsetsRequest.ListOffsetsTopic
    partition: Any = topic.ListOffsetsPartition
    request: Any = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(partition_index=number, current_leader_epoch=-1, timestamp=timestamp)
                    for number in numbers
                ],
            )
            for name, numbers in topics.items()
        ],
        timeout_ms=timeout_ms,
    )
    request.API_VERSION = version
    request.with_header(correlation_id=77, client_id="client-ä")
    return bytes(request.encode(framed=True, header=True))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("timestamp", [-1, -2, 1_700_000_000_000])
def test_requests_are_kafka_pythons(version: int, timestamp: int) -> None:
    for topics in ({"t": [5]}, {"t": list(range(300)), "ä" * 100: [0, 2**31 - 1]}, {}):
        isolation = 1 if version > 1 else 0
        ours = encode_offsets(version, 77, "client-ä", topics, timestamp, isolation, 30_000)
        assert ours == theirs(version, topics, timestamp, isolation, 30_000)


def response(version: int, rows: dict[str, list[tuple[int, int, int, int, int]]]) -> bytes:
    topic: Any = ListOffsetsResponse.ListOffsetsTopicResponse
    partition = topic.ListOffsetsPartitionResponse
    made: Any = ListOffsetsResponse(
        throttle_time_ms=12,
        topics=[
            topic(
                name=name,
                partitions=[
                    partition(
                        partition_index=number,
                        error_code=code,
                        timestamp=time_ms,
                        offset=offset,
                        leader_epoch=epoch,
                    )
                    for number, code, time_ms, offset, epoch in of_topic
                ],
            )
            for name, of_topic in rows.items()
        ],
    )
    made.API_VERSION = version
    made.with_header(correlation_id=77)
    return bytes(made.encode(header=True))


def decoded(version: int, data: bytes) -> Any:
    header = OffsetsHeader(version, 77)
    buffer = KafkaBytes(len(data))
    buffer.write(data)
    buffer.seek(0)
    assert header.get_response_class().parse_header(buffer).correlation_id == 77
    return header.decode(buffer)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_code_is_read(version: int) -> None:
    rng = random.Random(version)
    codes = [0, *all_codes()]
    rows = {
        name: [
            (number, code, rng.randrange(-1, 2**60), rng.randrange(-1, 2**63), rng.randrange(-1, 2**31))
            for number, code in enumerate(codes)
        ]
        for name in ("t", "ä" * 100)
    } | {"none": []}
    data = response(version, rows)
    start = 5 if version >= 6 else 4
    found = decode_offsets(version, data, start)
    assert found is not None
    expected = {
        name: [row if version >= 4 else (*row[:4], -1) for row in of_topic] for name, of_topic in rows.items()
    }
    assert {name: list(of_topic) for name, of_topic in found.rows} == expected
    assert found.throttle_time_ms == (12 if version >= 2 else 0)
    assert decoded(version, data) == found
    for size in range(start, len(data), 7):
        assert decode_offsets(version, data[:size], start) is None
    assert decode_offsets(version, data + b"\0", start) is None


@pytest.mark.parametrize("version", range(6, 11))
def test_tagged_fields_are_left_to_kafka_python(version: int) -> None:
    data = response(version, {"t": [(3, 0, -1, 42, 7)]})
    assert data.endswith(b"\0\0\0")
    for behind in (1, 2, 3):  # of the message, the topic, the partition
        end = len(data) - behind
        tagged = data[:end] + b"\1\x63\2ab" + data[end + 1 :]
        assert decode_offsets(version, tagged, 5) is None
        assert decoded(version, tagged).rows == [("t", [(3, 0, -1, 42, 7)])]
