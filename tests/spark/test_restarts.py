"""A query that is started again, and whose topic lost records meanwhile, by the calls that Spark makes of a reader.

PySpark 4.0 and 4.1 ask for an end before they say where the batch begins. So the plan of that end could not notice a
loss, and the query silently went on in the other log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sourcing import write
from test_first_batch import Query

from kafkasafe.errors import DataLossError
from kafkasafe.events import SourceDataLost
from kafkasafe.spark import query_topics
from kafkasafe.testing import FakeCluster


@pytest.fixture(params=["4.0", "4.2"])
def query(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A query that has read ten records and is stopped."""
    with FakeCluster(brokers=3) as cluster:
        one = Query(cluster, request.param, startingOffsets="earliest")
        one.write(10)
        driver = one.start()
        assert driver.batch() + driver.batch() == list(range(10))
        one.write(1)
        assert driver.batch() == [10]
        driver.reader.stop()
        yield one
        one.close()


def goes_on(query: Any, rows: list[int], loss: tuple[str, int]) -> None:
    """The loss ends the query. With `failOnDataLoss=false` it is told, and the query reads these rows."""
    with pytest.raises(DataLossError, match="t-0 was read to 11"):
        query.start().batch()
    driver = query.start(failOnDataLoss="false")
    assert driver.batch() + driver.batch() == rows
    lost = [event for event in driver.events if isinstance(event, SourceDataLost)]
    assert [(event.reason, event.resumed_at) for event in lost] == [loss]


@pytest.mark.parametrize("records", [4, 11, 15])
def test_a_topic_that_was_created_again_is_read_from_its_first_record(query: Any, records: int) -> None:
    query.cluster.delete_topic("t")
    query.cluster.create_topic("t", 1)
    write(query.cluster, "t", [b"%d" % number for number in range(records)])
    goes_on(query, list(range(records)), ("recreated", 0))


@pytest.mark.parametrize("records", [3, 4, 15])
def test_records_that_a_leader_replaced_are_a_loss(query: Any, records: int) -> None:
    query.cluster.lose_log("t")
    write(query.cluster, "t", [b"%d" % number for number in range(100, 100 + records)])
    goes_on(query, list(range(100, 100 + records)), ("diverged", 0))


def test_a_topic_that_is_gone_is_a_loss(query: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_topics, "MISSING_TOPIC_S", 0.0)
    query.cluster.delete_topic("t")
    goes_on(query, [], ("missing", 11))


def test_records_that_retention_removed_are_told_once(query: Any) -> None:
    query.write(9)
    query.cluster.delete_records("t", 0, 14)
    goes_on(query, list(range(14, 20)), ("retention", 14))


def test_a_query_whose_log_holds_all_goes_on(query: Any) -> None:
    query.write(5)
    query.cluster.move_leader("t")
    driver = query.start()
    assert driver.batch() + driver.batch() == list(range(11, 16))
    assert driver.batch() == query.start().batch() == []


def test_records_that_a_leader_replaced_are_a_loss_also_if_retention_removed_some_of_the_new_ones(
    query: Any,
) -> None:
    """The log began at the first record that differs, which looked like retention of all that was read."""
    query.cluster.lose_log("t")
    write(query.cluster, "t", [b"%d" % number for number in range(100, 115)])
    query.cluster.delete_records("t", 0, 3)
    goes_on(query, list(range(103, 115)), ("diverged", 3))
