"""Partitions that a topic does not have: what waits for them is rejected at once, and nothing else stops."""

from __future__ import annotations

import pytest
from virtual import World

from kafkasafe import events
from kafkasafe.cluster.api import PartitionInfo, TopicInfo
from kafkasafe.errors import DataLossError, RejectedError
from kafkasafe.journal import Journal

PROMPT_S = 10.0
"""Far less than the minute that a topic may be missing before anybody hears of it."""


def world(partitions: int = 2, brokers: int = 3) -> World:
    made = World(brokers=brokers, auto_create_topics_enable=False)
    made.centre.create_topic("orders", partitions, min(3, brokers))
    return made


def remade(made: World, partitions: int) -> None:
    """The topic is deleted, and made again with so many partitions."""
    made.cluster.delete_topic("orders")
    made.cluster.create_topic("orders", partitions)


def numbers(log) -> list[int]:
    return [int(value) for value in log]


def rejected(parcel) -> str:
    assert isinstance(parcel.error, RejectedError)
    assert parcel.error.code == 3
    return str(parcel.error)


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_a_record_for_a_partition_that_does_not_exist_is_rejected_at_once(brokers, spool):
    made = world(brokers=brokers)
    seen: list = []
    life = made.start(spool=spool, on_event=seen.append)
    good = [life.send("orders", 0, [b"0"]), life.send("orders", 1, [b"1"])]
    wrong = life.send("orders", 2, [b"2"])
    assert made.run(PROMPT_S, lambda: wrong.done)
    assert all(parcel.done and parcel.error is None for parcel in good)
    said = rejected(wrong)
    assert "orders has no partition 2: it has 2 partitions, according to broker" in said
    assert ("the only broker" in said) is (brokers == 1)
    (told,) = [each for each in seen if isinstance(each, events.RecordsRejected)]
    assert (told.topic, told.partition, told.records, told.code) == ("orders", 2, 1, 3)
    assert not [each for each in seen if isinstance(each, events.TopicBlocked)]
    assert life.engine.endings.refused_topics == life.engine.endings.refused_partitions == {}
    ledger = life.engine.ledger
    assert ledger.settled(ledger.last_number()), "flush() returns"


def test_the_next_such_records_need_no_proof_any_more():
    made = world()
    life = made.start()
    first = life.send("orders", 7, [b"1"])
    assert made.run(PROMPT_S, lambda: first.done)
    second = life.send("orders", 7, [b"2"])
    assert made.run(0.5, lambda: second.done)
    rejected(second)


def test_each_incarnation_rejects_at_once():
    """A process that does not live for long must not begin to wait again and again."""
    made = world()
    made.set_outage(True)
    life = made.start()
    life.send("orders", 2, [b"2"])
    life.send("orders", 0, [b"0"])
    made.run(1)
    for seconds in (0.3, 1.0, 1.9):
        made.kill(life)
        made.set_outage(False)
        life = made.start()
        made.run(seconds)
    assert life.context.own.journal.views.unfinished == 1
    made.kill(life)
    life = made.start()
    assert made.run(PROMPT_S, lambda: not life.context.own.journal.views.unfinished)
    assert numbers(made.log("orders", 0)) == [0]
    assert life.context.own.rejected.records == 1


def test_a_topic_that_is_made_again_with_fewer_partitions():
    """What waits for those that went is rejected; the others take records all the time."""
    made = world(6)
    life = made.start()
    first = [life.send("orders", partition, [b"%d" % partition]) for partition in range(6)]
    assert made.run(10, lambda: all(parcel.done for parcel in first))
    made.set_outage(True)
    waiting = [life.send("orders", partition, [b"1%d" % partition]) for partition in range(6)]
    made.run(1)
    remade(made, 2)
    made.set_outage(False)
    assert made.run(3 * PROMPT_S, lambda: all(parcel.done for parcel in waiting))
    later = [life.send("orders", partition, [b"2%d" % partition]) for partition in range(2)]
    assert made.run(PROMPT_S, lambda: all(parcel.done for parcel in later))
    for partition in range(2):
        assert numbers(made.log("orders", partition)) == [10 + partition, 20 + partition]
    for parcel in waiting[2:]:
        assert "orders has no partition" in rejected(parcel)
    ledger = life.engine.ledger
    assert made.run(PROMPT_S, lambda: ledger.settled(ledger.last_number())), "flush() returns"
    assert life.context.own.journal.views.unfinished == 0


@pytest.mark.parametrize("heal", [False, True])
def test_what_was_acknowledged_in_a_partition_that_went_with_its_topic_is_reported_and_over(heal):
    """Nothing waits for it; its loss is known only when the partition is known not to exist."""
    made = world(3)
    seen: list = []
    life = made.start(on_event=seen.append, restore_recreated_topics=heal, retain_acked_bytes=1 << 20)
    first = [life.send("orders", partition, [b"%d" % partition]) for partition in range(3)]
    assert made.run(10, lambda: all(parcel.done for parcel in first))
    remade(made, 2)
    life.context.refresh_topics(["orders"])
    ledger = life.engine.ledger
    made.run(1)
    assert made.run(6 * PROMPT_S, lambda: ledger.settled(ledger.last_number())), "flush() returns"
    lost = {each.partition: each for each in seen if isinstance(each, events.DataLost)}
    assert set(lost) == {0, 1, 2}
    assert (lost[2].records, lost[2].restoring_records) == (1, int(heal))
    if heal:
        assert numbers(made.log("orders", 0)) == [0]
        assert any(isinstance(each, events.RecordsRejected) and each.partition == 2 for each in seen)
        assert any(isinstance(each, DataLossError) and each.partition == 2 for each in ledger.errors.losses)
    assert life.context.own.journal.views.unfinished == 0


def test_batches_in_doubt_for_a_partition_that_went_are_rejected():
    made = world(3)
    life = made.start()
    first = life.send("orders", 2, [b"0"])
    assert made.run(10, lambda: first.done)
    made.cluster.swallow = 1
    second = life.send("orders", 2, [b"1"])
    made.run(0.01)
    made.set_outage(True)
    remade(made, 2)
    made.set_outage(False)
    assert made.run(6 * PROMPT_S, lambda: second.done)
    rejected(second)


def test_one_broker_that_has_not_heard_of_a_partition_proves_nothing(monkeypatch):
    """It is cut off from the controller, and answers what it knew then."""
    made = world(3)
    life = made.start()
    stale = TopicInfo("orders", made.centre.topics["orders"].topic_id.bytes, {}, 0)
    ask = life.client.topic_at
    asked: list[int] = []

    def topic_at(node, topic, reply):
        asked.append(node)
        if node == 1:
            partitions = {number: PartitionInfo(1, 0) for number in range(2)}
            reply(TopicInfo(topic, stale.topic_id, partitions, 0))
        else:
            ask(node, topic, reply)

    monkeypatch.setattr(life.client, "topic_at", topic_at)
    hidden = made.centre.topics["orders"].partitions.pop(2)
    parcel = life.send("orders", 2, [b"2"])
    assert made.run(PROMPT_S, lambda: asked) is True
    made.centre.topics["orders"].partitions[2] = hidden
    made.run(20)
    assert parcel.done
    assert parcel.error is None


def test_where_one_broker_of_several_answers_it_takes_a_minute(monkeypatch):
    made = world(2)
    life = made.start()
    ask = life.client.topic_at
    monkeypatch.setattr(
        life.client, "topic_at", lambda node, topic, reply: ask(node, topic, reply) if node == 2 else None
    )
    parcel = life.send("orders", 5, [b"5"])
    made.run(50)
    assert not parcel.done
    assert made.run(45, lambda: parcel.done)
    assert "according to broker 2; no other broker answered within 60 s" in rejected(parcel)


def test_a_partition_that_is_made_later_takes_records():
    made = world()
    life = made.start()
    first = life.send("orders", 2, [b"1"])
    assert made.run(PROMPT_S, lambda: first.done)
    rejected(first)
    made.cluster.grow_topic("orders", 3)
    life.context.refresh_topics(["orders"])
    made.run(1)
    second = life.send("orders", 2, [b"2"])
    assert made.run(PROMPT_S, lambda: second.done)
    assert second.error is None
    assert numbers(made.log("orders", 2)) == [2]


def test_a_partition_that_is_made_just_now_is_not_missed():
    """A program adds it and sends to it before each broker has heard of it."""
    made = world()
    life = made.start()
    parcel = life.send("orders", 2, [b"2"])
    made.run(1.5)
    assert not parcel.done
    made.cluster.grow_topic("orders", 3)
    assert made.run(PROMPT_S, lambda: parcel.done)
    assert parcel.error is None


def test_a_topic_that_is_missing_as_a_whole_is_waited_for():
    made = world()
    life = made.start()
    parcel = life.send("other", 2, [b"2"])
    made.run(100)
    assert not parcel.done
    assert set(life.engine.endings.refused_topics) == {"other"}
    made.cluster.create_topic("other", 3)
    assert made.run(60, lambda: parcel.done)
    assert parcel.error is None
    assert life.engine.endings.refused_topics == {}


def test_an_atomic_batch_with_such_a_record_is_rejected_as_a_whole():
    made = world()
    life = made.start()
    head, *_ = life.unit(("orders", 0, [b"0"]), ("orders", 2, [b"2"]))
    behind = life.send("orders", 0, [b"1"])
    assert made.run(2 * PROMPT_S, lambda: head.done and behind.done)
    assert behind.error is None
    assert head.error is not None
    assert made.committed("orders", 0) == [b"1"]
    assert life.context.own.rejected.records == 2


def test_send_hears_only_of_the_partition_where_rejected_records_find_no_room():
    """What cannot be kept is not given up: the partition is refused, and the topic is not."""
    made = world()
    seen: list = []
    life = made.start(rejected_max_bytes=1, on_event=seen.append)
    parcel = life.send("orders", 2, [b"2"])
    made.run(90)
    assert not parcel.done
    assert life.engine.endings.refused_topics == {}
    assert set(life.engine.endings.refused_partitions) == {("orders", 2)}
    good = life.send("orders", 0, [b"0"])
    assert made.run(5, lambda: good.done)
    assert any(isinstance(each, events.TopicBlocked) and each.partition == 2 for each in seen)


def test_the_check_sees_a_partition_that_is_only_waited_for(monkeypatch):
    monkeypatch.setattr(Journal, "absent", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_record_for_a_partition_that_does_not_exist_is_rejected_at_once(3, "always")
