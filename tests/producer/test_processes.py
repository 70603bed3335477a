"""Many processes on one directory: each has its lane, and what they accepted is delivered once."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import python

import kafkasafe
from kafkasafe import SafeProducer, aio
from kafkasafe.errors import BatchDroppedError, ForkedProcessError, ProducerClosedError, RejectedError

PROGRAM = Path(__file__).parent / "pool_program.py"
EXECUTOR = Path(__file__).parent / "executor_program.py"
LONG_S = 240


@pytest.mark.real
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_the_workers_of_a_pool_accepted_last_is_not_lost(fake_kafka, tmp_path, method):
    """They end without exit handlers, a second before the batch would be sealed by itself."""
    fake_kafka.create_topic("orders")
    servers = ",".join(fake_kafka.bootstrap_servers)
    done = python(PROGRAM, servers, tmp_path, method, timeout=LONG_S)
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
    done = python(EXECUTOR, servers, tmp_path, "forkserver", timeout=LONG_S)
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


@pytest.mark.parametrize("call", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_future_is_no_result_of_another_process(fake_kafka, call):
    """A function of a ProcessPoolExecutor that returns it. Its locks and its producer cannot leave the process."""
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool": "never"}
    fake_kafka.create_topic("orders")

    def refused(future):
        with pytest.raises(TypeError, match=f"^A {type(future).__name__} belongs to .* Pass on its metadata"):
            call(future)

    async def refused_in_a_loop():
        async with aio.SafeProducer(**options) as producer:
            refused(await producer.send("orders", b"1"))
            async with producer.batch() as batch:
                batch.send("orders", b"2")
            refused(batch.outcome)

    with SafeProducer(**options) as producer:
        future = producer.send("orders", b"1")
        refused(future)
        with producer.batch() as batch:
            batch.send("orders", b"2")
        refused(batch.outcome)
        assert call(future.get(60))
    asyncio.run(refused_in_a_loop())


@pytest.mark.real
def test_a_child_of_a_child_is_refused_whatever_ends_while_it_is_told(fake_kafka, tmp_path):
    """The error of the first fork holds what its callers had, a producer too, and is dropped at the second fork."""

    def opened() -> SafeProducer:
        return SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path)

    def use_in_child(former: SafeProducer) -> None:
        _held = opened()
        with contextlib.suppress(ForkedProcessError):
            former.send("orders", b"of the child")

    def grandchild(own: list[SafeProducer]) -> int:
        for producer in own:
            try:
                producer.send("orders", b"of the grandchild")
            except ForkedProcessError:
                continue
            return 1
        return 0

    def child() -> int:
        for producer in former:
            use_in_child(producer)
        own = [opened() for _ in range(4)]
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            os._exit(grandchild(own))
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    former = [opened() for _ in range(4)]
    pid = os.fork()
    if not pid:
        signal.alarm(120)
        try:
            os._exit(child())
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for producer in former:
        producer.close()


def frames(error: BaseException) -> int:
    count, at = 0, error.__traceback__
    while at is not None:
        count, at = count + 1, at.tb_next
    return count


def test_an_error_that_is_raised_again_does_not_keep_those_who_had_it(fake_kafka, tmp_path):
    """A program that sends to a closed producer in a loop kept the locals of each call, and logged all of them."""
    fake_kafka.create_topic("small", config={"max.message.bytes": "1000"})
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path)
    refused = producer.send("small", b"x" * 5000)
    with pytest.raises(RejectedError):
        refused.get(LONG_S)
    with producer.batch() as batch:
        batch.send("small", b"x" * 5000)
    with pytest.raises(BatchDroppedError):
        batch.outcome.get(LONG_S)
    producer.close()
    for call, kind in (
        (lambda: refused.get(LONG_S), RejectedError),
        (lambda: batch.outcome.get(LONG_S), BatchDroppedError),
        (lambda: batch.outcome.durable(LONG_S), BatchDroppedError),
        (lambda: producer.send("small", b"too late"), ProducerClosedError),
        (lambda: producer.partitions_for("small"), ProducerClosedError),
        (producer.batch, ProducerClosedError),
    ):
        lengths = []
        for _ in range(3):
            with pytest.raises(kind) as caught:
                call()
            lengths.append(frames(caught.value))
        assert lengths[1] == lengths[2], lengths


CODEC = """
import sys
from kafkasafe import SafeProducer
print("encodings.idna" in sys.modules)
"""


def test_a_fork_leaves_no_half_of_the_codec_of_host_names():
    """Imported by the network's thread when it resolves the first one, it was half there in who was forked just then."""
    assert subprocess.check_output([sys.executable, "-c", CODEC], text=True) == "True\n"
