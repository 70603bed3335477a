"""The producing process, with the clients under test. Writes to a ledger what the clients report."""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import kafka.errors as kafka_errors
from kafka import KafkaProducer

from kafkasafe.demo.ledger import CLIENTS, DIGITS, VALUE_BYTES, DemoError, Ledger


class Client(Protocol):
    """A producer under test. `observe` and `flushed` write to the ledger what the producer reported."""

    def send(self, number: int, partition: int, value: bytes) -> bool:
        """Sends one record. False: the producer did not accept the record, so the caller must try again."""

    def observe(self) -> None:
        """Writes newly known outcomes of earlier records to the ledger."""

    def flushed(self, timeout_s: float) -> bool:
        """Waits until all earlier records have an outcome. False: the time ran out first."""

    def close(self) -> None:
        """Ends the client."""


class _Futures:
    """For each partition, the futures of records whose outcome is not recorded yet. Futures of one partition complete
    in order.
    """

    def __init__(self, ledger: Ledger, partitions: int) -> None:
        self._acked, self._failed = ledger["acked"], ledger["failed"]
        self._open: list[collections.deque[tuple[int, Any]]] = [
            collections.deque() for _ in range(partitions)
        ]

    def add(self, number: int, partition: int, future: Any) -> None:
        self._open[partition].append((number, future))

    def note(self) -> bool:
        for waiting in self._open:
            while waiting and waiting[0][1].is_done:
                number, future = waiting.popleft()
                (self._acked if future.succeeded() else self._failed)[number] = 1
        return not any(self._open)


class _Safe:
    """SafeProducer."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, partitions: int, spool: str) -> None:
        from kafkasafe.producer import (
            SafeProducer,  # imported here, so that the processes of the other clients do not import it
        )

        self._producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool, client_id="demo")
        self._topic = topic
        self._ledger = ledger
        self._futures = _Futures(ledger, partitions)
        self._begin = self._promised = self._next = ledger.next_number()

    def send(self, number: int, partition: int, value: bytes) -> bool:
        future = self._producer.send(self._topic, value, b"%d" % partition, partition=partition)
        self._futures.add(number, partition, future)
        self._next = number + 1
        return True

    def observe(self) -> None:
        reached = self._next
        if reached > self._promised:
            self._producer.durable(30.0)
            self._ledger["durable"][self._promised : reached] = 1
            self._promised = reached
        self._futures.note()

    def flushed(self, timeout_s: float) -> bool:
        try:
            self._producer.flush(timeout_s)
        except kafka_errors.KafkaTimeoutError:
            return False
        # The spool has now also delivered the records that earlier processes promised, for which this process has no
        # futures.
        former = slice(0, self._begin)
        self._ledger["acked"][former] |= self._ledger["durable"][former]
        self._begin = 0
        return self._futures.note()

    def close(self) -> None:
        self._producer.close()


class _KafkaPython:
    """KafkaProducer with its default settings, which include acks=all."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, partitions: int) -> None:
        while True:
            try:
                self._producer = KafkaProducer(bootstrap_servers=servers, acks="all")
                break
            except kafka_errors.KafkaError:
                time.sleep(0.2)  # without a broker the constructor fails, so the application tries again
        self._topic = topic
        self._futures = _Futures(ledger, partitions)

    def send(self, number: int, partition: int, value: bytes) -> bool:
        try:
            future = self._producer.send(self._topic, value, b"%d" % partition, partition=partition)
        except kafka_errors.KafkaError:
            return False
        self._futures.add(number, partition, future)
        return True

    def observe(self) -> None:
        self._futures.note()

    def flushed(self, timeout_s: float) -> bool:
        with contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._producer.flush(timeout_s)
        return self._futures.note()

    def close(self) -> None:
        self._producer.close(timeout=10)


class _Confluent:
    """confluent-kafka's Producer with acks=all and idempotence, otherwise with its defaults."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": ",".join(servers), "acks": "all", "enable.idempotence": True}
        )
        self._topic = topic
        self._acked, self._failed = ledger["acked"], ledger["failed"]

    def send(self, number: int, partition: int, value: bytes) -> bool:
        def delivered(error: object, _: object) -> None:
            (self._failed if error is not None else self._acked)[number] = 1

        try:
            self._producer.produce(self._topic, value, b"%d" % partition, partition, on_delivery=delivered)
        except BufferError:
            return False
        return True

    def observe(self) -> None:
        self._producer.poll(0)

    def flushed(self, timeout_s: float) -> bool:
        return not self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.flush(10)


class _Outbox:
    """confluent-kafka with a table of SQLite as its queue: the outbox pattern.

    The application inserts its records, and commits them in groups with synchronous=FULL. The relay is a thread with
    its own connection and producer. The relay sends the oldest rows, waits until all of them are acknowledged, and
    deletes them.
    """

    _ROWS: Final = 500
    _POLL_S: Final = 0.005

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, path: str) -> None:
        self._path = path
        self._ledger = ledger
        self._uncommitted: list[tuple[int, int, bytes]] = []
        self._table = self._connect()
        self._table.execute(
            "CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, part INTEGER, value BLOB)"
        )
        self._stop = threading.Event()
        self._relay = threading.Thread(target=self._relay_rows, args=(servers, topic), daemon=True)
        self._relay.start()

    def send(self, number: int, partition: int, value: bytes) -> bool:
        self._uncommitted.append((number, partition, value))
        return True

    def observe(self) -> None:
        if not self._uncommitted:
            return
        self._table.execute("BEGIN IMMEDIATE")
        self._table.executemany("INSERT INTO outbox VALUES (?, ?, ?)", self._uncommitted)
        self._table.execute("COMMIT")
        self._ledger["durable"][[number for number, *_ in self._uncommitted]] = 1
        self._uncommitted.clear()

    def flushed(self, timeout_s: float) -> bool:
        self.observe()
        deadline = time.monotonic() + timeout_s
        while self._table.execute("SELECT EXISTS (SELECT 1 FROM outbox)").fetchone()[0]:
            if time.monotonic() > deadline:
                return False
            time.sleep(self._POLL_S)
        # The relay has now also delivered the records that an earlier process committed to the table.
        self._ledger["acked"][:] |= self._ledger["durable"]
        return True

    def close(self) -> None:
        self._stop.set()
        self._relay.join(30)
        self._table.close()

    def _connect(self) -> sqlite3.Connection:
        table = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        table.execute("PRAGMA journal_mode=WAL")
        table.execute("PRAGMA synchronous=FULL")
        return table

    def _relay_rows(self, servers: list[str], topic: str) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": ",".join(servers), "acks": "all", "enable.idempotence": True}
        )
        table = self._connect()
        acked = self._ledger["acked"]
        while not self._stop.is_set():
            rows = table.execute(
                "SELECT number, part, value FROM outbox ORDER BY number LIMIT ?", (self._ROWS,)
            ).fetchall()
            if not rows:
                self._stop.wait(self._POLL_S)
                continue
            for number, partition, value in rows:

                def delivered(error: object, _: object, number: int = number) -> None:
                    acked[number] = error is None

                producer.produce(topic, value, b"%d" % partition, partition, on_delivery=delivered)
            producer.flush()
            done = [(number,) for number, *_ in rows if acked[number]]
            table.execute("BEGIN IMMEDIATE")
            table.executemany("DELETE FROM outbox WHERE number = ?", done)
            table.execute("COMMIT")
        table.close()


def open_client(
    name: str, servers: list[str], topic: str, ledger: Ledger, partitions: int, spool: str
) -> Client:
    """Returns the client of this name.

    Raises:
        DemoError: The demo has no client of this name.
    """
    match name:
        case "kafkasafe":
            return _Safe(servers, topic, ledger, partitions, spool)
        case "outbox":
            return _Outbox(servers, topic, ledger, spool)
        case "kafka-python":
            return _KafkaPython(servers, topic, ledger, partitions)
        case "confluent-kafka":
            return _Confluent(servers, topic, ledger)
        case _:
            raise DemoError(f"There is no client {name!r}; there are {', '.join(CLIENTS)}")


def _stream(client: Client, ledger: Ledger, partitions: int, rate: float) -> None:
    """Sends `rate` records per second, up to the number `Ledger.limit`, and notes what the client reports. Ends when
    the demo has called `Ledger.ask_stop`.
    """
    attempted, accepted = ledger["attempted"], ledger["accepted"]
    padding = b"." * (VALUE_BYTES - DIGITS)
    number = ledger.next_number()
    due = observed = time.monotonic()
    while True:
        now = time.monotonic()
        if now - observed > 0.01:
            client.observe()
            observed = time.monotonic()
        if number >= ledger.limit:
            client.observe()
            if ledger.settled < number and client.flushed(0.2):
                ledger.settle(number)
            if ledger.stop:
                return
            time.sleep(0.005)
            due = time.monotonic()
            continue
        if now < due:
            time.sleep(min(due - now, 0.002))
            continue
        attempted[number] = 1
        if client.send(number, number % partitions, b"%0*d" % (DIGITS, number) + padding):
            accepted[number] = 1
            number += 1
            # After a pause, do not catch up with the schedule in one burst.
            due = max(due + 1 / rate, now - 0.05)
        else:
            client.observe()
            time.sleep(0.01)


def _die_with(parent: int) -> None:
    """Makes the kernel send SIGKILL to this process when the demo's process ends, whatever the reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The demo has ended")


def _child(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    for option in ("--bootstrap", "--topic", "--ledger", "--spool"):
        parser.add_argument(option, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    _die_with(options.parent)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("kafkasafe").setLevel(logging.INFO)
    ledger = Ledger(Path(options.ledger))
    client = open_client(
        options.client, options.bootstrap.split(","), options.topic, ledger, options.partitions, options.spool
    )
    _stream(client, ledger, options.partitions, options.rate)
    client.close()


if __name__ == "__main__":
    _child(sys.argv[1:])
