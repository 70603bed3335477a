"""Compares the records in a topic with the records that a client promised."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from kafka import KafkaConsumer, TopicPartition

from kafkasafe.demo.ledger import DIGITS, DURABLE_CLIENTS, PLANES, DemoError, Ledger

_POLL_S = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The audit's result for one client and one fault. All fields but `seconds` are numbers of records.

    Attributes:
        client: One of `CLIENTS`.
        fault: One of `FAULTS`.
        sent: Number of records that the client promised to the application (see `kafkasafe.demo`).
        acked: Promised records that the client reported as acknowledged.
        spooled: Promised records that the client reported as durable on disk (`DURABLE_CLIENTS` only).
        in_log: Promised records that are in the topic.
        lost: Promised records that are not in the topic.
        acked_lost: Lost records that had been acknowledged.
        duplicated: Number of additional copies of records in the topic, whether promised or not.
        out_of_order: Number of records out of order: in the log of the partition, a record that was sent later precedes
            them.
        unpromised: Number of records without a promise, because the process was killed too early: during `send` or,
            with SafeProducer and the outbox, before the record was durable or acknowledged. A record without a promise
            may be in the topic once, or not at all.
        unpromised_in_log: Number of records in the topic that were not promised.
        failed: Number of records that the client itself reported as failed.
        seconds: Time from the first record until every record had an outcome.
    """

    client: str
    fault: str
    sent: int
    acked: int
    spooled: int
    in_log: int
    lost: int
    acked_lost: int
    duplicated: int
    out_of_order: int
    unpromised: int
    unpromised_in_log: int
    failed: int
    seconds: float

    @property
    def kept_its_promise(self) -> bool:
        """Whether all promised records are in the topic, and no record is there twice or out of order. False if the
        client promised nothing.
        """
        return self.sent > 0 and not (self.lost or self.duplicated or self.out_of_order)


def audit(
    client: str,
    fault: str,
    ledger: Ledger,
    logs: Mapping[int, npt.NDArray[np.int64]],
    first: int,
    end: int,
    *,
    seconds: float = 0.0,
) -> Run:
    """Compares what a client reported about the records [first, end) with the log.

    Args:
        client: Name of the client. For the clients in `DURABLE_CLIENTS`, a record counts as promised if it is durable
            or acknowledged. For other clients, a record counts as promised if `send` accepted it.
        fault: Name of the fault.
        ledger: What the client reported.
        logs: The record numbers of each partition, in the order of the log.
        first: First record.
        end: End of the records (exclusive).
        seconds: Passed on to the result.
    """
    copies = np.zeros(ledger.records, np.int64)
    out_of_order = 0
    for numbers in logs.values():
        np.add.at(copies, numbers, 1)
        # A second copy counts only as a duplicate, not as out of order.
        once = numbers[np.sort(np.unique(numbers, return_index=True)[1])]
        overtaken = once[1:] < np.maximum.accumulate(once)[:-1] if once.size else np.zeros(0, bool)
        late = once[1:][overtaken] if once.size else once
        out_of_order += int(((late >= first) & (late < end)).sum())
    part = slice(first, end)
    here = copies[part]
    attempted, accepted, durable, acked, failed = (ledger[plane][part].astype(bool) for plane in PLANES)
    promised = durable | acked if client in DURABLE_CLIENTS else accepted
    lost = promised & (here == 0)
    unpromised = attempted & ~promised
    return Run(
        client=client,
        fault=fault,
        sent=int(promised.sum()),
        acked=int((promised & acked).sum()),
        spooled=int(durable.sum()),
        in_log=int((promised & (here > 0)).sum()),
        lost=int(lost.sum()),
        acked_lost=int((lost & acked).sum()),
        duplicated=int(np.maximum(here - 1, 0).sum()),
        out_of_order=out_of_order,
        unpromised=int(unpromised.sum()),
        unpromised_in_log=int((unpromised & (here > 0)).sum()),
        failed=int(failed.sum()),
        seconds=round(seconds, 2),
    )


def read_topic(
    bootstrap_servers: Sequence[str], topic: str, timeout_s: float = 60.0
) -> dict[int, npt.NDArray[np.int64]]:
    """Record numbers by partition, in the order of the log, as a plain read_uncommitted KafkaConsumer reads them.

    Raises:
        DemoError: The topic could not be read to its end in time, or a record is not in its partition.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=list(bootstrap_servers),
        enable_auto_commit=False,
        isolation_level="read_uncommitted",
        # Fewer, larger answers cost less, and still arrive at once from brokers on this machine.
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=10_000,
    )
    try:
        deadline = time.monotonic() + timeout_s
        while not (found := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                raise DemoError(f"The topic {topic} cannot be found")
            time.sleep(_POLL_S)
        partitions = [TopicPartition(topic, p) for p in sorted(found)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        logs: dict[int, list[int]] = {tp.partition: [] for tp in partitions}
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            if time.monotonic() > deadline:
                raise DemoError(f"{topic} could not be read to its end {ends} within {timeout_s:g} s")
            for tp, records in consumer.poll(timeout_ms=500).items():
                logs[tp.partition] += [int(record.value[:DIGITS]) for record in records]
    finally:
        consumer.close()
    arrays = {partition: np.array(numbers, np.int64) for partition, numbers in logs.items()}
    for partition, numbers in arrays.items():
        if (numbers % len(arrays) != partition).any():
            raise DemoError(f"{topic}-{partition} holds records of another partition")
    return arrays
