"""The audit of committed records, while a transaction is open."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from sourcing import write

from kafkasafe.audit import IdSource, audit
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
