"""What kafka-python's I/O thread may do to a SafeConsumer."""

import threading

from kafka import KafkaProducer
from waiting import until

from kafkasafe._consuming.checking import Checking
from kafkasafe._consuming.partition import Part
from kafkasafe.consumer import SafeConsumer


def test_only_the_consumers_thread_writes_what_is_known_of_a_partition(fake_kafka, monkeypatch):
    """A fetch that fails is noted by the I/O thread, and without leader epochs the position is checked again."""
    writers, checked = set(), []
    check = Checking.check

    def written(part, name, value):
        writers.add((name, threading.current_thread()))
        object.__setattr__(part, name, value)

    monkeypatch.setattr(Part, "__setattr__", written)
    monkeypatch.setattr(Checking, "check", lambda *args: checked.append(args) or check(*args))
    fake_kafka.create_topic("t")
    producer = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers)
    consumer = SafeConsumer(
        "t", bootstrap_servers=fake_kafka.bootstrap_servers, auto_offset_reset="earliest", api_version=(2, 3)
    )
    try:
        producer.send("t", b"1").get(60)
        until(lambda: consumer.poll(100))
        before = len(checked)

        def is_checked_again():
            consumer.poll(100)
            fake_kafka.cut()  # there may be no fetch on its way
            return len(checked) > before

        until(is_checked_again)
        producer.send("t", b"2").get(60)
        until(lambda: consumer.poll(100))
    finally:
        consumer.close()
        producer.close()
    assert ("doubted", threading.current_thread()) in writers
    assert {thread for _, thread in writers} == {threading.current_thread()}
