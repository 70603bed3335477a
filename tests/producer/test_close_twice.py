"""close() in one thread while another thread closes the same producer."""

from __future__ import annotations

import atexit
import threading

import pytest
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.errors import DeliveryTimeoutError


@pytest.fixture
def closing(fake_kafka, tmp_path):
    """A producer that another thread closes while no broker answers, and the future of its record."""
    fake_kafka.create_topic("orders")
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", linger_ms=60_000
    )
    producer.send("orders", b"1").get(60)
    fake_kafka.stall()
    future = producer.send("orders", b"2")
    first = threading.Thread(target=producer.close, args=(60,))
    first.start()
    until(lambda: producer.parts.lifecycle.closed is not None)
    yield producer, future
    fake_kafka.restore()
    first.join()


def started(call, *arguments) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


def test_a_second_thread_returns_when_the_first_has_closed(closing, fake_kafka):
    """It returned at once: a program that ended then lost records that close() was said to have made durable."""
    producer, future = closing
    second = started(producer.close)
    second.join(0.3)
    assert second.is_alive()
    fake_kafka.restore()
    second.join(60)
    assert not second.is_alive()
    assert future.succeeded()
    assert producer._pump.ended()


def test_the_end_of_the_process_waits_for_a_thread_that_closes(closing, fake_kafka):
    """A daemon thread was in close(), and the exit handler did nothing."""
    producer, future = closing
    at_exit = started(producer.parts.shutdown.at_exit)
    at_exit.join(0.3)
    assert at_exit.is_alive()
    fake_kafka.restore()
    at_exit.join(60)
    assert future.succeeded()
    atexit.unregister(producer.parts.shutdown._at_exit)


def test_the_time_out_of_the_second_is_its_own(closing):
    producer, future = closing
    producer.close(0)
    assert future.durable(0) is not None
    assert not future.is_done
    assert not producer._pump.ended()


def test_a_callback_that_closes_waits_for_nobody(fake_kafka, tmp_path):
    """The thread that closes waits for this callback."""
    fake_kafka.create_topic("orders")
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool")
    closes = threading.Event()
    returned = threading.Event()

    def close(_metadata: object) -> None:
        closes.wait(60)
        producer.close()
        returned.set()

    future = producer.send("orders", b"1")
    future.add_callback(close)
    first = started(producer.close, 60)
    until(lambda: producer.parts.lifecycle.closed is not None)
    closes.set()
    assert returned.wait(5)
    first.join(60)
    assert future.succeeded()


def test_both_threads_get_the_error_of_lost_records(fake_kafka):
    fake_kafka.create_topic("orders")
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool="never")
    producer.send("orders", b"1").get(60)
    fake_kafka.stall()
    producer.send("orders", b"2")
    raised: list[BaseException] = []

    def close(timeout: float | None) -> None:
        try:
            producer.close(timeout)
        except DeliveryTimeoutError as error:
            raised.append(error)

    first = started(close, 1)
    until(lambda: producer.parts.lifecycle.closed is not None)
    close(None)
    first.join(60)
    assert len(raised) == 2
    producer.close()
