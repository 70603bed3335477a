"""Servers and task queues of several processes, one directory: kill -9 of their workers under load loses nothing."""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from topics import read_values

from kafkasafe import SafeProducer
from kafkasafe.testing._real.processes import reserve_port

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LONG_S = 90.0


def until(ready, what):
    end = time.monotonic() + LONG_S
    while not ready():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def running(command, environment, log, directory):
    """A program, and whatever it started, until the end of the block."""
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [sys.executable, "-m", *command],
            env=os.environ | environment,
            stdout=output,
            stderr=output,
            cwd=directory,
        ) as program,
    ):
        try:
            yield program
            program.send_signal(signal.SIGTERM)
            program.wait(LONG_S)
        finally:
            family = (
                [] if program.poll() is not None else psutil.Process(program.pid).children(recursive=True)
            )
            for process in [*family, program]:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.kill()


def delivered(servers, topic, spool):
    """Values in the topic, after a later life delivered what others left."""
    with SafeProducer(bootstrap_servers=servers, spool_dir=spool, client_id="later") as producer:
        producer.flush(LONG_S)
    return collections.Counter(read_values(servers, topic)[0])


def children(program):
    return sorted(child.pid for child in psutil.Process(program.pid).children(recursive=True))


def test_celery_workers_are_killed_under_load(kafka, tmp_path):
    celery = pytest.importorskip("celery")
    kafka.create_topic("celery-orders", partitions=1)
    for name in ("queue", "control"):
        (tmp_path / name).mkdir()
    environment = {
        "CELERY_DIR": str(tmp_path),
        "KAFKA": ",".join(kafka.bootstrap_servers),
        "KAFKASAFE_SPOOL_DIR": str(tmp_path / "spool"),
        "TOPIC": "celery-orders",
    }
    queue = {"data_folder_in": str(tmp_path / "queue"), "data_folder_out": str(tmp_path / "queue")}
    client = celery.Celery("client", broker="filesystem://", set_as_current=False)
    client.conf.broker_transport_options = queue | {"control_folder": str(tmp_path / "control")}
    for number in range(120):
        client.send_task("order", args=[number])
    client.close()
    accepted = tmp_path / "accepted"

    def lines():
        return accepted.read_text().splitlines() if accepted.exists() else []

    command = ["celery", "-A", "celery_app", "worker", "--pool", "prefork", "--concurrency", "3"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    here = Path(__file__).parent
    with running(command, environment, tmp_path / "log", here) as worker:
        until(lambda: len(lines()) >= 10, "the first tasks")
        os.kill(children(worker)[-1], signal.SIGKILL)
        # Celery itself may take no more tasks after that (5.7, this broker): so all of it is killed next.
        end = time.monotonic() + 10
        while len(lines()) < 20 and time.monotonic() < end:
            time.sleep(0.05)
        for pid in [worker.pid, *children(worker)]:
            os.kill(pid, signal.SIGKILL)
    before = len(lines())
    with running(command, environment, tmp_path / "log", here):
        until(lambda: len(lines()) >= before + 20, "tasks of the next life")
    found = delivered(kafka.bootstrap_servers, "celery-orders", tmp_path / "spool")
    assert set(found.values()) == {1}, "something is there twice"
    assert {line.encode() for line in lines()} <= found.keys(), "what was confirmed is missing"


def post(port, number):
    """Whether an order was accepted; None if nobody answered."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        try:
            connection.request("POST", f"/orders/customer-{number % 7}", b"%d" % number)
            return connection.getresponse().status == 202
        except (OSError, http.client.HTTPException):
            return None


SERVERS = {
    "one": ["uvicorn", "--port", "{port}", "fastapi_app:app"],
    "two": ["uvicorn", "--workers", "2", "--port", "{port}", "fastapi_app:app"],
    "gunicorn": [
        "gunicorn",
        "--workers",
        "2",
        "-k",
        "uvicorn.workers.UvicornWorker",
        "--bind",
        "127.0.0.1:{port}",
        "fastapi_app:app",
    ],
}


@pytest.fixture
def port():
    """One that is not given to anybody who asks for any: a client of another test would have it by chance."""
    number, lock = reserve_port()
    yield number
    os.close(lock)


@pytest.mark.parametrize("server", SERVERS)
def test_workers_of_an_asgi_server_are_killed_and_restarted_under_load(kafka, tmp_path, server, port):
    """`examples/fastapi_app.py`. One process is ended by SIGTERM in the midst of requests; of several, one is killed."""
    pytest.importorskip("uvicorn")
    topic = "orders"
    with contextlib.suppress(Exception):
        kafka.create_topic(topic, partitions=1)
    environment = {"KAFKA": ",".join(kafka.bootstrap_servers), "KAFKASAFE_SPOOL_DIR": str(tmp_path / "spool")}
    command = [part.format(port=port) for part in SERVERS[server]]
    first = 1_000_000 * (list(SERVERS).index(server) + 1)
    accepted, lock, stop = set(), threading.Lock(), threading.Event()

    def load(start):
        number = first + start
        while not stop.is_set():
            if post(port, number):
                with lock:
                    accepted.add(b"%d" % number)
            number += 4

    with running(command, environment, tmp_path / "log", EXAMPLES) as program:
        until(lambda: post(port, first + 900_000), "the server")
        threads = [threading.Thread(target=load, args=(start,)) for start in range(4)]
        for thread in threads:
            thread.start()
        try:
            for count in (50, 100):
                until(lambda count=count: len(accepted) >= count, f"{count} orders")
                if server != "one":
                    os.kill(children(program)[-1], signal.SIGKILL)
            until(lambda: len(accepted) >= 200, "orders after the kills")
            program.send_signal(signal.SIGTERM)
            program.wait(LONG_S)
        finally:
            stop.set()
            for thread in threads:
                thread.join(LONG_S)
    found = delivered(kafka.bootstrap_servers, topic, tmp_path / "spool")
    assert accepted <= found.keys(), "what was accepted is missing"
    assert {found[value] for value in accepted} == {1}, "something is there twice"
