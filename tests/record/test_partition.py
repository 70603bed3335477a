"""Keys go where every other client sends them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.cluster import ClusterMetadata
from kafka.partitioner import DefaultPartitioner
from kafka.partitioner.default import murmur2 as their_murmur2

from kafkasafe.record.partition import murmur2, partition_for_key, partitions_for_keys


class Cluster(ClusterMetadata):
    def __init__(self, n):
        super().__init__(bootstrap_servers=[])
        self.n = n

    def topics(self, *args, **kwargs):
        return {"t"}

    def partitions_for_topic(self, topic):
        return set(range(self.n))

    available_partitions_for_topic = partitions_for_topic


# From the Java client's own test, as signed numbers there.
@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key, signed):
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=50))
def test_the_hash_is_kafka_pythons(key):
    assert murmur2(key) == their_murmur2(key) & 0xFFFFFFFF


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(1, 300))
def test_many_keys_go_where_each_one_goes(keys, n):
    theirs = DefaultPartitioner()
    expected = [theirs.partition("t", key, key, b"", b"", Cluster(n)) for key in keys]
    found = partitions_for_keys(keys, n)
    assert found.dtype == np.int64
    assert found.tolist() == expected == [partition_for_key(key, n) for key in keys]


@pytest.mark.parametrize("length", range(9))
def test_many_keys_of_one_length(length):
    keys = [bytes([i] * length) for i in range(100)]
    expected = [partition_for_key(key, 7) for key in keys]
    assert partitions_for_keys(keys, 7).tolist() == expected
    assert partitions_for_keys(keys, 7, length).tolist() == expected


def test_any_kind_of_bytes():
    for keys in ([b"key"], [bytearray(b"key")], [memoryview(b"key")]):
        assert partition_for_key(keys[0], 100) == partition_for_key(b"key", 100)
        assert partitions_for_keys(keys * 30, 100).tolist() == [partition_for_key(b"key", 100)] * 30
