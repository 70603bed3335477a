"""The audit of committed records, while a transaction is open; and how long an audit with Spark waits."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from sourcing import write

from kafkasafe.audit import IdSource, audit
from kafkasafe.spark import audit as with_spark
from kafkasafe.testing import FakeCluster


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_does_not_stop_the_audit_of_committed_records(committed: bool) -> None:
    """It waited for the records of the transaction until its time was over."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        write(cluster, "t", [b"1", b"2"])
        servers = ",".join(cluster.bootstrap_servers)
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "open"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"3", partition=0)
        producer.flush(30)
        found = audit(
            "t",
            {"bootstrap_servers": cluster.bootstrap_servers},
            ids=IdSource.parse("value"),
            committed=committed,
            timeout_s=3,
        )
        assert found.records == 3
        assert found.ids is not None
        assert found.ids.records == (2 if committed else 3)
        producer.abort_transaction(30)


def test_an_audit_with_spark_waits_as_long_as_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of ids waited for two minutes, whatever `timeout_s` was."""

    class LoadedError(Exception): ...

    class Spark:
        """Of a SparkSession, what reads a topic."""

        defaultParallelism = 2  # noqa: N815  # as Spark names it

        def __init__(self) -> None:
            self.read = self.sparkContext = self
            self.given: dict[str, str] = {}

        def format(self, _: str) -> Spark:
            return self

        def options(self, **given: str) -> Spark:
            self.given |= given
            return self

        def option(self, name: str, value: str) -> Spark:
            self.given[name] = value
            return self

        def load(self) -> None:
            raise LoadedError

    monkeypatch.setattr(with_spark, "register", lambda _: None)
    spark: Any = Spark()
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1)
        connection = {"bootstrap_servers": cluster.bootstrap_servers}
        with pytest.raises(LoadedError):
            audit("t", connection, ids=IdSource.parse("value"), timeout_s=30.5, spark=spark)
    assert spark.given["kafkaConsumer.pollTimeoutMs"] == "30500"
