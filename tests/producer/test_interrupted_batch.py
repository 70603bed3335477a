"""Atomic batches whose commit is interrupted, at each line of it, and those with nothing in them."""

from __future__ import annotations

import dis
import functools
import itertools
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import harness
import kafka.errors as kafka_errors
import pytest
from kafka import TopicPartition

import kafkasafe
from kafkasafe import SafeProducer, UsageError
from kafkasafe._producing.encoding import Encoder
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe.errors import ProducerClosedError
from kafkasafe.testing import FakeCluster

HERE = str(Path(kafkasafe.__file__).parent)


@functools.cache
def ends_of_with(code):
    """Offsets of the instructions that leave the blocks of `with` statements, as far as no exception leaves them.

    Python looks for signals at none of them. A trace function that raises there leaves a lock locked.
    """
    instructions = list(dis.get_instructions(code))
    found = set()
    for index in range(len(instructions) - 2):
        arguments = instructions[index : index + 3]
        if all(each.opname == "LOAD_CONST" and each.argval is None for each in arguments):
            before = itertools.takewhile(lambda each: each.opname == "SWAP", reversed(instructions[:index]))
            found |= {each.offset for each in (arguments[0], *before)}
    return found


class At:
    """Does something before the nth line of kafkasafe's code that this thread executes."""

    def __init__(self, number, do):
        self._left = number
        self._do = do
        self.place = None
        # One object each, as long as this one lives: the interpreter borrows the function that it calls.
        self._functions = self._call, self._line

    def __enter__(self):
        sys.settrace(self._functions[0])
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, *_):
        return self._functions[1] if frame.f_code.co_filename.startswith(HERE) else None

    def _line(self, frame, event, _):
        if event == "line" and self.place is None and frame.f_lasti not in ends_of_with(frame.f_code):
            self._left -= 1
            if self._left <= 0:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                self._do()
        return self._functions[1]


def interrupt():
    raise KeyboardInterrupt


def on_a_thread(test):
    """Runs a test on a thread of its own.

    A trace function may raise where no signal handler can: between an exception that was handled and the instruction
    that forgets it. Python then takes it for one that is still being handled, for the rest of the thread's life, and
    each later exception has it for its context.
    """

    @functools.wraps(test)
    def run(**fixtures):
        errors = []

        def body():
            try:
                test(**fixtures)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        for error in errors:
            raise error

    return run


@pytest.fixture
def cluster():
    with FakeCluster() as made:
        made.create_topic("t", partitions=1)
        yield made


@pytest.fixture
def opened(cluster, tmp_path):
    def open_one(name="spool", **options):
        where = {} if options.get("spool") == "never" else {"spool_dir": tmp_path / name}
        return SafeProducer(
            bootstrap_servers=cluster.bootstrap_servers, linger_ms=600_000, **where, **options
        )

    return open_one


def values(cluster):
    log = harness.read_log(cluster.bootstrap_servers, "t")
    return [record.value for records in log.values() for record in records]


@pytest.mark.parametrize("again", [True, False])
@on_a_thread
def test_ctrl_c_anywhere_in_commit(cluster, opened, again):
    """Accepted as a whole or not at all, and `outcome` says which; once, in order, callbacks included."""
    producer = opened()
    producer.send("t", b"warm").durable(60)
    expected, places, committed, called = [b"warm"], {}, [], []
    for number in range(1, 100_000, 2 if again else 5):
        one, two, plain = (b"%d%s" % (number, letter) for letter in (b"a", b"b", b"p"))
        producer.send("t", plain)
        expected.append(plain)
        batch = producer.batch()
        first = batch.send("t", one).add_callback(lambda _, one=one: called.append(one))
        batch.send("t", two)
        try:
            with At(number, interrupt) as at:
                batch.commit()
        except KeyboardInterrupt:
            pass
        places[number] = at.place
        producer.send("t", plain + b"'")
        try:
            outcome = batch.outcome
        except UsageError:
            if again:
                expected.append(plain + b"'")
                outcome = batch.commit()
                expected += [one, two]
            else:
                batch.drop()
                expected.append(plain + b"'")
                outcome = None
        else:
            with pytest.raises(UsageError, match="committed already"):
                batch.drop()
            expected += [one, two, plain + b"'"]
        if outcome is not None:
            outcome.add_callback(lambda metadata: committed.append(metadata.batch_id))
        if outcome is not None and (again or number % 10 == 1):
            assert outcome.get(60).records == 2, at.place
            assert first.get(60).serialized_value_size == len(one), at.place
        if at.place is None:
            break
    producer.flush(60)
    producer.close()
    found = values(cluster)
    twice = {value: count for value, count in Counter(found).items() if count > 1}
    assert not twice, places
    assert not {value for value in expected if value not in found}, places
    assert found == expected
    assert len(places) > 30
    assert called == [value for value in expected if value.endswith(b"a")]
    assert len(committed) == len(called)


def test_a_handler_closes_the_producer_in_the_middle_of_commit(cluster, opened):
    """SIGTERM, say: the batch is delivered, or the commit says that the producer is closed."""
    number, expected = 0, []
    while True:
        number += 1
        producer = opened(f"spool-{number}")
        batch = producer.batch()
        batch.send("t", b"%d" % number)
        at = At(1 + 15 * (number - 1), producer.close)
        try:
            with at:
                outcome = batch.commit()
        except ProducerClosedError:
            with pytest.raises(UsageError):
                _ = batch.outcome
        else:
            expected.append(b"%d" % number)
            producer.close()
            assert outcome.get(60).records == 1, at.place
        if at.place is None:
            break
    assert values(cluster) == expected
    assert 1 < len(expected) < number


def test_dropped_by_another_thread_while_it_waits_for_room(cluster, opened):
    """It was sent all the same."""
    cluster.refuse()
    producer = opened(spool_max_bytes=16 * 1024 * 1024, max_block_ms=60_000)
    takes = producer._pump.ledger.room.takes
    asked, go_on = threading.Event(), threading.Event()

    def wait(needed):
        if threading.current_thread() is committing:
            asked.set()
            go_on.wait(60)
        return takes(needed)

    producer._pump.ledger.room.takes = wait
    batch = producer.batch()
    batch.send("t", b"1")
    raised = []

    def commit():
        try:
            batch.commit()
        except UsageError as error:
            raised.append(str(error))

    committing = threading.Thread(target=commit)
    committing.start()
    assert asked.wait(60)
    batch.drop()
    go_on.set()
    committing.join(60)
    cluster.restore()
    producer.send("t", b"2")
    producer.close(60)
    assert raised == ["This batch was dropped already"]
    assert values(cluster) == [b"2"]


@pytest.mark.parametrize("spool", ["always", "on_error", "never"])
def test_a_batch_of_nothing_is_committed_at_once(cluster, opened, tmp_path, spool):
    """`with producer.batch() as batch: for row in rows: batch.send(...)` without rows ended the producer, for good."""
    options = {"spool": spool} if spool != "always" else {}
    producer = opened(**options)
    called = []
    with producer.batch() as batch:
        pass
    batch.outcome.add_callback(called.append)
    assert batch.outcome.durable(60).get(60).records == 0
    with producer.batch() as batch:
        batch.send_offsets({}, "billing")
    assert batch.outcome.is_done
    with producer.batch() as batch:
        batch.send_offsets({TopicPartition("t", 0): 5}, "billing")
    assert batch.outcome.get(60).records == 0
    producer.flush(60)
    assert [metadata.records for metadata in called] == [0]
    producer.close()
    with opened(**options) as producer:
        assert producer.send("t", b"1").get(60).offset >= 0


@on_a_thread
def test_a_transaction_whose_commit_was_interrupted_before_it_waited(cluster, opened):
    """abort_transaction() said that it was aborted, and it was delivered."""
    producer = opened(transactional_id="billing-1")
    producer.init_transactions()
    accepted = 0
    for number in range(1, 100_000, 4):
        producer.begin_transaction()
        producer.send("t", b"%d" % number)
        try:
            with At(number, interrupt) as at:
                producer.commit_transaction()
        except KeyboardInterrupt:
            pass
        if at.place is None:
            accepted += 1
            break
        try:
            producer.abort_transaction()
        except kafka_errors.KafkaError as error:
            accepted += 1
            if "from state READY" not in str(error):
                producer.commit_transaction()
    producer.close()
    assert len(values(cluster)) == accepted


@pytest.mark.parametrize("method", [OpenBatch.close, Encoder.encoded])
def test_a_handler_that_sends_while_its_thread_seals(cluster, opened, monkeypatch, method):
    """1. A thread begins to seal an open batch. 2. A signal handler of that thread sends, which seals and submits the open batch.

    3. The interrupted call goes on. It must not make an atomic batch of its own of parcels that are submitted.
    """
    owner = OpenBatch if method is OpenBatch.close else Encoder
    armed: list[bool] = []
    futures = []

    def interrupted(*args):
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)
        return method(*args)

    producer = opened(delivery="transactional")
    producer.send("t", b"first").get(60)
    before = signal.signal(signal.SIGUSR1, lambda *_: futures.append(producer.send("t", b"handler")))
    try:
        futures += [producer.send("t", b"a"), producer.send("t", b"b")]
        monkeypatch.setattr(owner, method.__name__, interrupted)
        armed.append(True)
        producer.flush(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(futures) == 3
    assert all(future.get(60).offset > 0 for future in futures)
    assert sorted(values(cluster)) == [b"a", b"b", b"first", b"handler"]
    producer.close()
