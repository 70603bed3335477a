"""kill -9 of a program whose topic was created again, and which has not decided about it: see `test_recreated.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import consuming
import pytest
from consuming import Consumers, new_topic
from kafka import TopicPartition

from kafkasafe.errors import LogDivergedError
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).parent / "reader_program.py"
NEW = [b"new%d" % number for number in range(15)]


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.kafka)])
def cluster(request):
    # A consumer that asks for the topic between its deletion and its creation must not create it.
    config = {"auto.create.topics.enable": False}
    with (FakeCluster if request.param == "fake" else KafkaCluster)(brokers=1, config=config) as running:
        yield running


@pytest.mark.parametrize("how", ["threads", "coroutines"])
@pytest.mark.parametrize("told", [3, 0], ids=["told", "at_once"])
def test_the_next_incarnation_skips_no_record_of_the_new_topic(cluster, how, told):
    """Killed after it was told a few times and has committed since; or right after the topic was created again."""
    topic = new_topic(cluster, 1)
    consuming.produce(cluster, topic, [b"old%d" % number for number in range(10)])
    arguments = [how, ",".join(cluster.bootstrap_servers), topic]
    with subprocess.Popen([sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            assert [child.stdout.readline().strip() for _ in range(10)] == [b"old%d" % at for at in range(10)]
            cluster.delete_topic(topic)
            cluster.create_topic(topic, 1)
            consuming.produce(cluster, topic, NEW)
            read = [child.stdout.readline().strip() for _ in range(told)]
        finally:
            child.kill()
        read += child.stdout.read().split()
    # 1. Its first fetch after the creation may be answered by the new topic.
    # 2. Or its group is rebalanced while the topic is away, and it reads the new one from its start.
    # What it has read then it may have committed.
    of_new = [line for line in read if line != b"diverged"]
    assert set(of_new) <= set(NEW)
    may_be_committed = len(of_new) if of_new == NEW[: len(of_new)] else 0
    tp, found = TopicPartition(topic, 0), []
    with Consumers(cluster) as consumers:
        again = consumers(topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)

        def all_there():
            try:
                for records in again.poll(200).values():
                    found.extend(record.value for record in records)
            except LogDivergedError as error:
                assert not found
                again.seek(tp, error.event.divergent_offset)
            return found[-1:] == NEW[-1:] or again.committed(tp) == may_be_committed == len(NEW)

        consuming.until(all_there, 90)
    assert found == NEW[len(NEW) - len(found) :]
    assert len(NEW) - len(found) <= may_be_committed
