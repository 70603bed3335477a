"""Responses as kafka-python decodes them from the sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.parser import KafkaProtocol

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.kafkapython import sockets
from kafkasafe.kafkapython.loop import Loop


def received(size: int) -> sockets._Incoming:
    """A response that has come as a whole; its first four bytes are read."""
    frame = KafkaBytes(size)
    sockets._Incoming.become(SimpleNamespace(_rbuffer=frame))
    frame.write(bytes(range(256)) * (size // 256))
    frame.seek(0)
    assert frame.read(4) == b"\0\1\2\3"
    return frame


def test_a_large_response_is_decoded_where_it_is():
    frame = received(256 * 1024)
    rest = frame.read()
    assert isinstance(rest, memoryview)
    assert rest.obj is frame
    assert bytes(rest[:4]) == b"\4\5\6\7"
    assert len(rest) == 256 * 1024 - 4
    assert frame.read() == b""


def test_a_small_response_is_bytes():
    """As SASL tokens have to be."""
    rest = received(1024).read()
    assert isinstance(rest, bytes)
    assert len(rest) == 1020


def answered(version: int) -> list[FetchResponse]:
    """A response with much and little of partitions, in its two halves: as it is and as views."""
    row = FetchResponse.FetchableTopicResponse.PartitionData
    partitions = [
        row(
            partition_index=index,
            high_watermark=10**12,
            records=records,
            preferred_read_replica=-1,
            aborted_transactions=[row.AbortedTransaction(producer_id=7, first_offset=index)],
            diverging_epoch=row.EpochEndOffset(epoch=3, end_offset=index - 1),
        )
        for index, records in enumerate((bytes(range(256)) * 1000, b"few", None, b"y" * 300_000, b""))
    ]
    message = FetchResponse[version](
        throttle_time_ms=7,
        session_id=9,
        responses=[FetchResponse.FetchableTopicResponse(topic="orders", partitions=partitions)],
    )
    flexible = b"\0" if version >= 12 else b""
    found = []
    for views in (False, True):
        parser = KafkaProtocol(client_id="c")
        request = FetchRequest(min_version=version, max_version=version)
        request.API_VERSION = version
        number = parser.send_request(request)
        body = number.to_bytes(4, "big") + flexible + bytes(message.encode())
        data = len(body).to_bytes(4, "big") + body
        assert parser.receive_bytes(data[:100]) == []
        if views:
            sockets._Incoming.become(parser)
            sockets._Incoming.become(parser)
        [(correlation_id, response)] = parser.receive_bytes(data[100:])
        assert correlation_id == number
        found.append(response)
    return found


@pytest.mark.parametrize("version", range(4, 13))
def test_large_records_of_a_response_are_views_and_all_else_is_the_same(version):
    copied, viewed = answered(version)
    rows = [row for topic in viewed.responses for row in topic.partitions]
    assert [type(row.records) for row in rows] == [memoryview, bytes, type(None), memoryview, bytes]
    for row in rows:
        row.records = row.records if row.records is None else bytes(row.records)
    assert viewed == copied
    assert (viewed.API_VERSION, viewed.to_dict()) == (version, copied.to_dict())
    assert rows[3].records == b"y" * 300_000


class Receiving(sockets._SocketMixin):
    """The receiving half of a connection: kafka-python's parser, and what is passed to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._read, self._closed = True, False
        self._protocol = self
        self._sensors = None
        self.last_read = 0.0
        self.ready: list[Callable[[], None]] = []
        self._net = SimpleNamespace(call_soon=self.ready.append)
        self.parser = KafkaProtocol(client_id="c")
        self.pieces: list[int] = []
        self.responses: list[object] = []
        self.errors: list[BaseException] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(len(data))
        self.responses += self.parser.receive_bytes(data)

    def abort(self, error: BaseException) -> None:
        self.errors.append(error)
        self._closed = True


@pytest.mark.parametrize("after", [0, 1000], ids=["alone", "before another one"])
def test_a_large_response_is_received_into_its_own_buffer(after):
    """Its first bytes say how large it is. All later ones are passed to the parser in place, but for the last one."""
    row = FetchResponse.FetchableTopicResponse.PartitionData
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        receiving = Receiving(near)
        sent = b""
        for size in (150_000, after) if after else (150_000,):
            request = FetchRequest(min_version=4, max_version=4)
            request.API_VERSION = 4
            number = receiving.parser.send_request(request)
            part = row(partition_index=0, records=b"x" * size, aborted_transactions=[])
            topic = FetchResponse.FetchableTopicResponse(topic="orders", partitions=[part])
            body = number.to_bytes(4, "big") + bytes(FetchResponse[4](responses=[topic]).encode())
            sent += len(body).to_bytes(4, "big") + body
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        far.sendall(sent)
        receiving._receive()
        until = time.monotonic() + 10
        while len(receiving.responses) < (2 if after else 1) and time.monotonic() < until:
            receiving._receive()  # if the kernel passed it on in parts
        assert [len(response.responses[0].partitions[0].records) for _, response in receiving.responses] == (
            [150_000, after] if after else [150_000]
        )
        assert sum(receiving.pieces) < 70_000 + after
        assert receiving.errors == []
        far.close()
        receiving._receive()
        assert "closed" in str(receiving.errors[0])


def response(receiving: Receiving, whole_size: int) -> bytes:
    """The bytes of a response to a request, so many with its length in front."""
    request = FetchRequest(min_version=4, max_version=4)
    request.API_VERSION = 4
    number = receiving.parser.send_request(request)
    made = b""
    for size in (0, whole_size):
        part = FetchResponse.FetchableTopicResponse.PartitionData(
            partition_index=0, records=b"x" * (size - len(made)), aborted_transactions=[]
        )
        topic = FetchResponse.FetchableTopicResponse(topic="orders", partitions=[part])
        body = number.to_bytes(4, "big") + bytes(FetchResponse[4](responses=[topic]).encode())
        made = len(body).to_bytes(4, "big") + body
    assert len(made) == whole_size
    return made


def test_what_came_before_the_end_is_told_first():
    """
    1. A broker answers that a password is wrong, and closes the connection. One call of the loop reads both.
    2. The task that waits for the answer is ready to run, and must run before the connection is closed.
    """
    near, far = socket.socketpair()
    with near:
        near.setblocking(False)
        receiving = Receiving(near)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        far.sendall(response(receiving, 64 * 1024))
        far.close()
        until = time.monotonic() + 10
        while not receiving.responses and time.monotonic() < until:
            receiving._receive()  # if the kernel passed it on in parts
        assert len(receiving.responses) == 1
        assert receiving.pieces == [64 * 1024]
        assert receiving.errors == []
        for step in receiving.ready:
            step()
        assert "closed the connection" in str(receiving.errors[0])


@pytest.mark.parametrize("loop", [NetworkSelector, Loop])
@pytest.mark.parametrize("end", [b"", b"\xff\xff\xff\xff" * 8], ids=["closed", "garbage"])
def test_an_end_right_after_a_response_ends_the_connection(loop, end):
    """The loop of kafka-python takes functions and methods as tasks, but no other callables.

    1. A broker answers, and then closes the connection or sends garbage. One call of the loop reads both.
    2. The connection's end is a task of the loop. If the loop refused it, nobody would learn of the end: bytes that could
       not be decoded are read only once.
    """
    near, far = socket.socketpair()
    with near, contextlib.closing(loop()) as net:
        near.setblocking(False)
        receiving = Receiving(near)
        receiving._net = net
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        far.sendall(response(receiving, 64 * 1024) + end)
        far.close()
        until = time.monotonic() + 10
        while not receiving.responses and time.monotonic() < until:
            receiving._receive()  # if the kernel passed it on in parts
        assert len(receiving.responses) == 1
        net.drain()
        assert len(receiving.errors) == 1


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_why_a_connection_broke_within_a_large_response_is_said(reset):
    """The kernel tells once that the other side has reset the connection; after that it is only closed."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        far, _ = server.accept()
        with far:
            near.setblocking(False)
            receiving = Receiving(near)
            far.sendall((200_000).to_bytes(4, "big") + bytes(100_000))
            until = time.monotonic() + 10
            while time.monotonic() < until and not (
                (frame := receiving.parser._rbuffer) and frame.tell() == 100_000
            ):
                receiving._receive()
            assert receiving.parser._rbuffer.tell() == 100_000
            if reset:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while not receiving.errors and time.monotonic() < until:
            receiving._receive()
        assert ("reset" if reset else "The broker closed the connection") in str(receiving.errors[0])
        assert receiving.responses == []


@pytest.mark.parametrize("kind", ["arrow", "records"])
def test_what_was_fetched_is_not_copied_as_a_whole(fake_kafka, tmp_path, monkeypatch, kind):
    viewed = []
    read = sockets._Incoming.read
    monkeypatch.setattr(
        sockets._Incoming,
        "read",
        lambda frame, *size: viewed.append(type(found := read(frame, *size))) or found,
    )
    servers = fake_kafka.bootstrap_servers
    fake_kafka.create_topic("t", partitions=1)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
        for number in range(1000):
            producer.send("t", b"%d" % number + b"x" * 1024)
        producer.flush(30)
    with SafeConsumer(
        "t", bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        values: list[bytes] = []
        while len(values) < 1000:
            if kind == "arrow":
                values += consumer.poll_arrow(1000)["value"].to_pylist()
            else:
                values += [each.value for some in consumer.poll(1000).values() for each in some]
    assert values == [b"%d" % number + b"x" * 1024 for number in range(1000)]
    assert memoryview in viewed
