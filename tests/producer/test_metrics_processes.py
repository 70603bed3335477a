"""Metrics of several processes that are scraped as one (PROMETHEUS_MULTIPROC_DIR)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNTING = """
import signal, sys
from prometheus_client import CollectorRegistry, multiprocess
from kafkasafe.metrics import flush, install
from kafkasafe.metric_definitions import Definition

class Counting:
    COUNT = Definition("things", "counter", "Things.")
    client_id = "c"
    count = 5

    def metric_samples(self):
        yield self.COUNT, (), self.count

def shown():
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return registry.get_sample_value("kafkasafe_things_total", {"client_id": "c"})

source = Counting()
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program with the class above; returns what it prints."""
    metrics = tmp_path / "metrics"
    metrics.mkdir()

    def run(program):
        done = subprocess.run(
            [sys.executable, "-c", COUNTING + program, str(tmp_path / "spool")],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    return run


def test_a_signal_handler_closes_a_producer_while_its_thread_copies_the_numbers(run):
    program = """
from kafkasafe import SafeProducer

class Interrupted(Counting):
    def metric_samples(self):
        if not closed:
            signal.raise_signal(signal.SIGTERM)
        yield from super().metric_samples()

def close(*_):
    closed.append(True)
    producer.close(0)
    print("closed")

closed = []
producer = SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=sys.argv[1])
signal.signal(signal.SIGTERM, close)
source = Interrupted()
install(source)
flush()
print(shown())
"""
    assert run(program) == "closed\n5.0\n"
