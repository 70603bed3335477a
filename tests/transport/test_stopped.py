"""A client that was stopped (SIGSTOP, a debugger) reads what the brokers answered meanwhile, before it gives up on them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kafka.net.selector import Task
from pytest_mock import MockerFixture
from waiting import until

from kafkasafe.kafkapython.loop import Loop
from kafkasafe.testing import FakeCluster

PROGRAM = """
import logging, sys, time
from kafkasafe import SafeProducer

logging.basicConfig(level=logging.INFO)
servers, spool = sys.argv[1:]
with SafeProducer(bootstrap_servers=servers, spool_dir=spool, request_timeout_ms=1000) as producer:
    producer.send("orders", b"first").get(60)
    print("ready", flush=True)
    sys.stdin.readline()
    future = producer.send("orders", b"second")
    while producer.metrics()["kafkasafe"]["batches_sent"] < 2:
        time.sleep(0.01)
    print("sent", flush=True)
    future.get(60)
"""


def test_what_came_while_the_process_was_stopped_is_read_before_a_timer_runs(mocker: MockerFixture) -> None:
    loop = Loop()
    seen: list[object] = []
    ours, theirs = socket.socketpair()
    due = time.monotonic() + 0.05

    def stopped(timeout: float | None) -> list[Any]:
        """The first wait: the answer comes, the timer becomes due, and SIGCONT ends the wait without events."""
        assert timeout
        mocker.stop(wait)
        theirs.send(b"answer")
        until(lambda: time.monotonic() > due)
        return []

    async def timer() -> None:
        seen.append("timer")

    with ours, theirs:
        loop.read_with(ours, lambda: seen.append(ours.recv(100)))
        loop.call_at(due, Task(timer))
        wait = mocker.patch.object(loop._selector, "select", stopped)
        loop._poll_once()
        loop._selector.unregister(ours)
    loop.discard()
    assert seen == [b"answer", "timer"]


@pytest.mark.crash
def test_a_client_that_was_stopped_does_not_blame_a_broker_that_has_answered(
    fake_kafka: FakeCluster, tmp_path: Path
) -> None:
    """It closed the connection, logged that the broker did not answer, and that no broker could be used."""
    fake_kafka.create_topic("orders")
    command = [sys.executable, "-c", PROGRAM, ",".join(fake_kafka.bootstrap_servers), str(tmp_path / "spool")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            for node in fake_kafka.brokers:
                fake_kafka.pause(node)
            client.stdin.write("\n")
            client.stdin.flush()
            assert client.stdout.readline() == "sent\n"
            client.send_signal(signal.SIGSTOP)
            for node in fake_kafka.brokers:
                fake_kafka.resume(node)
            time.sleep(4)  # longer than a request may take
            client.send_signal(signal.SIGCONT)
            _, said = client.communicate(timeout=120)
        finally:
            client.kill()
    assert client.returncode == 0, said
    assert "did not answer" not in said
    assert fake_kafka.values("orders") == [b"first", b"second"]
