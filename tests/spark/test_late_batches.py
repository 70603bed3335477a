"""Batches of a failed attempt that arrive late, on brokers that do not know which partitions a transaction has."""

from __future__ import annotations

import contextlib

import pytest
from sinks import options
from sourcing import Source

from kafkasafe.record import batch
from kafkasafe.spark.appender import FencedError
from kafkasafe.spark.session import Session
from kafkasafe.spark.sink_options import sink_options
from kafkasafe.testing import FakeCluster


def committed(cluster: FakeCluster) -> list[bytes]:
    given = {"subscribe": "t", "isolationLevel": "read_committed"}
    with Source(cluster, streaming=False, **given) as source:
        return [row["value"] for row in source.records(source.planner.batch())]


@pytest.mark.parametrize("version", ["2.8.2", "4.3.0"])
def test_a_late_batch_of_a_failed_attempt_is_not_committed_by_the_next_one(version: str) -> None:
    """The first attempt was aborted under its own epoch, so brokers before 3.6 appended its late batch. The next
    transaction on the partition committed this batch, so the row was there twice."""
    with FakeCluster(version=version) as cluster:
        cluster.create_topic("t", partitions=1)
        appenders = []

        def row() -> bytearray:
            return bytearray(batch.encode([None], [b"x"], timestamps=1))

        def fails(grant):
            appenders.append(session.transaction.appender(grant, ()))
            appenders[0].append("t", 0, row())
            appenders[0].finish()
            raise ZeroDivisionError

        def works(grant):
            appender = session.transaction.appender(grant, ())
            appender.append("t", 0, row())
            return appender.finish()

        session = Session(sink_options(options(cluster, topic="t", txnAppId="app")), "app")
        with pytest.raises(ZeroDivisionError):
            session.write(0, "q", fails, plan="p", count=lambda: 1)
        cluster.wait_for_markers()
        with contextlib.suppress(FencedError):
            appenders[0].append("t", 0, row())
            appenders[0].finish()
        assert session.write(0, "q", works, plan="p", count=lambda: 1).name == "written"
        session.close()
        assert committed(cluster) == [b"x"]


def test_a_driver_that_fails_does_not_fence_the_one_that_replaced_it() -> None:
    with FakeCluster(version="2.8.2") as cluster:
        cluster.create_topic("t", partitions=1)
        old, new = (
            Session(sink_options(options(cluster, topic="t", txnAppId="app")), "app") for _ in range(2)
        )
        grants = []

        def fails(_):
            grants.append(new.transaction.fence())
            new.transaction.open(grants[0])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            old.write(0, "q", fails, plan="p", count=lambda: 0)
        new.transaction.verify(grants[0], [])
        new.transaction.commit(grants[0])
        old.close()
        new.close()
