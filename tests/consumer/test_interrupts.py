"""Ctrl-C in the middle of a call, in a program that goes on: nothing is skipped, and nothing waits for ever."""

from __future__ import annotations

import contextlib
import itertools
import threading
from types import SimpleNamespace

import consuming
import pytest
from consuming import Consumers, new_topic, until
from ctrl_c import CtrlC
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata

from kafkasafe.events import PositionReset
from kafkasafe.kafkapython import arrow_tables
from kafkasafe.kafkapython.adapter import each_record
from kafkasafe.kafkapython.arrow_records import ArrowRecords
from kafkasafe.kafkapython.client import _InterruptibleNet
from kafkasafe.kafkapython.consumer import ExtendedConsumer
from kafkasafe.kafkapython.fetcher import Fetcher
from kafkasafe.kafkapython.records import Records
from kafkasafe.kafkapython.subscription import Subscription
from kafkasafe.record import arrow_decode

COUNT = 60


def filled(cluster, partitions=3, **more):
    """A topic whose partitions have as many records each."""
    topic = new_topic(cluster, partitions)
    for partition in range(partitions):
        consuming.produce(cluster, topic, [b"%d" % number for number in range(COUNT)], partition, **more)
    return topic


def offsets(found):
    """The offsets of what `poll` or `poll_arrow` returned, by partition."""
    if isinstance(found, dict):
        return {tp.partition: [record.offset for record in records] for tp, records in found.items()}
    taken = {}
    for partition, offset in zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True):
        taken.setdefault(partition, []).append(offset)
    return taken


def read_all(consumer, poll, max_records=None):
    """Reads everything, and goes on after each KeyboardInterrupt. Returns the offsets by partition."""
    taken = {}

    def look():
        with contextlib.suppress(KeyboardInterrupt):
            for partition, some in offsets(getattr(consumer, poll)(1000, max_records)).items():
                taken.setdefault(partition, []).extend(some)
        return sum(map(len, taken.values())) >= 3 * COUNT

    until(look)
    return taken


@pytest.mark.parametrize("poll", ["poll", "poll_arrow"])
def test_what_was_taken_before_the_interrupt_is_read_again(fake_kafka, monkeypatch, poll):
    """1. A poll has taken the records of one partition. 2. Ctrl-C comes while it decodes those of the next one.

    The position was already after the former records, which nobody has received. A commit would have skipped them.
    """
    topic = filled(fake_kafka)
    kind = Records if poll == "poll" else ArrowRecords
    take = kind.take
    interrupts = []

    def interrupted(part, most):
        if len(interrupts) < 4 and part.topic_partition.partition != (interrupts or [0])[-1]:
            interrupts.append(part.topic_partition.partition)
            raise KeyboardInterrupt
        return take(part, most)

    monkeypatch.setattr(kind, "take", interrupted)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, *range(3), auto_offset_reset="earliest")
        assert read_all(consumer, poll) == {partition: list(range(COUNT)) for partition in range(3)}
    assert interrupts


@pytest.mark.parametrize("poll", ["poll", "poll_arrow"])
def test_an_interrupt_after_the_last_take_loses_nothing(fake_kafka, monkeypatch, poll):
    topic = filled(fake_kafka)
    left = [3]
    send = Fetcher._send_soon

    def interrupted(fetcher):
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        send(fetcher)

    monkeypatch.setattr(Fetcher, "_send_soon", interrupted)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, *range(3), auto_offset_reset="earliest")
        assert read_all(consumer, poll) == {partition: list(range(COUNT)) for partition in range(3)}
    assert left == [0]


def test_an_interrupt_while_a_table_is_decoded_loses_nothing(fake_kafka, monkeypatch):
    """The decoder was already behind the batches that it had begun to decode, and the next call went on from there."""
    topic = filled(fake_kafka, batch_size=1)
    left = [3]
    parse = arrow_decode._parse

    def interrupted(*args):
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        return parse(*args)

    monkeypatch.setattr(arrow_decode, "_parse", interrupted)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, *range(3), auto_offset_reset="earliest")
        assert read_all(consumer, "poll_arrow", 5) == {
            partition: list(range(COUNT)) for partition in range(3)
        }


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_while_batches_are_joined_loses_nothing(fake_kafka, monkeypatch, error):
    topic = filled(fake_kafka)
    left = [3]
    joined = arrow_tables.joined

    def interrupted(batches):
        if left[0]:
            left[0] -= 1
            raise error
        return joined(batches)

    monkeypatch.setattr(arrow_tables, "joined", interrupted)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, *range(3), auto_offset_reset="earliest")
        taken = {}

        def look():
            with contextlib.suppress(error):
                for tp, some in consumer.poll_batches(1000).items():
                    taken.setdefault(tp.partition, []).extend(some["offset"].to_pylist())
            return sum(map(len, taken.values())) >= 3 * COUNT

        # Parts of a partition, so that there is something to join.
        append = Fetcher._append
        monkeypatch.setattr(
            Fetcher,
            "_append",
            lambda fetcher, drained, part, _, *more: append(fetcher, drained, part, 7, *more),
        )
        until(look)
    assert taken == {partition: list(range(COUNT)) for partition in range(3)}
    assert left == [0]


@pytest.mark.parametrize("poll", ["poll_batches", "poll_arrow"])
def test_an_interrupt_before_a_poll_gives_nothing_back(fake_kafka, monkeypatch, poll):
    """The records of the poll before were returned."""
    topic = filled(fake_kafka, 1)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        until(lambda: consumer.poll(1000, 10))

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Fetcher, "giving", interrupted)
            with pytest.raises(KeyboardInterrupt):
                getattr(consumer, poll)(1000)
        assert consumer.position(TopicPartition(topic, 0)) == 10


def test_a_seek_in_the_handler_that_raises_is_kept(fake_kafka, monkeypatch):
    topic = filled(fake_kafka, 1)
    tp = TopicPartition(topic, 0)
    send = Fetcher._send_soon
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")

        def interrupted(fetcher):
            monkeypatch.setattr(Fetcher, "_send_soon", send)
            consumer.seek(tp, 40)
            raise KeyboardInterrupt

        monkeypatch.setattr(Fetcher, "_send_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: consumer.poll(1000, max_records=10))
        assert consumer.position(tp) == 40


def test_an_interrupt_after_a_reset_does_not_undo_it(fake_kafka):
    """The poll had dropped records from before a seek. After Ctrl-C the position was the one beyond the end again, and
    records that were written meanwhile were skipped.
    """
    topic = filled(fake_kafka, 1)
    tp = TopicPartition(topic, 0)

    def interrupt(event):
        if isinstance(event, PositionReset):
            raise KeyboardInterrupt

    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="latest", on_event=interrupt)
        consumer.seek(tp, 0)
        until(lambda: consumer.poll(1000, max_records=10))
        consumer.seek(tp, COUNT + 20)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: consumer.poll(10_000))
        assert consumer.position(tp) == COUNT
        consuming.produce(fake_kafka, topic, [b""] * 30)
        assert [record.offset for record in consuming.collect(consumer, 30)] == list(range(COUNT, COUNT + 30))


def test_an_interrupt_in_a_check_begins_the_check_again(fake_kafka, monkeypatch):
    """A procedure that Ctrl-C interrupted never ends, and its partition was never fetched again."""
    topic = filled(fake_kafka, 1)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest")
        runner = consumer._objects.runner
        advance = type(runner)._advance

        def interrupted(runner, inquiry, value):
            if value is not None:  # an answer, which is lost
                monkeypatch.setattr(type(runner), "_advance", advance)
                raise KeyboardInterrupt
            advance(runner, inquiry, value)

        monkeypatch.setattr(type(runner), "_advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            until(lambda: consumer.poll(1000))
        assert len(consuming.collect(consumer, COUNT, 20)) == COUNT


def test_the_iterator_takes_back_a_record_that_it_did_not_return():
    """At each place where Ctrl-C can come, the record is returned, or the position is before it."""
    tp = TopicPartition("topic", 0)
    for step in itertools.count():
        subscription = Subscription("latest")
        subscription.assign_from_user([tp])
        subscription.seek(tp, 5)
        records = {
            tp: [
                ConsumerRecord(*tp, 0, offset, 0, 0, None, b"v", [], None, -1, 1, -1)
                for offset in range(5, 8)
            ]
        }
        iterator = each_record(lambda records=records: records, subscription)
        fetcher = object.__new__(Fetcher)
        fetcher._subscriptions = subscription
        consumer, got = SimpleNamespace(_iterator=iterator, _closed=False, _fetcher=fetcher), []
        assert next(iterator).offset == 5
        at = CtrlC(step, {"kafkasafe.kafkapython.consumer", "kafkasafe.kafkapython.adapter"})
        with contextlib.suppress(KeyboardInterrupt), at:
            got.append(ExtendedConsumer.__next__(consumer))
        if not at.pressed:
            break
        position = subscription.assignment[tp].position.offset
        assert position == (7 if got else 6), at.place
    assert step > 20


def test_a_run_of_kafka_pythons_loop_leaves_no_lock_taken():
    """kafka-python waits for its I/O thread with an Event, whose lock an interrupt could leave taken. Then the I/O
    thread waited for it, and with it every later call."""
    net = _InterruptibleNet()
    net.start()

    async def answer():
        return 1

    try:
        for step in itertools.count():
            at = CtrlC(step, {"kafkasafe.kafkapython.client", "kafkasafe.process.wake_flag", "threading"})
            with contextlib.suppress(KeyboardInterrupt), at:
                net.run(answer)
            if not at.pressed:
                break
            done = []
            thread = threading.Thread(target=lambda done=done: done.append(net.run(answer)), daemon=True)
            thread.start()
            thread.join(10)
            assert done == [1], at.place
        assert step > 20
    finally:
        net.close()


def test_an_interrupt_while_the_thread_starts_is_not_replaced_by_another_error(fake_kafka, monkeypatch):
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name.startswith("kafka-io"):
            raise KeyboardInterrupt
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with Consumers(fake_kafka) as consumers, pytest.raises(KeyboardInterrupt):
        consumers()


def test_an_interrupt_in_a_future_does_not_stop_the_io_thread(fake_kafka):
    """kafka-python's futures take their lock without a `with` block. After Ctrl-C there, the I/O thread waited for the
    lock for ever, and with it poll, commit and close."""
    topic = filled(fake_kafka, 1)
    tp = TopicPartition(topic, 0)
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", group_id=consuming.new_name())
        consuming.collect(consumer, COUNT)

        async def answer():
            return 1

        for step in itertools.count():
            at = CtrlC(step, {"kafka.future"})
            with contextlib.suppress(KeyboardInterrupt), at:
                consumer.poll(20)
                consumer.commit_async({tp: OffsetAndMetadata(1, "", -1)})
            done = []
            thread = threading.Thread(
                target=lambda done=done: done.append(consumer._net.run(answer)), daemon=True
            )
            thread.start()
            thread.join(10)
            assert done == [1], at.place
            if not at.pressed:
                break
        committed = []
        consumer.commit_async({tp: OffsetAndMetadata(7, "", -1)}, lambda *told: committed.append(told))
        until(lambda: consumer.poll(20) or committed)
        assert consumer.committed(tp) == 7


def test_an_interrupted_close_ends_the_threads(fake_kafka, monkeypatch):
    """A second close() does nothing, and the I/O thread went on with heartbeats: the group kept the member."""
    with Consumers(fake_kafka) as consumers:
        consumer = consumers.assigned(
            filled(fake_kafka, 1), group_id=consuming.new_name(), client_id="interrupted"
        )

        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer._coordinator, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
        assert "kafka-io-interrupted" not in [thread.name for thread in threading.enumerate()]
