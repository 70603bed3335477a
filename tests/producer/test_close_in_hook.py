"""close() in `on_event`, on the pump's thread, which must not wait for itself."""

from __future__ import annotations

import atexit
import signal
import threading

import pytest
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.errors import DeliveryTimeoutError

MODES = ["always", "on_error", "never"]


class Hooked:
    """A producer that `on_event` closes when a record of the topic "last" is delivered.

    Attributes:
        returned: Set when that `close` has returned.
        go_on: The hook returns when this is set.
    """

    def __init__(self, kafka, spool_dir, spool: str = "always", timeout: float | None = None) -> None:
        for topic in ("orders", "last"):
            kafka.create_topic(topic)
        self.returned, self.go_on = threading.Event(), threading.Event()
        self._timeout = timeout
        self.producer = SafeProducer(
            bootstrap_servers=kafka.bootstrap_servers,
            spool=spool,
            linger_ms=60_000,
            on_event=self._hook,
            **({} if spool == "never" else {"spool_dir": spool_dir}),
        )
        self.producer.send("orders", b"first").get(60)
        self.futures = [self.producer.send("orders", b"%d" % number) for number in range(100)]
        last = self.producer.send("last", b"last")
        self._caller = threading.Thread(target=last.get, args=(60,))
        self._caller.start()
        assert self.returned.wait(60)

    def _hook(self, event) -> None:
        if getattr(event, "topic", "") == "last" and not self.returned.is_set():
            self.producer.close(self._timeout)
            self.returned.set()
            self.go_on.wait(60)

    def join(self) -> None:
        self.go_on.set()
        self._caller.join()


def started(call, *arguments) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    return thread


@pytest.mark.parametrize("spool", MODES)
def test_a_second_close_waits_for_the_deliveries(fake_kafka, tmp_path, spool):
    """It returned at once. A program that ended then lost accepted records, which were in memory only."""
    hooked = Hooked(fake_kafka, tmp_path / "spool", spool)
    second = started(hooked.producer.close)
    second.join(0.3)
    assert second.is_alive()
    hooked.join()
    second.join(60)
    assert all(future.succeeded() for future in hooked.futures)
    assert hooked.producer._pump.ended()


@pytest.mark.parametrize("spool", MODES)
def test_the_end_of_the_process_waits_for_the_deliveries(fake_kafka, tmp_path, mocker, spool):
    """close() had unregistered the exit handler, and the pump is a daemon thread."""
    unregister = mocker.spy(atexit, "unregister")
    hooked = Hooked(fake_kafka, tmp_path / "spool", spool)
    assert not unregister.called
    hooked.join()
    hooked.producer.parts.shutdown.at_exit()
    unregister.assert_called_with(hooked.producer.parts.shutdown._at_exit)
    assert all(future.succeeded() for future in hooked.futures)


@pytest.mark.parametrize("spool", MODES)
def test_the_pump_delivers_and_ends_without_a_second_close(fake_kafka, tmp_path, mocker, spool):
    unregister = mocker.spy(atexit, "unregister")
    hooked = Hooked(fake_kafka, tmp_path / "spool", spool)
    hooked.join()
    until(hooked.producer._pump.ended)
    assert all(future.succeeded() for future in hooked.futures)
    unregister.assert_called_with(hooked.producer.parts.shutdown._at_exit)
    hooked.producer.close()


def test_what_the_time_out_leaves_is_on_disk(fake_kafka, tmp_path):
    hooked = Hooked(fake_kafka, tmp_path / "spool", timeout=0)
    hooked.join()
    until(hooked.producer._pump.ended)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool"
    ) as following:
        following.flush(60)
    assert fake_kafka.values("orders") == [b"first", *(b"%d" % number for number in range(100))]


def test_the_next_close_raises_the_error_of_lost_records(fake_kafka):
    """No caller got the error, because the hook's `close` had returned before the records were lost."""
    hooked = Hooked(fake_kafka, None, "never", timeout=0)
    fake_kafka.stall()
    hooked.join()
    until(hooked.producer._pump.ended)
    with pytest.raises(DeliveryTimeoutError):
        hooked.producer.close()
    hooked.producer.close()


def test_a_signal_handler_that_interrupts_close_waits_for_the_disk(fake_kafka, tmp_path, mocker):
    """It returned at once. A handler that then called os._exit lost the accepted records."""
    fake_kafka.create_topic("orders")
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", linger_ms=60_000
    )
    producer.send("orders", b"1").get(60)
    fake_kafka.stall()
    future = producer.send("orders", b"2")
    durable: list[bool] = []

    def handler(*_: object) -> None:
        producer.close()
        durable.append(future.durable(0) is not None)

    shutdown = producer.parts.shutdown
    refuse = shutdown._refuse_more

    def refuse_more() -> None:
        refuse()
        signal.raise_signal(signal.SIGUSR1)

    mocker.patch.object(shutdown, "_refuse_more", refuse_more)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        producer.close(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert durable == [True]
