"""What is in a topic, as a plain KafkaConsumer reads it."""

from __future__ import annotations

import time

import kafka.errors as kafka_errors
from kafka import KafkaConsumer, TopicPartition
from waiting import until

from kafkasafe.kafkapython.admin import tidy_client

Log = dict[int, list]
"""By partition, the records in the order of the log."""


def read_log(
    servers: list[str], topic: str, timeout_s: float = 120.0, *, isolation_level: str = "read_uncommitted"
) -> Log:
    """The whole topic, from the beginning to the present end."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=10_000,
        # Its own leaves the socket of a connection that failed to the garbage collector, whose warning is an error.
        kafka_client=tidy_client,
    )
    deadline = time.monotonic() + timeout_s
    try:
        found = until(lambda: consumer.partitions_for_topic(topic), timeout_s, f"{topic} is not there")
        partitions = [TopicPartition(topic, p) for p in sorted(found)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        logs: Log = {tp.partition: [] for tp in partitions}
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            assert time.monotonic() < deadline, f"{topic} could not be read to its end {ends}"
            for tp, records in consumer.poll(timeout_ms=500).items():
                logs[tp.partition] += records
    finally:
        consumer.close()
    return logs


def read_values(servers: list[str], topic: str, *, isolation_level: str = "read_uncommitted") -> Log:
    """By partition, the values in the order of the log."""
    log = read_log(servers, topic, isolation_level=isolation_level)
    return {partition: [record.value for record in records] for partition, records in log.items()}


def until_decided(servers: list[str], topic: str) -> None:
    """Until each transaction in the topic is committed or aborted for readers: markers come a moment after EndTxn."""
    options = {"bootstrap_servers": servers, "group_id": None, "kafka_client": tidy_client}
    with (
        KafkaConsumer(isolation_level="read_committed", **options) as decided,
        KafkaConsumer(isolation_level="read_uncommitted", **options) as everything,
    ):
        places = [TopicPartition(topic, number) for number in decided.partitions_for_topic(topic)]

        def same() -> bool:
            try:
                return decided.end_offsets(places) == everything.end_offsets(places)
            except kafka_errors.KafkaTimeoutError:
                return False  # brokers that were killed may be asked for long on a busy machine

        until(same, what="a transaction is open")
