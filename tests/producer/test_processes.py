"""Many processes on one directory: each has its lane, and what they accepted is delivered once."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import kafkasafe
from kafkasafe import SafeProducer, aio

PROGRAM = Path(__file__).parent / "pool_program.py"
EXECUTOR = Path(__file__).parent / "executor_program.py"
LONG_S = 240


@pytest.mark.real
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_the_workers_of_a_pool_accepted_last_is_not_lost(fake_kafka, tmp_path, method):
    """They end without exit handlers, a second before the batch would be sealed by itself."""
    fake_kafka.create_topic("orders")
    servers = ",".join(fake_kafka.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), servers, str(tmp_path), method],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.flush(LONG_S)
    assert sorted(fake_kafka.values("orders")) == sorted([b"of the parent", *(b"%d" % i for i in range(60))])


@pytest.mark.real
def test_workers_of_an_executor_are_killed(fake_kafka, tmp_path):
    """It is broken then; what was durable is delivered once, by whoever opens the directory next."""
    fake_kafka.create_topic("orders")
    servers = ",".join(fake_kafka.bootstrap_servers)
    done = subprocess.run(
        [sys.executable, str(EXECUTOR), servers, str(tmp_path), "forkserver"],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    durable = {b"%d" % int(number) for number in done.stdout.split()}
    assert len(durable) > 40
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.flush(LONG_S)
    values = fake_kafka.values("orders")
    assert durable <= set(values)
    assert len(values) == len(set(values))


@pytest.mark.parametrize("call", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_producer_is_no_argument_of_another_process(fake_kafka, tmp_path, call):
    """`Pool.map(producer.send, ...)` with spawn, or a ProcessPoolExecutor. A copy would close what it shares."""
    servers = fake_kafka.bootstrap_servers
    with (
        SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer,
        kafkasafe.SafeConsumer(bootstrap_servers=servers) as consumer,
    ):
        of_a_loop = [aio.SafeProducer(bootstrap_servers=servers), aio.SafeConsumer(bootstrap_servers=servers)]
        for each in (producer, consumer, *of_a_loop):
            with pytest.raises(TypeError, match="Open one in each process"):
                call(each)
        assert producer.send("orders", b"1").get(60).offset == 0
