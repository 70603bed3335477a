"""kill -9 of a program with an event loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import run
from topics import read_values

from kafkasafe.aio import SafeProducer

pytestmark = pytest.mark.crash

PROGRAM = Path(__file__).parent / "program.py"


def lives(servers, directory, count, topic="orders"):
    """Kill it a few times; returns what it was promised, by life."""
    promised = []
    for life in range(count):
        arguments = [",".join(servers), str(directory), str(life * 10_000_000), topic]
        with subprocess.Popen([sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(300)]
            child.kill()
            lines += child.stdout.read().splitlines()
        promised += [b"%d" % int(line) for line in lines if line.strip().isdigit()]
    return promised


def deliver_the_rest(servers, directory):
    async def main():
        async with SafeProducer(bootstrap_servers=servers, spool_dir=directory) as producer:
            await producer.flush(100)

    run(main())


def test_what_durable_confirmed_is_delivered_by_the_next_life(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=1)
    promised = lives(fake_kafka.bootstrap_servers, tmp_path, 3)
    deliver_the_rest(fake_kafka.bootstrap_servers, tmp_path)
    values = fake_kafka.values("orders")
    assert len(values) == len(set(values)), "something is there twice"
    assert set(promised) <= set(values)
    assert len(promised) >= 900


@pytest.mark.kafka
def test_the_same_with_a_real_broker(kafka, tmp_path):
    kafka.create_topic("aio-orders", partitions=1)
    promised = lives(kafka.bootstrap_servers, tmp_path, 2, "aio-orders")
    deliver_the_rest(kafka.bootstrap_servers, tmp_path)
    values = read_values(kafka.bootstrap_servers, "aio-orders")[0]
    assert len(values) == len(set(values)), "something is there twice"
    assert set(promised) <= set(values)
    assert len(promised) >= 600
