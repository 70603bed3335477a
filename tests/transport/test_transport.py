"""The transport against a real cluster behind TCP proxies, and against servers that misbehave."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import queue
import random
import socket
import struct
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka.errors
import pytest
from kafka.net.selector import Task
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.producer import ProduceRequest as KafkaProduceRequest
from kafka.protocol.producer import ProduceResponse
from pytest_mock import MockerFixture
from servers import Server
from waiting import until

from kafkasafe.cluster.api import (
    NO_TOPIC_ID,
    EpochEnd,
    Failure,
    HeadersFetched,
    MetadataRefreshed,
    OffsetListed,
    PartitionInfo,
    ProduceReply,
    ProduceRequest,
    ProducerIdGranted,
    ProducersDescribed,
    TopicInfo,
)
from kafkasafe.cluster.client import Transport
from kafkasafe.cluster.client.produce import ProduceCall, shared_requests
from kafkasafe.cluster.client.questions import _next_offset
from kafkasafe.cluster.network import AllAppended
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import ForkedProcessError
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.kafkapython.loop import Loop
from kafkasafe.kafkapython.wire import ProduceHeader, decode_appended, encode_produce
from kafkasafe.producer import SafeProducer
from kafkasafe.record import batch
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.tcp_proxy import TcpProxy

TIMEOUT_S = 60.0
NOW_MS = int(time.time() * 1000)


class Replies:
    """Collects replies; a second one for the same token is an error."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self.counts: Counter[Any] = Counter()
        self.threads: set[str] = set()

    def produced(self, token: Any, result: Any) -> None:
        self.counts[token] += 1
        self.threads.add(threading.current_thread().name)
        self.queue.put((token, result))

    def __call__(self, result: Any) -> None:
        self.produced(None, result)

    def get(self, timeout_s: float = TIMEOUT_S) -> Any:
        return self.queue.get(timeout=timeout_s)[1]

    def take(self, count: int, timeout_s: float = TIMEOUT_S) -> list[tuple[Any, Any]]:
        deadline = time.monotonic() + timeout_s
        return [self.queue.get(timeout=max(0.01, deadline - time.monotonic())) for _ in range(count)]

    def nothing_more(self, for_s: float = 0.2) -> None:
        with pytest.raises(queue.Empty):
            self.queue.get(timeout=for_s)


@contextlib.contextmanager
def opened(servers: Any, **options: Any) -> Iterator[Transport]:
    transport = over_sockets({"bootstrap_servers": servers, **options})
    transport.start()
    try:
        yield transport
    finally:
        assert transport.close(60.0)
        gc.collect()  # a socket left open shows here


def ask(call: Callable[..., None], *args: Any, retry_for_s: float = TIMEOUT_S) -> Any:
    """Calls until the answer is no retriable failure or code."""
    deadline = time.monotonic() + retry_for_s
    while True:
        replies = Replies()
        call(*args, replies)
        result = replies.get()
        code = getattr(result, "error_code", 0)
        if (not isinstance(result, Failure) and not code) or time.monotonic() > deadline:
            return result
        time.sleep(0.1)


def plain_batch(count: int = 3, value: bytes = b"value") -> bytearray:
    return batch.encode(None, [value] * count, timestamps=NOW_MS)


class Producer:
    """The least a caller must do: keep the order, remember the fence, resend in order."""

    def __init__(self, transport: Transport, topic: str, partition: int = 0) -> None:
        self.transport = transport
        self.topic = topic
        self.partition = partition
        granted = ask(transport.init_producer_id)
        assert isinstance(granted, ProducerIdGranted)
        self.granted = granted
        self.fence = 0
        self.sequence = 0
        self.tokens = 0
        self.replies = Replies()

    def make(self, count: int = 3) -> bytearray:
        data = plain_batch(count)
        batch.stamp_identity(data, self.granted.producer_id, self.granted.epoch, self.sequence)
        self.sequence += count
        return data

    def request(self, token: Any, data: bytearray) -> ProduceRequest:
        return ProduceRequest(token, self.topic, self.partition, data, self.fence)

    def send(self, *requests: ProduceRequest) -> None:
        self.transport.produce(requests, -1, 5000, self.replies.produced)

    def deliver(self, batches: list[bytearray], timeout_s: float = 30.0) -> list[int]:
        """Sends all, one request after another, again where it failed. Returns base offsets."""
        offsets: list[int] = []
        deadline = time.monotonic() + timeout_s
        while len(offsets) < len(batches):
            assert time.monotonic() < deadline, "not delivered in time"
            self.tokens += 1
            self.send(self.request(("token", self.tokens), batches[len(offsets)]))
            result = self.replies.get()
            self.fence = result.fence
            if isinstance(result, ProduceReply) and result.error_code == 0:
                offsets.append(result.base_offset)
            else:
                time.sleep(0.05)
        return offsets


# --- without a broker ---------------------------------------------------------------------------------------------


def topic_ids(*names: str) -> dict[str, bytes]:
    return {name: bytes([number] * 16) for number, name in enumerate(names, 1)}


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_frames_are_what_kafka_python_encodes(version: int) -> None:
    ids = topic_ids("a", "long-topic-name" * 10)
    batches = [("a", 0, b"x" * 200), ("long-topic-name" * 10, 7, b"yy"), ("a", 200, bytearray(70000))]
    topics: dict[str, list[Any]] = {}
    data_of = KafkaProduceRequest.TopicProduceData
    for topic, partition, data in batches:
        topics.setdefault(topic, []).append(
            data_of.PartitionProduceData(index=partition, records=bytes(data))
        )
    request = KafkaProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=1234,
        topic_data=[
            data_of(name=topic, topic_id=uuid.UUID(bytes=ids[topic]), partition_data=found)
            for topic, found in topics.items()
        ],
        version=version,
    )
    request.with_header(correlation_id=77, client_id="c-ü")
    frame = encode_produce(version, 77, "c-ü", -1, 1234, batches, topic_ids=ids)
    assert b"".join(frame) == bytes(request.encode(framed=True, header=True))
    assert any(part is batches[0][2] for part in frame), "the batch was copied"


def produce_response(version: int, **changes: Any) -> bytes:
    kind = ProduceResponse.TopicProduceResponse
    answer = {
        "error_code": 0,
        "log_append_time_ms": -1,
        "log_start_offset": 3,
        "record_errors": [],
        **changes,
    }
    throttled = answer.pop("throttle_time_ms", 0)
    name = answer.pop("name", "orders")
    ids = topic_ids(name, "übrig")
    topics = [
        kind(
            name=each,
            topic_id=uuid.UUID(bytes=ids[each]),
            partition_responses=[
                kind.PartitionProduceResponse(index=index, base_offset=2**40 + index, **answer)
                for index in range(count)
            ],
        )
        for each, count in ((name, 1), ("übrig", 20))
    ]
    response = ProduceResponse(responses=topics, throttle_time_ms=throttled, version=version)
    response.with_header(correlation_id=7)
    return bytes(response.encode(header=True))


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        ({"throttle_time_ms": 250, "log_append_time_ms": 1_700_000_000_000}, True),
        ({"log_start_offset": -1, "name": "n" * 126}, True),
        ({"name": "n" * 127}, False),
        ({"error_code": 6}, False),
        ({"error_message": "no"}, False),
    ],
)
def test_produce_responses_are_what_kafka_python_decodes(
    version: int, changes: Any, plain: bool, free_port: int
) -> None:
    """What says that all was appended is decoded here, the rest there, and both say the same."""
    transport = over_sockets({"bootstrap_servers": f"127.0.0.1:{free_port}"})
    name = changes.get("name", "orders")
    ids = topic_ids(name, "übrig")
    batch = (ProduceRequest(0, name, 0, b"x"), memoryview(b"x"))
    call = ProduceCall(transport._produce_router, 1, [batch], ids, -1, 1000, print)
    header = ProduceHeader(version, 7, ids)

    def decoded(data: bytes) -> Any:
        buffer = KafkaBytes(len(data))
        buffer[:] = data
        assert header.get_response_class().parse_header(buffer).correlation_id == 7
        return header.get_response_class().decode(buffer)

    data = produce_response(version, **changes)
    buffer = KafkaBytes(len(data))
    buffer[:] = data
    theirs = ProduceResponse[version]
    theirs.parse_header(buffer)
    expected = theirs.decode(buffer)
    response = decoded(data)
    by_id = version >= 13
    assert isinstance(response, AllAppended) is (version >= 9 and (plain or (by_id and len(name) == 127)))
    assert response.throttle_time_ms == expected.throttle_time_ms
    assert call._parse(response) == call._parse(expected)
    assert set(call._parse(response)) == {(name, 0), *(("übrig", index) for index in range(20))}
    if version >= 9:
        names = {topic_id: name for name, topic_id in ids.items()} if by_id else None
        assert not any(decode_appended(data[:size], 5, names) for size in range(5, len(data)))
    transport.close(60.0)


@pytest.mark.parametrize("acks", [0, 2, "all"])
def test_other_acks_are_refused_at_once(acks: Any) -> None:
    transport = over_sockets({"bootstrap_servers": "127.0.0.1:1"})
    with pytest.raises(ValueError, match="acks"):
        transport.produce([], acks, 1000, lambda *_: None)
    transport.close(60.0)


def test_requests_before_start_wait_and_close_answers_them() -> None:
    transport = over_sockets({"bootstrap_servers": "127.0.0.1:1"})
    replies = Replies()
    transport.init_producer_id(replies)
    transport.produce([ProduceRequest("a", "t", 0, plain_batch())], -1, 1000, replies.produced)
    replies.nothing_more(0.1)
    assert transport.close(60.0)
    assert all(isinstance(result, Failure) and not result.sent for _, result in replies.take(2))
    assert transport.close(60.0), "a repeated close does nothing"
    transport.init_producer_id(replies)
    assert isinstance(replies.get(), Failure), "and later requests fail at once"
    transport.start()
    assert transport.closed


def test_nobody_listens_everything_fails_unsent_without_hurry(free_port: int) -> None:
    started = time.monotonic()
    with opened(f"127.0.0.1:{free_port}") as transport:
        assert time.monotonic() - started < 5.0, "start() waited"
        answers = 0
        until_s = time.monotonic() + 1.2
        while time.monotonic() < until_s:  # a caller without any back-off of its own
            replies = Replies()
            transport.init_producer_id(replies)
            transport.produce([ProduceRequest("a", "t", 0, plain_batch())], -1, 1000, replies.produced)
            for _, result in replies.take(2):
                assert isinstance(result, Failure)
                assert not result.sent
            answers += 1
        assert answers < 25, "busy loop"
        assert not transport.connected
        assert transport.topic("t") is None


def test_no_socket_is_left_of_refused_connections(free_port: int, tmp_path: Path) -> None:
    """kafka-python drops them open. Warnings of that are ignored everywhere, so ours are looked for here."""
    gc.collect()
    quick = {
        "bootstrap_servers": f"127.0.0.1:{free_port}",
        "reconnect_backoff_ms": 1,
        "reconnect_backoff_max_ms": 5,
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        producer = SafeProducer(**quick, spool_dir=tmp_path / "spool")
        consumer = SafeConsumer("t", **quick, api_version=(2, 8))
        with opened(quick.pop("bootstrap_servers"), **quick) as transport:
            producer.send("t", b"v").durable(60)
            until(lambda: consumer.poll(10) or transport._reachability.failed >= 10, 120)
        producer.close(timeout=0)
        consumer.close()
        gc.collect()
    assert not [str(warning.message) for warning in warned if warning.category is ResourceWarning]


def test_a_new_topic_does_not_have_all_others_asked_about_again() -> None:
    """A program that meets thousands of topics one after the other parsed them all for each (KIP-526)."""
    heard: list[MetadataRefreshed] = []
    with FakeCluster() as cluster:
        for name in ("a", "b", "c"):
            cluster.create_topic(name)
        with opened(cluster.bootstrap_servers) as transport:
            ask(transport.refresh_metadata, ["a"])
            transport.on_metadata(heard.append)
            for topics, told in (
                (["b"], {"b"}),
                (["c", "a"], {"a", "b", "c"}),  # one that is known: its leader may have moved
                (["a"], {"a", "b", "c"}),
                ([], {"a", "b", "c"}),
            ):
                answer = ask(transport.refresh_metadata, topics)
                assert isinstance(answer, MetadataRefreshed)
                assert set(answer.topics) == set(heard[-1].topics) == told
            assert set(transport.topics()) == {"a", "b", "c"}
            assert {broker.node_id for broker in transport.brokers()} == set(cluster.brokers)


def test_new_topics_do_not_put_off_the_next_look_at_the_others() -> None:
    """They come once in a while, for ever."""
    heard: list[MetadataRefreshed] = []
    with FakeCluster() as cluster:
        cluster.create_topic("a")
        with opened(cluster.bootstrap_servers, metadata_max_age_ms=1000) as transport:
            ask(transport.refresh_metadata, ["a"])
            transport.on_metadata(heard.append)
            number = 0
            while not any("a" in each.topics for each in heard):
                number += 1
                assert number < 1000, "the others are never looked at"
                cluster.create_topic(f"t{number}")
                ask(transport.refresh_metadata, [f"t{number}"])
                threading.Event().wait(0.02)


def test_a_request_costs_no_task_of_the_loop(mocker: MockerFixture) -> None:
    with FakeCluster() as cluster, opened(cluster.bootstrap_servers, client_id="lean") as transport:
        cluster.create_topic("t")
        producer = Producer(transport, "t")
        producer.deliver([producer.make()])
        counted = threading.Lock()
        made: list[str] = []
        make = Task.__init__

        def count(task: Task, work: Any) -> None:
            with counted:
                if threading.current_thread() in (transport._network.thread, threading.main_thread()):
                    made.append(getattr(work, "__qualname__", str(work)))
            make(task, work)

        mocker.patch.object(Task, "__init__", count)
        producer.deliver([producer.make() for _ in range(50)])
        assert len(made) < 25, made


def test_idle_connections_close_and_come_back() -> None:
    with (
        FakeCluster() as cluster,
        opened(cluster.bootstrap_servers, connections_max_idle_ms=200) as transport,
    ):
        cluster.create_topic("t")
        producer = Producer(transport, "t")
        assert producer.deliver([producer.make(1)]) == [0]
        wire = cluster._wire
        assert wire is not None
        until(lambda: not wire._connections)
        assert transport.connected
        producer.send(producer.request("a", producer.make(1)))
        assert producer.replies.get().base_offset == 1


def test_a_broker_that_hangs_is_silent_for_longer_and_longer() -> None:
    with FakeCluster() as cluster, opened(cluster.bootstrap_servers) as transport:
        cluster.create_topic("t")
        producer = Producer(transport, "t")
        assert producer.deliver([producer.make(1)]) == [0]
        link = transport._links.link(1)
        cluster.stall()
        producer.send(producer.request("a", producer.make(1)))
        until(lambda: link.silent_for(time.monotonic()) > 0.3, 10)
        cluster.restore()
        assert producer.replies.get().base_offset == 1


def test_throttling_delays_and_fails_nothing() -> None:
    with FakeCluster() as cluster, opened(cluster.bootstrap_servers) as transport:
        cluster.create_topic("t")
        producer = Producer(transport, "t")
        assert producer.deliver([producer.make(1)]) == [0]
        cluster.throttle(0.6, "Produce", times=1)
        started = time.monotonic()
        assert producer.deliver([producer.make(1)]) == [1]
        for n in range(2, 10):
            producer.send(producer.request(n, producer.make(1)))
        assert [(n, reply.base_offset) for n, reply in producer.replies.take(8)] == [
            (n, n) for n in range(2, 10)
        ]
        assert time.monotonic() - started > 0.5, "it was not throttled at all"


def test_close_answers_what_is_parked(free_port: int) -> None:
    replies = Replies()
    with opened(
        f"127.0.0.1:{free_port}", reconnect_backoff_ms=60000, reconnect_backoff_max_ms=60000
    ) as transport:
        until(lambda: transport._reachability.failed)
        transport.init_producer_id(replies)
        transport.list_offset("t", 0, -1, replies)
        transport.refresh_metadata(["u"], replies)
        transport.produce(
            [ProduceRequest(i, "t", 0, plain_batch()) for i in range(3)], -1, 1000, replies.produced
        )
        replies.nothing_more(0.1)
    assert [isinstance(result, Failure) and not result.sent for _, result in replies.take(6)] == [True] * 6


def test_callbacks_that_raise_cost_nobody_else_an_answer(free_port: int) -> None:
    replies = Replies()

    def bad(*_: Any) -> None:
        raise RuntimeError("no")

    with opened(f"127.0.0.1:{free_port}") as transport:
        transport.init_producer_id(bad)
        transport.produce([ProduceRequest("a", "t", 0, b"x")], -1, 1000, bad)
        transport.init_producer_id(replies)
        assert isinstance(replies.get(), Failure)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda t, r: t.refresh_metadata(["no/such"], r), kafka.errors.InvalidTopicError),
        (lambda t, r: t.list_offset("", 0, -1, r), kafka.errors.InvalidTopicError),
        (lambda t, r: t.describe_producers("x" * 300, 0, r), kafka.errors.InvalidTopicError),
    ],
)
def test_impossible_topics_fail_and_do_not_spoil_metadata(free_port: int, call: Any, error: Any) -> None:
    replies = Replies()
    with opened(f"127.0.0.1:{free_port}") as transport:
        call(transport, replies)
        result = replies.get()
        assert isinstance(result, Failure)
        assert isinstance(result.error, error)
        assert result.code == 17
        assert not result.sent
        assert not transport._topics.names


def test_a_forked_child_is_told(free_port: int) -> None:
    with opened(f"127.0.0.1:{free_port}") as transport:
        pid = os.fork()
        if not pid:
            replies = Replies()
            transport.init_producer_id(replies)
            ok = isinstance(replies.get().error, ForkedProcessError) and transport.close(60.0)
            os._exit(0 if ok else 1)
        assert os.waitpid(pid, 0)[1] == 0


def hang_up(conn: socket.socket) -> None:
    conn.close()


def answer_garbage(conn: socket.socket) -> None:
    conn.recv(4096)
    conn.sendall(struct.pack(">i", 40) + os.urandom(40))


def answer_endlessly(conn: socket.socket) -> None:
    conn.recv(4096)
    conn.sendall(struct.pack(">i", 2**31 - 1) + bytes(1000))


@pytest.mark.parametrize("behaviour", [hang_up, answer_garbage, answer_endlessly])
def test_servers_that_are_no_brokers_are_not_hammered(behaviour: Any) -> None:
    with Server(behaviour) as server, opened(f"127.0.0.1:{server.port}") as transport:
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            replies = Replies()
            transport.init_producer_id(replies)
            assert isinstance(replies.get(), Failure)
        assert 1 <= server.accepted <= 10


def test_tls_to_a_server_that_hangs_ends_in_time() -> None:
    with (
        Server(lambda _: None) as server,
        opened(
            f"127.0.0.1:{server.port}",
            security_protocol="SSL",
            ssl_check_hostname=False,
            socket_connection_setup_timeout_ms=300,
        ) as transport,
    ):
        replies = Replies()
        transport.init_producer_id(replies)
        result = replies.get()
        assert isinstance(result, Failure)
        assert not result.sent


def test_names_are_looked_up_beside_the_network_thread(mocker: MockerFixture, free_port: int) -> None:
    threads = set()
    real = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.current_thread().name)
        time.sleep(0.3)
        return real(*args, **kwargs)

    mocker.patch("socket.getaddrinfo", autospec=True, side_effect=slow)
    with opened(f"localhost:{free_port}", client_id="looks-up") as transport:
        assert "kafka-io-looks-up" in {thread.name for thread in threading.enumerate()}
        replies = Replies()
        transport.init_producer_id(replies)
        assert isinstance(replies.get(), Failure)
        # Other tests' clients may still look for their brokers, on threads of theirs.
        assert "kafkasafe-lookup-localhost" in threads
        assert "kafka-io-looks-up" not in threads
        transport.init_producer_id(replies)  # closing while a look-up is under way


def test_a_crash_of_the_network_thread_leaves_nobody_waiting_and_another_takes_its_place(
    free_port: int,
) -> None:
    with opened(
        f"127.0.0.1:{free_port}", reconnect_backoff_ms=60000, reconnect_backoff_max_ms=60000
    ) as transport:
        until(lambda: transport._reachability.failed)
        replies = Replies()
        transport.produce([ProduceRequest("a", "t", 0, plain_batch())], -1, 1000, replies.produced)
        replies.nothing_more(0.1)
        failed, crashed = transport._reachability.failed, transport._network.loop
        crashed._schedule_tasks = lambda: 1 / 0
        transport.produce([ProduceRequest("b", "t", 0, plain_batch())], -1, 1000, replies.produced)
        (first, result), *_ = replies.take(1)
        assert (first, isinstance(result, Failure), result.sent) == ("a", True, False)
        until(lambda: transport._network.loop is not crashed)
        assert not transport.closed
        # It looks for a broker again, with connections of its own.
        until(lambda: transport._reachability.failed > failed)
        thread = transport._network.thread
    assert transport.closed
    assert not thread.is_alive()


def test_a_network_thread_that_crashes_each_time_is_not_started_in_a_hurry_and_can_be_closed(
    mocker: MockerFixture, free_port: int
) -> None:
    transport = over_sockets({"bootstrap_servers": f"127.0.0.1:{free_port}"})
    crashed: list[Loop] = []
    schedule = Loop._schedule_tasks

    def crash(loop: Loop) -> None:
        # Other tests' transports may still run in this process, and each has a loop of its own.
        if loop is not transport._network.loop:
            return schedule(loop)
        if loop not in crashed:
            crashed.append(loop)
        raise ZeroDivisionError

    mocker.patch.object(Loop, "_schedule_tasks", crash)
    transport.start()
    until(lambda: len(crashed) >= 3)
    time.sleep(0.5)
    assert len(crashed) < 10
    until(lambda: transport.close(5.0))
    assert transport.closed


@pytest.mark.parametrize("lacking", ["handles", "threads"])
def test_a_network_thread_that_crashes_while_no_other_can_begin_is_replaced_as_soon_as_one_can(
    mocker: MockerFixture, free_port: int, lacking: str
) -> None:
    with opened(f"127.0.0.1:{free_port}") as transport:
        until(lambda: transport._reachability.failed)
        crashed, started, pair = transport._network.loop, threading.Thread.start, socket.socketpair
        refused: list[str] = []

        def refuses() -> bool:
            # Other tests' transports may still run in this process.
            if threading.current_thread() is not crashed._io_thread or len(refused) == 3:
                return False
            refused.append(lacking)
            return True

        def start(thread: threading.Thread) -> None:
            if lacking == "threads" and refuses():
                raise RuntimeError("can't start new thread")
            started(thread)

        def pairs(*args: Any) -> Any:
            if lacking == "handles" and refuses():
                raise OSError(errno.EMFILE, "Too many open files")
            return pair(*args)

        mocker.patch.object(threading.Thread, "start", start)
        mocker.patch.object(socket, "socketpair", pairs)
        handles = len(list(Path("/proc/self/fd").iterdir()))
        crashed._schedule_tasks = lambda: 1 / 0
        replies = Replies()
        transport.produce([ProduceRequest("a", "t", 0, plain_batch())], -1, 1000, replies.produced)
        (first, result), *_ = replies.take(1)
        assert (first, isinstance(result, Failure), result.sent) == ("a", True, False)
        failed = transport._reachability.failed
        until(lambda: transport._reachability.failed > failed)
        assert len(refused) == 3
        assert not transport.closed
        until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= handles)
        thread = transport._network.thread
    assert transport.closed
    assert not thread.is_alive()


def test_a_network_that_cannot_begin_again_can_be_closed(mocker: MockerFixture, free_port: int) -> None:
    transport = over_sockets({"bootstrap_servers": f"127.0.0.1:{free_port}"})
    transport.start()
    until(lambda: transport._reachability.failed)
    renew = mocker.patch.object(transport._network, "_renew", side_effect=MemoryError)
    transport._network.loop._schedule_tasks = lambda: 1 / 0
    replies = Replies()
    transport.refresh_metadata(["t"], replies)
    until(lambda: renew.call_count >= 2)
    until(lambda: transport.close(5.0))
    assert transport.closed
    assert isinstance(replies.get(), Failure)


def test_a_step_that_fails_does_not_end_the_network_thread(mocker: MockerFixture, free_port: int) -> None:
    with opened(f"127.0.0.1:{free_port}") as transport:
        until(lambda: transport._reachability.failed)
        net, failed = transport._network.loop, transport._reachability.failed
        gathered = mocker.patch.object(transport._links, "ask_gathered", side_effect=ZeroDivisionError)

        async def waits() -> None:
            gathered()

        net.call_soon(waits)
        transport.refresh_metadata(["t"], Replies())
        until(lambda: gathered.call_count >= 2)
        until(lambda: transport._reachability.failed > failed)
        assert transport._network.loop is net


def test_a_produce_response_that_leaves_a_partition_out(free_port: int) -> None:
    transport = over_sockets({"bootstrap_servers": f"127.0.0.1:{free_port}"})
    replies = Replies()
    entries = [(ProduceRequest(p, "t", p, b"x"), memoryview(b"x")) for p in range(2)]
    call = ProduceCall(transport._produce_router, 1, entries, topic_ids("t"), -1, 1000, replies.produced)
    answer_of = ProduceResponse.TopicProduceResponse
    answer = answer_of.PartitionProduceResponse(index=1, error_code=0, base_offset=5)
    response = ProduceResponse(responses=[answer_of(name="t", partition_responses=[answer])], version=9)
    call.succeed(response)
    call.succeed(response)
    call.fail(kafka.errors.KafkaConnectionError(), sent=False)
    results = dict(replies.take(2))
    replies.nothing_more(0.01)
    assert isinstance(results[0], Failure)
    assert results[0].sent
    assert results[1].base_offset == 5
    order = transport._produce_router.order
    assert [order.overtaken(("t", p), 2, NO_TOPIC_ID) for p in range(2)] == [None, None]
    transport.close(60.0)


@pytest.mark.parametrize("same", [True, False])
def test_a_hint_at_the_leader_of_a_former_topic_does_not_count(free_port: int, *, same: bool) -> None:
    """1. A batch is on its way to the former leader of a topic, which has had many elections. 2. The topic is recreated,
    and metadata name the new one, whose epochs begin at 0. 3. The answer comes late, with a leader and a high epoch.
    """
    transport = over_sockets({"bootstrap_servers": f"127.0.0.1:{free_port}"})
    ids = topic_ids("t", "new")
    entries = [(ProduceRequest("token", "t", 0, b"x"), memoryview(b"x"))]
    replies = Replies()
    call = ProduceCall(transport._produce_router, 1, entries, ids, -1, 1000, replies.produced)
    of_now = TopicInfo("t", ids["t" if same else "new"], {0: PartitionInfo(1, 0)}, 0)
    transport._leaders.topics = {"t": of_now}
    topic_of = ProduceResponse.TopicProduceResponse
    row_of = topic_of.PartitionProduceResponse
    hint = row_of.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
    row = row_of(index=0, error_code=6, base_offset=-1, current_leader=hint)
    broker = ProduceResponse.NodeEndpoint(node_id=2, host="localhost", port=9, rack=None)
    former = topic_of(topic_id=uuid.UUID(bytes=ids["t"]), partition_responses=[row])
    call.succeed(ProduceResponse(responses=[former], node_endpoints=[broker], version=13))
    (answered,) = replies.take(1)
    assert answered[1].leader_hint == (2, 7)
    info = transport.topic("t")
    assert info is not None
    assert info.partitions[0] == (PartitionInfo(2, 7) if same else PartitionInfo(1, 0))
    transport.close(60.0)


def test_a_fetch_goes_on_behind_batches_of_any_format() -> None:
    old = struct.pack(">qiIbb", 41, 14, 0, 1, 0) + bytes(8)
    new = plain_batch(4)
    batch.stamp_address(new, 42, 0)
    assert _next_offset(old + new, 41) == 46
    assert _next_offset(old + new[:-1], 41) == 42
    assert _next_offset(old[:-1], 41) == 41
    assert _next_offset(b"", 41) == 41


def test_split_into_requests_by_partition_and_size() -> None:
    batches = []
    for token, partition, size in (("a", 0, 400), ("b", 1, 400), ("c", 0, 10), ("d", 2, 5000), ("e", 3, 10)):
        request = ProduceRequest(token, "t", partition, bytes(size))
        batches.append((request, memoryview(request.data)))
    assert [[request.token for request, _ in frame] for frame in shared_requests(batches, 1000)] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]


# --- a cluster behind proxies -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Site:
    cluster: KafkaCluster
    proxies: dict[int, TcpProxy]
    topics: Iterator[str]

    def topic(self, partitions: int = 1, leader: int = 1, copies: int = 3) -> str:
        name = next(self.topics)
        nodes = [leader, *(node for node in (1, 2, 3) if node != leader)][:copies]
        self.cluster.create_topic(name, assignments=dict.fromkeys(range(partitions), nodes))
        return name

    @property
    def servers(self) -> list[str]:
        return self.cluster.bootstrap_servers

    def transport(self, **options: Any) -> contextlib.AbstractContextManager[Transport]:
        return opened(self.servers, **options)


@pytest.fixture
def free_port() -> Iterator[int]:
    """Where nobody listens, and nobody else can, not even by chance: connecting is refused."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.fixture(scope="module")
def _site() -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        proxies = {node: stack.enter_context(TcpProxy()) for node in (1, 2, 3)}
        cluster = KafkaCluster(3, proxy_ports={node: proxy.port for node, proxy in proxies.items()})
        for node, proxy in proxies.items():
            proxy.target_port = cluster.client_address(node)[1]
        stack.enter_context(cluster)
        yield Site(cluster, proxies, (f"topic-{number}" for number in range(1000)))


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    """All brokers up and all proxies clean, whatever the test before did."""
    yield _site
    for proxy in _site.proxies.values():
        proxy.restore()
    for node in _site.cluster.brokers:
        _site.cluster.resume(node)
    _site.cluster.start_all()


@pytest.mark.kafka
class TestRequests:
    def test_every_method(self, site: Site) -> None:
        topic = site.topic(partitions=2)
        with site.transport() as transport:
            heard: list[MetadataRefreshed] = []
            transport.on_metadata(heard.append)
            producer = Producer(transport, topic)
            assert transport.connected
            assert transport._network.manager.broker_version == (4, 3)
            assert transport.cluster_id == site.cluster.cluster_id
            assert producer.deliver([producer.make(3), producer.make(2)]) == [0, 3]

            info = transport.topic(topic)
            assert info is not None
            assert info.error_code == 0
            assert len(info.topic_id) == 16
            assert any(info.topic_id)
            assert info.partitions[0].leader == 1
            assert info.partitions[0].leader_epoch >= 0
            assert set(info.partitions) == {0, 1}

            described = ask(transport.describe_producers, topic, 0)
            assert isinstance(described, ProducersDescribed)
            state = described.producers[producer.granted.producer_id]
            assert (state.epoch, state.last_sequence, state.last_timestamp) == (0, 4, NOW_MS)

            fetched = ask(transport.fetch_headers, topic, 0, 0, 1)
            assert isinstance(fetched, HeadersFetched)
            assert [header.base_offset for header in fetched.headers] == [0], "the first batch, whole"
            assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset) == (3, 5, 0)
            fetched = ask(transport.fetch_headers, topic, 0, fetched.next_offset, 100_000)
            assert [(h.base_offset, h.base_sequence, h.count) for h in fetched.headers] == [(3, 3, 2)]
            assert fetched.headers[0].producer_id == producer.granted.producer_id
            fetched = ask(transport.fetch_headers, topic, 0, 5, 100_000)
            assert (fetched.headers, fetched.next_offset) == ([], 5)
            replies = Replies()
            transport.fetch_headers(topic, 0, 99, 1000, replies)
            assert replies.get().error_code == 1

            assert ask(transport.list_offset, topic, 0, -1) == OffsetListed(
                0, 5, info.partitions[0].leader_epoch
            )
            assert ask(transport.list_offset, topic, 0, -2).offset == 0
            assert ask(transport.list_offset, topic, 0, NOW_MS).offset == 0
            assert ask(transport.list_offset, topic, 0, NOW_MS + 1).offset == -1
            epoch = info.partitions[0].leader_epoch
            assert ask(transport.offset_for_leader_epoch, topic, 0, epoch) == EpochEnd(0, epoch, 5)
            assert ask(transport.offset_for_leader_epoch, topic, 0, epoch + 5) == EpochEnd(0, -1, -1)

            refreshed = ask(transport.refresh_metadata, [topic])
            assert isinstance(refreshed, MetadataRefreshed)
            assert refreshed.topics[topic].partitions == transport.topic(topic).partitions  # type: ignore[union-attr]
            assert sorted(refreshed.brokers) == [1, 2, 3]
            assert heard
            assert heard[-1].topics[topic].topic_id == info.topic_id
            transport.unwatch(topic)
            until(lambda: transport.topic(topic) is None)
            assert producer.replies.threads == {"kafka-io-kafkasafe"}

    def test_the_log_may_end_behind_the_high_watermark(self, site: Site) -> None:
        topic = site.topic()
        with site.transport() as transport:
            producer = Producer(transport, topic)
            assert producer.deliver([producer.make(3)]) == [0]
            site.cluster.pause(3)
            transport.produce([producer.request("a", producer.make(2))], 1, 60_000, producer.replies.produced)
            assert producer.replies.get().base_offset == 3
            ends, watermarks = Replies(), Replies()
            transport.log_end_offset(topic, 0, ends)
            transport.list_offset(topic, 0, -1, watermarks)
            assert ends.get().offset == 5
            assert watermarks.get().offset == 3
            site.cluster.resume(3)
            # A broker says so when it does not lead in the epoch it is asked for.
            info = transport.topic(topic)
            assert info is not None
            epoch = info.partitions[0].leader_epoch
            stale = dataclasses.replace(info, partitions={0: PartitionInfo(1, epoch + 1)})
            transport._leaders.topics = {**transport._leaders.topics, topic: stale}
            transport.log_end_offset(topic, 0, ends)
            assert ends.get().error_code == 75

    def test_large_batches_of_many_kinds_of_buffer(self, site: Site) -> None:
        topic = site.topic()
        with site.transport(max_request_size=5_000_000) as transport:
            value = random.Random(1).randbytes(1000)
            data = batch.encode(None, [value] * 1000, timestamps=NOW_MS)
            replies = Replies()
            kinds = [bytes(data), data, memoryview(data), memoryview(bytes(data)).cast("b")]
            transport.produce(
                [ProduceRequest(n, topic, 0, kind) for n, kind in enumerate(kinds)],
                -1,
                9000,
                replies.produced,
            )
            assert [reply.base_offset for _, reply in replies.take(4)] == [0, 1000, 2000, 3000]
            kinds.clear()
            data.clear()  # nothing holds on to the caller's buffer
            fetched = ask(transport.fetch_headers, topic, 0, 0, 10_000_000)
            assert [header.count for header in fetched.headers] == [1000] * 4
            assert fetched.next_offset == 4000

    def test_thousands_of_requests_from_many_threads(self, site: Site) -> None:
        data = bytes(plain_batch(1))
        with site.transport() as transport:
            # A broker that does not run for two seconds, on a machine that is busy, loses its leadership meanwhile.
            for _ in range(5):
                topic, replies = site.topic(partitions=4), Replies()
                ask(transport.refresh_metadata, [topic])

                def work(partition: int, topic: str = topic, replies: Replies = replies) -> None:
                    for n in range(300):
                        request = ProduceRequest((partition, n), topic, partition, data)
                        transport.produce([request], 1, 60_000, replies.produced)

                threads = [threading.Thread(target=work, args=(p,)) for p in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                results = replies.take(1200)
                if not any(isinstance(reply, Failure) or reply.error_code for _, reply in results):
                    break
            assert [(token, reply) for token, reply in results if reply.base_offset != token[1]] == []


def _produced(
    transport: Transport, topic: str, partition: int = 0, timeout_ms: int = 5000
) -> ProduceReply | None:
    replies = Replies()
    transport.produce(
        [ProduceRequest(None, topic, partition, plain_batch(1))], -1, timeout_ms, replies.produced
    )
    result = replies.get()
    return result if isinstance(result, ProduceReply) and not result.error_code else None


@pytest.mark.kafka
class TestFaults:
    @pytest.mark.parametrize("how", ["time-out", "close"])
    def test_what_the_kernel_has_not_sent_goes_with_its_connection(self, site: Site, how: str) -> None:
        """It went on to send a request that was taken for dead, for as long as the way needed."""
        topic, proxy = site.topic(), site.proxies[1]
        options = {"request_timeout_ms": 1000, "send_buffer_bytes": 1 << 20}
        with site.transport(**options) as transport:
            producer = Producer(transport, topic)
            assert producer.deliver([producer.make(1)]) == [0]
            data = batch.encode(None, [bytes(300_000)], timestamps=NOW_MS)
            batch.stamp_identity(data, producer.granted.producer_id, producer.granted.epoch, 1)
            proxy.stall()
            before = proxy.request_bytes
            transport.produce([producer.request("large", data)], -1, 100, producer.replies.produced)
            link = transport._links.link(1)
            # The kernel has all of it.
            assert until(lambda: any(call.written_at for call in list(link.in_flight)), TIMEOUT_S)
            if how == "close":
                assert transport.close(TIMEOUT_S)
            ((_, failure),) = producer.replies.take(1)
            assert isinstance(failure, Failure)
            assert failure.sent
        proxy.stall(False)
        assert until(lambda: not proxy._connections, TIMEOUT_S)
        assert proxy.request_bytes - before < len(data)
        with site.transport(**options) as transport:
            assert ask(transport.list_offset, topic, 0, -1).offset == 1

    def test_cut_connections_under_load(self, site: Site) -> None:
        topic = site.topic()
        with site.transport() as transport:
            producer = Producer(transport, topic)
            batches = [producer.make(2) for _ in range(120)]
            done = threading.Event()

            def cutter() -> None:
                while not done.wait(0.05):
                    site.proxies[1].cut()

            thread = threading.Thread(target=cutter)
            thread.start()
            try:
                offsets = producer.deliver(batches)
            finally:
                done.set()
                thread.join()
            assert offsets == list(range(0, 240, 2))
            assert ask(transport.list_offset, topic, 0, -1).offset == 240

    def test_a_request_cut_in_half_is_not_appended(self, site: Site) -> None:
        topic = site.topic()
        with site.transport() as transport:
            producer = Producer(transport, topic)
            assert producer.deliver([producer.make(1)]) == [0]
            data = producer.make(2000)
            site.proxies[1].cut_after(len(data) // 2)
            producer.send(producer.request("half", data))
            result = producer.replies.get()
            assert isinstance(result, Failure)
            assert result.sent
            producer.fence = result.fence
            assert producer.deliver([data]) == [1]

    def test_close_answers_what_is_in_flight(self, site: Site) -> None:
        topic = site.topic()
        replies = Replies()
        with site.transport() as transport:
            ask(transport.refresh_metadata, [topic])
            ask(transport.list_offset, topic, 0, -1)
            site.proxies[1].stall()
            # More than socket buffers hold: some of it is still in the connection's own buffer.
            data = batch.encode(None, [bytes(1000)] * 900, timestamps=NOW_MS)
            for n in range(20):
                transport.produce([ProduceRequest(n, topic, 0, data)], -1, 5000, replies.produced)
            replies.nothing_more(0.2)
            started = time.monotonic()
        assert time.monotonic() - started < 10.0
        results = replies.take(20)
        assert [token for token, _ in results] == list(range(20)), "in order"
        assert all(isinstance(result, Failure) for _, result in results)
        assert results[0][1].sent
        data.clear()
        assert transport.closed

    def test_all_brokers_die_and_come_back(self, site: Site) -> None:
        topic = site.topic()
        # A bootstrap server that is never there must not matter.
        with opened(["127.0.0.1:1", *site.servers]) as transport:
            producer = Producer(transport, topic)
            assert producer.deliver([producer.make(1)]) == [0]
            site.cluster.kill_all()
            until(lambda: not transport.connected)
            producer.send(producer.request("down", producer.make(1)))
            result = producer.replies.get()
            assert isinstance(result, Failure)
            producer.fence = result.fence
            producer.sequence -= 1
            data = producer.make(1)
            site.cluster.start_all()
            back = time.monotonic()
            assert producer.deliver([data], 60) == [1]
            assert time.monotonic() - back < 15.0
            assert transport.connected
            assert isinstance(ask(transport.init_producer_id), ProducerIdGranted)

    def test_stale_addresses_are_left_for_the_bootstrap_servers(self, site: Site) -> None:
        topic = site.topic()
        with site.transport() as transport:
            ask(transport.refresh_metadata, [topic])
            # As if all brokers had moved: none of the addresses in the metadata is right any more.
            brokers = transport._network.manager.cluster._brokers
            moved = {
                node: type(broker)(broker.node_id, broker.host, 1, broker.rack)
                for node, broker in brokers.items()
            }
            transport._network.manager.cluster._brokers = moved
            for proxy in site.proxies.values():
                proxy.cut()
            until(lambda: _produced(transport, topic), 6.0)
            assert transport.connected


@pytest.mark.kafka
def test_an_old_broker(tmp_path_factory: pytest.TempPathFactory) -> None:
    """0.11: Produce v3 without a log start offset, ZooKeeper, no DescribeProducers."""
    with KafkaCluster(1, version="0.11.0.3") as cluster, opened(cluster.bootstrap_servers) as transport:
        cluster.create_topic("t")
        producer = Producer(transport, "t")
        assert transport._network.manager.broker_version == (0, 11)
        assert producer.deliver([producer.make(3), producer.make(2)]) == [0, 3]
        info = transport.topic("t")
        assert info is not None
        assert not any(info.topic_id)
        fetched = ask(transport.fetch_headers, "t", 0, 0, 100_000)
        assert [header.base_sequence for header in fetched.headers] == [0, 3]
        assert ask(transport.list_offset, "t", 0, -1) == OffsetListed(0, 5, -1)
        assert ask(transport.log_end_offset, "t", 0) == OffsetListed(0, 5, -1)
        assert ask(transport.offset_for_leader_epoch, "t", 0, 0).end_offset == 5
        replies = Replies()
        transport.describe_producers("t", 0, replies)
        result = replies.get()
        assert isinstance(result, Failure)
        assert isinstance(result.error, kafka.errors.UnsupportedVersionError)
        assert result.code == 35
        assert not result.sent


@pytest.mark.kafka
def test_tls_and_sasl_and_authentication_again() -> None:
    cluster = KafkaCluster(
        1,
        listeners={"SECURE": "SASL_SSL"},
        users={"alice": "secret"},
        config={"listener.name.secure.plain.connections.max.reauth.ms": 4000},
    )
    servers = cluster.address("SECURE")
    with cluster:
        options = cluster.client_options("SECURE", mechanism="PLAIN")
        del options["bootstrap_servers"]
        cluster.create_topic("t")
        # Not in the time of the session: a busy machine takes long.
        large = batch.encode(None, [random.Random(3).randbytes(1000)] * 900, timestamps=NOW_MS)
        with opened(servers, **options) as transport:
            producer = Producer(transport, "t")
            replies = Replies()
            transport.produce(
                [ProduceRequest(n, "t", 0, large) for n in range(5)], -1, 9000, replies.produced
            )
            assert [reply.base_offset for _, reply in replies.take(5)] == [0, 900, 1800, 2700, 3600]
            assert ask(transport.fetch_headers, "t", 0, 0, 5_000_000).next_offset == 4500
            # Longer than the session lives, without a single failure. (A broker refuses twice within a second.)
            offset = 4500
            until_s = time.monotonic() + 4.5
            while time.monotonic() < until_s:
                producer.send(producer.request(offset, producer.make(1)))
                assert producer.replies.get().base_offset == offset
                offset += 1
        with opened(servers, **(options | {"sasl_plain_password": "wrong"})) as transport:
            replies = Replies()
            transport.init_producer_id(replies)
            result = replies.get()
            assert isinstance(result, Failure)
            assert isinstance(result.error, kafka.errors.SaslAuthenticationFailedError)
            assert not result.sent
            # A password that becomes valid later is found valid: no failure is for ever.
            transport._network.manager.config["sasl_plain_password"] = "secret"
            assert isinstance(ask(transport.init_producer_id), ProducerIdGranted)
        with opened(servers, **(options | {"ssl_cafile": None})) as transport:
            replies = Replies()
            transport.init_producer_id(replies)
            assert "certificate" in str(replies.get().error).lower()
