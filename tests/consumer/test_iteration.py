"""Our iterator beside kafka-python's: the same records, and the same positions after each."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.kafkapython.adapter import each_record

PLACES = [TopicPartition("topic", partition) for partition in range(3)]


def a_record(tp, offset, epoch):
    return ConsumerRecord(tp.topic, tp.partition, epoch, offset, 0, 0, None, b"v", [], None, -1, 1, -1)


def a_subscription(places):
    subscription = SubscriptionState()
    subscription.assign_from_user(places)
    for tp in places:
        subscription.seek(tp, 0)
    return subscription


def changes(rnd):
    """What a program, or a rebalance, does between two records."""
    tp = rnd.choice(PLACES)
    return rnd.choice(
        [
            *[lambda _: None] * 12,
            lambda it: it.is_assigned(tp) and it.pause(tp),
            lambda it: it.is_assigned(tp) and it.resume(tp),
            lambda it: it.is_assigned(tp) and it.request_offset_reset(tp, -2),
            lambda it: it.is_assigned(tp) and it.assignment[tp].mark_pending_revocation(),
            lambda it: it.is_assigned(tp) and setattr(it.assignment[tp], "_awaiting_validation", True),
            lambda it: it.assign_from_user([each for each in PLACES if each != tp]),
        ]
    )


@pytest.mark.parametrize("seed", range(100))
def test_the_same_records_and_positions_as_kafka_pythons(seed):
    rnd = random.Random(seed)
    found = {
        tp: [
            a_record(tp, offset, rnd.choice((-1, 4)))
            for offset in sorted(rnd.sample(range(50), rnd.randint(1, 20)))
        ]
        for tp in rnd.sample(PLACES, rnd.randint(1, 3))
    }
    subscriptions = [a_subscription(PLACES), a_subscription(PLACES)]
    theirs = KafkaConsumer._message_generator_v2(
        SimpleNamespace(
            _consumer_timeout=float("inf"), poll=lambda **_: found, _subscription=subscriptions[0]
        )
    )
    ours = each_record(lambda: found, subscriptions[1])
    for _ in range(100):
        pair = [next(theirs, None), next(ours, None)]
        assert pair[0] is pair[1]
        states = [{tp: state.position for tp, state in each.assignment.items()} for each in subscriptions]
        assert states[0] == states[1]
        if pair[1] is None:
            break
        made = subscriptions[1].assignment[TopicPartition(pair[1].topic, pair[1].partition)].position
        assert type(made) is OffsetAndMetadata
        change = changes(rnd)
        for each in subscriptions:
            change(each)


def test_a_partition_that_was_assigned_again_does_not_go_on_with_old_records():
    """kafka-python's iterator would move the new position to the record that follows the old one."""
    tp = PLACES[0]
    subscription = a_subscription([tp])
    ours = each_record(lambda: {tp: [a_record(tp, offset, 0) for offset in range(3)]}, subscription)
    assert next(ours).offset == 0
    subscription.assign_from_user([])
    subscription.assign_from_user([tp])
    subscription.seek(tp, 40)
    assert next(ours, None) is None
    assert subscription.assignment[tp].position.offset == 40
