"""Names of futures: kafka-python's for threads, asyncio's for an event loop; those of the other world raise."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import Future as ThreadFuture

import pytest
from kafka.producer.future import FutureRecordMetadata

import kafkasafe
from kafkasafe import SafeConsumer, SafeProducer, UsageError, aio

KAFKA_PYTHON = (
    "is_done",
    "value",
    "succeeded",
    "failed",
    "retriable",
    "add_callback",
    "add_errback",
    "add_both",
)
ASYNCIO = ("done", "result", "add_done_callback", "remove_done_callback", "cancel", "cancelled")
PARENTS_OWN = ("success", "failure", "chain", "rebind")


@pytest.fixture
def options(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}


def test_threads_have_kafka_pythons_names_on_records_and_batches_alike(options, fake_kafka):
    fake_kafka.kill_all()
    with SafeProducer(**options) as producer:
        future = producer.send("orders", b"1")
        with producer.batch() as batch:
            batch.send("orders", b"2")
        called = []
        for pending in (future, batch.outcome):
            assert pending.is_done is pending.succeeded() is pending.failed() is pending.retriable() is False
            assert pending.exception is pending.value is None
            pending.add_both(called.append)
        fake_kafka.start_all()
        metadata = [future.get(30), batch.outcome.get(30)]
        producer.flush(30)
        for ended, answer in zip((future, batch.outcome), metadata, strict=True):
            assert ended.is_done is ended.succeeded() is True
            assert ended.failed() is ended.retriable() is False
            assert ended.exception is None
            assert ended.value == answer
        assert called == metadata
        for kind in (future, batch.outcome):
            for name in ASYNCIO:
                with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
                    getattr(kind, name)
            with pytest.raises(TypeError, match="not callable"):
                kind.is_done()
            with pytest.raises(TypeError, match="not callable"):
                kind.exception()


def test_a_batch_that_is_given_up_has_failed(options):
    with SafeProducer(**options, max_request_size=4_000_000) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"x" * 2_000_000)  # more than the broker takes
        with pytest.raises(kafkasafe.BatchDroppedError):
            batch.outcome.get(30)
        assert batch.outcome.failed()
        assert isinstance(batch.outcome.exception, kafkasafe.BatchDroppedError)
        assert batch.outcome.value is None


def test_only_the_producer_decides_about_a_record(options):
    with SafeProducer(**options) as producer:
        future = producer.send("orders", b"1")
        for name in PARENTS_OWN:
            assert callable(getattr(FutureRecordMetadata, name))
            with pytest.raises(UsageError, match=rf"RecordFuture\.{name}\(\) is not for callers"):
                getattr(future, name)(b"mine")
        assert future.get(30).topic == "orders"


def test_an_event_loop_has_asyncios_names_on_records_and_batches_alike(options, fake_kafka):
    async def main() -> None:
        fake_kafka.kill_all()
        async with aio.SafeProducer(**options) as producer:
            future = await producer.send("orders", b"1")
            async with producer.batch() as batch:
                batch.send("orders", b"2")
            outcome = batch.outcome
            ended = asyncio.Queue()
            for pending in (future, outcome):
                assert pending.done() is pending.cancelled() is pending.cancel() is False
                for name in ("result", "exception"):
                    with pytest.raises(asyncio.InvalidStateError):
                        getattr(pending, name)()
                pending.add_done_callback(ended.put_nowait)
            fake_kafka.start_all()
            metadata = [await future, await outcome]
            assert {await ended.get(), await ended.get()} == {future, outcome}
            for done, answer in zip((future, outcome), metadata, strict=True):
                assert done.done() is True
                assert done.result() == answer
                assert done.exception() is None
                for name in ("done", "exception"):  # attributes in the other world, and always true here
                    with pytest.raises(UsageError, match=rf"{name} is a method, .* write {name}\(\)"):
                        bool(getattr(done, name))
                for name in (*KAFKA_PYTHON, "get"):
                    with pytest.raises(AttributeError, match=f"has no attribute '{name}': "):
                        getattr(done, name)

    asyncio.run(main())


def test_the_names_are_those_of_the_two_models():
    for kind in (kafkasafe.RecordFuture, kafkasafe.BatchOutcome):
        assert {*KAFKA_PYTHON, "exception", "get", "durable"} == {
            name for name in dir(kind) if name[0] != "_"
        }
    for kind in (aio.RecordFuture, aio.BatchOutcome):
        names = {name for name in dir(kind) if name[0] != "_"}
        assert names <= {*dir(asyncio.Future), *dir(ThreadFuture), "durable"}
        assert {"done", "result", "exception", "add_done_callback", "cancel", "cancelled"} <= names


@pytest.mark.parametrize(
    "kind",
    [
        aio.SafeProducer,
        aio.SafeConsumer,
        SafeProducer,
        SafeConsumer,
        aio.RecordFuture,
        kafkasafe.RecordFuture,
    ],
)
def test_every_name_that_a_class_lists_is_there(kind):
    assert [name for name in dir(kind) if not hasattr(kind, name)] == []
    assert inspect.getmembers(kind)
    assert "max_usable_produce_magic" not in dir(kind)


def test_every_name_that_an_object_lists_is_there(options):
    async def main() -> None:
        async with (
            aio.SafeProducer(**options) as producer,
            aio.SafeConsumer(bootstrap_servers=options["bootstrap_servers"]) as consumer,
        ):
            future = await producer.send("orders", b"1")
            await future
            async with producer.batch() as batch:
                batch.send("orders", b"2")
            for each in (producer, consumer, future, batch, batch.outcome):
                assert [name for name in dir(each) if name[0] != "_" and not hasattr(each, name)] == []

    asyncio.run(main())
    with SafeProducer(**options) as producer:
        future = producer.send("orders", b"1")
        for each in (producer, future):
            assert [name for name in dir(each) if name[0] != "_" and not hasattr(each, name)] == []


def test_the_format_of_records_is_not_for_callers(options):
    with SafeProducer(**options) as producer:
        for each in (SafeProducer, producer):
            with pytest.raises(UsageError, match="records have format 2"):
                each.max_usable_produce_magic((4, 3))
