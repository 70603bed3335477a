"""The network: requests to Kafka brokers, each answered exactly once.

The only module that knows kafka-python's `kafka.net` and `kafka.protocol`. Sockets, TLS, SASL, proxies and the
event loop are kafka-python's (`NetworkSelector`, `KafkaConnectionManager`, `KafkaConnection`); which request goes
where and when, metadata, back-off and the encoding of Produce requests are decided here.

Ownership. One I/O thread owns everything below the public methods. A public method only puts a job into `_inbox`
and wakes that thread. The thread passes each job on: to the `_Link` of one broker, or aside (`_parked`) until the
next answer about metadata. A link holds what cannot be written yet (connection being made, throttled), in order,
and lets go of all of it when its connection fails.

A request's journey: (1) `produce` → inbox; (2) `_route_produce` finds leaders and groups by them; (3) `_Link.submit`
appends it to `waiting`, `_Link.pump` connects, or writes it as soon as the connection takes it; (4) the reply, the
end of the connection, or its timeout → `reply` is called, once; (5) codes that mean "not here" ask for new metadata.

Non-obvious:

- Another cluster may have come to live behind an address (a switch of DNS names, a pod's address given to another).
  A guarded transport (`guard`) therefore asks on each new connection which cluster it is, before anything else goes
  out on it: `_Link.pump` holds everything back until the answer to a Metadata request admits the connection.
- A request counts as sent from the moment its bytes were handed to the connection's write buffer. Before that it
  failed with `sent=False`: the broker cannot have seen it.
- Its time-out begins when the last of them has left that buffer (`_SocketMixin.mark`): on a slow way the time before
  that says nothing about the broker. A socket that takes no byte at all for as long has timed out as well.
- Nothing is sent to a partition's new leader while batches for it are outstanding at the old one: whoever answers
  first would decide the order.
- Questions about offsets and epochs are gathered (`_Link.ask`): those of one kind that are for one broker and come in
  the same turn of the loop go out as one request. What else goes to that broker sends them first, so they stay in
  order. The kind includes what is looked for: ends must not wait for a look-up by time in remote storage.
- A connection that ends takes everything with it that waited for it, sent or not: a later batch must not overtake
  an earlier one that was lost. Batches that another thread submits before it has heard of the loss are held off by
  the *fence* (see `ProduceRequest.fence`).
- kafka-python's own metadata loop is not used: it knows no way back to the bootstrap servers once all brokers it
  knew are gone, and logs an error ten times a second for a topic that does not exist. `ClusterMetadata` serves as
  the address book only.
- kafka-python's back-off is reset by a connection that fails while it is being initialised (`initialize` swallows
  the error), and one authentication failure blocks a node for ever. Links keep their own back-off.
- A task of kafka-python's loop costs some 50 µs, and so does it to register a socket. So what each request needs goes
  without (`_Loop`, `_WithoutTasks`): sockets stay registered, what a turn has to write goes out at its end, and one
  timer watches all that is in flight on a link. The consumer and the admin client have kafka-python's loop as it is.
- kafka-python leaves the socket of a failed connection attempt to the garbage collector, looks up names on the I/O
  thread and never gives up a TLS handshake: `_Manager._build_transport` replaces that part.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import heapq
import ipaddress
import itertools
import os
import random
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector, Task, TaskState
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.frame import KafkaBytes
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceResponse
from kafka.protocol.producer import ProduceRequest as KafkaProduceRequest
from kafka.util import ensure_valid_topic_name

from kafkasafe._core.batch import iter_headers
from kafkasafe._io import at_once, requests
from kafkasafe._io.backoff import Backoff
from kafkasafe.cluster.api import (
    LIST_OFFSETS_VERSIONS,
    NO_TOPIC_ID,
    Broker,
    Buffer,
    EpochEnd,
    Failure,
    HeadersFetched,
    MetadataRefreshed,
    OffsetListed,
    PartitionInfo,
    ProduceCallback,
    ProduceReply,
    ProduceRequest,
    ProducerIdGranted,
    ProducersDescribed,
    ProducerState,
    Reached,
    RecordsFetched,
    Reply,
    StaleFenceError,
    TopicInfo,
    TopicsListed,
    in_words,
)
from kafkasafe.cluster.coordinators import Coordinated, Node, Question, highest_produce, lowest_produce
from kafkasafe.errors import ForkedProcessError, WrongClusterError
from kafkasafe.logs import EventLog, apart, limit_foreign, own_threads

log = EventLog("network")

NodeId: TypeAlias = int | str
TopicPartition: TypeAlias = tuple[str, int]

# Newest versions this module speaks. From Produce v13 and Fetch v13 on topics are named by id.
_MAX_PRODUCE: Final = 12
_MAX_FETCH: Final = 12
# Oldest versions that carry RecordBatch v2 (brokers from 0.11).
_MAX_LIST_OFFSETS: Final = 10
_MAX_EPOCHS: Final = 4
_MAX_QUESTIONS: Final = 500  # in one request
_MIN_FETCH: Final = 4
_FLEXIBLE_PRODUCE: Final = 9

# Of a batch: offset and length, then what `length` counts; the magic byte; the last offset's delta (v2).
_LOG_OVERHEAD: Final = 12
_MAGIC_AT: Final = 16
_LAST_DELTA_AT: Final = 23

_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_APPENDED: Final = struct.Struct(
    ">ihqqq"
)  # of a Produce response: partition, code, offset, time, start of the log
_NO_MORE: Final = b"\1\0\0"  # no errors of records, no message, no tagged fields
_ONE_BYTE: Final = 0x7F

_MAX_OFFSET: Final = 2**62  # no log gets there; what is added to an offset still fits into 64 bits
_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_UNSUPPORTED_VERSION: Final = 35

# UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER, REPLICA_NOT_AVAILABLE, NETWORK_EXCEPTION,
# KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
_STALE_METADATA: Final = frozenset({3, 5, 6, 9, 13, 56, 74, 75, 100, 103})

_RECEIVE_BYTES: Final = 256 * 1024
_MAX_IOVEC: Final = 64
_METADATA_PATIENCE_S: Final = 3.0  # after that another node is asked
_SILENCE_S: Final = 2.0  # a node with requests in flight that says nothing for so long is suspected
_TICK_S: Final = 0.5
_PAUSE_POLL_S: Final = 0.02
_LEADERLESS_POLL_MAX_S: Final = 1.0
_MISSING_TOPIC_POLL_MAX_S: Final = 5.0
_CALM_S: Final = 60.0  # a network thread that lived so long had no lasting reason to crash
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)
_LOG_EVERY_S: Final = 30.0
_NEVER_MS: Final = 1e12
_NEVER_AT: Final = 1e9  # monotonic seconds; `_NEVER_MS` from now is later
_LONGEST_SELECT_S: Final = 3600.0


# --------------------------------------------------------------------------------------------------------------
# kafka-python's sockets and event loop, with what they lack


class _Incoming(KafkaBytes):
    """A response that is being received; kafka-python's copies what is read from it twice."""

    _idx: int

    @staticmethod
    def become(parser: Any) -> None:
        """Makes one of the response that a connection is in the middle of, as all large ones are."""
        frame = getattr(parser, "_rbuffer", None)
        if type(frame) is KafkaBytes:
            frame.__class__ = _Incoming

    def read(self, nbytes: int | None = None) -> bytes:
        """The next bytes, as many as there are."""
        start, size = self._idx, len(self)
        self._idx = size if nbytes is None else min(start + nbytes, size)
        with memoryview(self) as view, view[start : self._idx] as part:
            return bytes(part)


_FORGETS: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: what the kernel has not sent when the socket ends, also by the death of the process, is dropped.

Else it would go on to send a request without an answer, for minutes on a slow way, after it was taken for dead.
"""
_LINGERS: Final = struct.pack("ii", 0, 0)
"""SO_LINGER as it is by default."""


class _SocketMixin:
    """Reads in large pieces, tries to write before it waits, and dies of any error instead of staying silent.

    It ends in order where nothing is owed, else with all that the kernel has not sent yet.
    """

    _sock: Any
    _net: Any
    _closed: bool
    _read: bool
    _write: bool
    _writing: bool
    _protocol: Any
    _write_buffer: collections.deque[Any]
    last_read: float
    last_write: float
    _written = 0
    _marks: collections.deque[tuple[int, _Call]] | None = None

    def mark(self, call: _Call) -> None:
        """Notes in `written_at` of a call when the last byte is written of all that was given to be written."""
        if self._marks is None:
            self._marks = collections.deque()
        self._marks.append((self._written + sum(map(len, self._write_buffer)), call))

    def _count_written(self, size: int) -> None:
        sensors = self._protocol._sensors if self._protocol else None
        if sensors:
            sensors.bytes_sent.record(size)
        self.last_write = time.monotonic()
        self._written += size
        marks = self._marks
        while marks and marks[0][0] <= self._written:
            marks.popleft()[1].written_at = self.last_write

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            self._receive()

    def _receive(self) -> None:
        if self._closed or not self._read:
            return
        came, at_its_end = self._fill()
        data, error = self._sock_recv() if at_its_end else (b"", None)
        if came or data:
            self.last_read = time.monotonic()
            sensors = self._protocol._sensors if self._protocol else None
            if sensors:
                sensors.bytes_received.record(came + len(data))
        if error is None and data:
            try:
                self._protocol.data_received(data)
                _Incoming.become(getattr(self._protocol, "parser", None))
            except Exception as decoding:  # a malformed answer raises more than KafkaProtocolError
                error = decoding
        if error is not None:
            self.abort(error=error)  # type: ignore[attr-defined]  # the other base class has it

    def _fill(self) -> tuple[int, bool]:
        """Receives into the large response that is under way, without a copy.

        Returns:
            The bytes that came, and whether it is to go on with `_sock_recv`: at the end of the response, where none is
            under way, and after an error, which it meets again.
        """
        frame = getattr(getattr(self._protocol, "parser", None), "_rbuffer", None)
        if not isinstance(frame, _Incoming):
            return 0, True
        came = 0
        # The last byte is left to the parser, which notices by it that the response is whole.
        with memoryview(frame) as view, view[frame._idx : max(frame._idx, len(frame) - 1)] as rest:
            while came < len(rest):
                try:
                    with rest[came:] as place:
                        size = self._sock.recv_into(place)
                except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return came, False
                except Exception:
                    break
                if not size:
                    break
                came += size
                frame._idx += size
        return came, True

    def _sock_recv(self) -> tuple[bytes, BaseException | None]:
        chunks = []
        error: BaseException | None = None
        while True:
            try:
                chunk = self._sock.recv(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except Exception as failed:
                error = kafka_errors.KafkaConnectionError(failed)
                break
            if not chunk:
                error = kafka_errors.KafkaConnectionError("The broker closed the connection")
                break
            chunks.append(chunk)
            # TLS must be read until it is empty: what OpenSSL holds does not make the socket readable.
            if len(chunk) < _RECEIVE_BYTES and not isinstance(self._sock, ssl.SSLSocket):
                break
        if chunks and error is not None:
            # What arrived before the end still counts; the error shows again at the next read.
            error = None
        return chunks[0] if len(chunks) == 1 else b"".join(chunks), error

    def _close(self, error: BaseException | None = None) -> None:
        if self._sock is not None and error is None and not getattr(self._protocol, "in_flight_requests", ()):
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGERS)
        super()._close(error)  # type: ignore[misc]  # the other base class has it

    async def _write_to_sock(self) -> None:
        try:
            while self._write_buffer:
                sent, error = self._sock_send()  # type: ignore[attr-defined]  # the other base class has it
                if error is not None:
                    self.abort(error=error)  # type: ignore[attr-defined]
                    return
                self._count_written(sent)
                if self._write_buffer:
                    await self._net.wait_write(self._sock)
        finally:
            self._writing = False
        if self._closed:
            self._close()


class _PlainSocket(_SocketMixin, KafkaTCPTransport):
    async def handshake(self, timeout_at: float | None = None) -> None:
        """A plain connection has none."""

    def _sock_send(self) -> tuple[int, BaseException | None]:
        total = 0
        if self._sock is None:
            return total, kafka_errors.KafkaConnectionError("Connection closed during send")
        pending = self._write_buffer
        while pending:
            try:
                # One call for many buffers: no copy, and no tiny packet for a frame's head.
                sent = self._sock.sendmsg(list(itertools.islice(pending, _MAX_IOVEC)))
            except (BlockingIOError, InterruptedError):
                break
            except Exception as error:
                return total, kafka_errors.KafkaConnectionError(error)
            total += sent
            while pending and sent >= len(pending[0]):
                sent -= len(pending.popleft())
            if sent:
                pending[0] = memoryview(pending[0])[sent:]
        return total, None


class _TlsSocket(_SocketMixin, KafkaSSLTransport):
    async def handshake(self, timeout_at: float | None = None) -> None:
        """As kafka-python's, but bounded: a hung broker must not keep a connection attempt for ever."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at)
            else:
                return


class _WithoutTasks:
    """On a `_Loop`: what comes is read at once, and what is to be written is at the end of the turn."""

    _sock: Any
    _net: _Loop
    _closed: bool
    _read: bool
    _write: bool
    _writing: bool
    _write_task: Any
    _write_buffer: collections.deque[Any]

    def resume_reading(self) -> None:
        """From now on: the socket stays in the selector until it is closed."""
        if not self._read and not self._closed:
            self._read = True
            self._net.read_with(self._sock, self._receive)  # type: ignore[attr-defined]  # the other base class has it

    def write(self, data: Buffer) -> None:
        """To be written at the end of this turn of the loop, together with what else comes in it."""
        if not len(data):
            raise ValueError("Nothing to write")
        self.writelines((data,))

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        """To be written at the end of this turn of the loop, together with what else comes in it."""
        if not self._write or self._closed:
            raise RuntimeError("The connection is closed for writes")
        self._write_buffer.extend(buffers)
        if not self._writing:
            self._writing = True
            self._net.unwritten.append(self.write_now)

    def write_now(self) -> None:
        """The end of the turn. What the socket does not take waits in a task."""
        if self._write_buffer and not self._closed:
            sent, error = self._sock_send()  # type: ignore[attr-defined]  # the other base class has it
            if error is not None:
                self._writing = False
                self.abort(error=error)  # type: ignore[attr-defined]
                return
            self._count_written(sent)  # type: ignore[attr-defined]
        if self._write_buffer:
            self._write_task = self._net.call_soon(self._write_to_sock)  # type: ignore[attr-defined,no-untyped-call]
            return
        self._writing = False
        if self._closed:
            self._close()  # type: ignore[attr-defined]


class _DirectPlainSocket(_WithoutTasks, _PlainSocket):
    pass


class _DirectTlsSocket(_WithoutTasks, _TlsSocket):
    pass


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Manager(KafkaConnectionManager):
    """Makes connections without leaking sockets and without blocking the I/O thread on a name server."""

    plain: type[_PlainSocket] = _PlainSocket
    tls: type[_TlsSocket] = _TlsSocket

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await self._open_socket(node.host, node.port, timeout_at)
        transport: Any = None
        kind: Any = self.tls if self.ssl_enabled else self.plain
        try:
            options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
            transport = kind(self._net, sock, host=node.host, **(options if self.ssl_enabled else {}))
            await transport.handshake(timeout_at)
        except BaseException as error:
            # GeneratorExit as well: that is how the loop ends what is under way when it closes.
            if transport is not None:
                transport.close()
            sock.close()
            if isinstance(error, Exception):
                raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport

    async def _open_socket(self, host: str, port: int, timeout_at: float | None) -> Any:
        factory, addresses = await self._resolve(host, port, timeout_at)
        failure = kafka_errors.KafkaConnectionError(f"No address found for {host}")
        opened: list[socket.socket] = []
        make = factory.socket

        def recorded(*args: Any) -> Any:
            opened.append(make(*args))
            return opened[-1]

        factory.socket = recorded
        for address in addresses:
            try:
                return await factory.connect(
                    self._net, address, self.config["socket_options"], timeout_at=timeout_at
                )
            except BaseException as error:
                for sock in opened:
                    sock.close()
                opened.clear()
                if isinstance(error, kafka_errors.KafkaTimeoutError):
                    raise kafka_errors.KafkaConnectionError(
                        f"Connecting to {host}:{port} timed out"
                    ) from error
                if not isinstance(error, Exception):
                    raise
                failure = kafka_errors.KafkaConnectionError(f"{host}:{port}: {error}")
        raise failure

    async def _resolve(self, host: str, port: int, timeout_at: float | None) -> tuple[Any, list[Any]]:
        def look_up() -> tuple[Any, list[Any]]:
            factory = KafkaNetSocket(self.config["proxy_url"])
            return factory, factory.dns_lookup(host, port)

        if self.config["proxy_url"] is None and _is_address(host):
            return look_up()
        future = Future()

        def settle(result: Any) -> None:
            if not future.is_done:
                if isinstance(result, BaseException):
                    future.failure(result)
                else:
                    future.success(result)

        @apart()
        def work() -> None:
            try:
                result: Any = look_up()
            except Exception as error:
                result = kafka_errors.KafkaConnectionError(f"Looking up {host}: {error}")
            # A closed loop has nobody left who waits for the answer.
            with _suppress_closed():
                self._net.call_soon_threadsafe(lambda: settle(result))

        threading.Thread(target=work, name=f"kafkasafe-lookup-{host}", daemon=True).start()
        timer = None
        if timeout_at is not None:
            late = kafka_errors.KafkaConnectionError(f"Looking up {host} timed out")
            timer = self._net.call_at(timeout_at, lambda: settle(late))
        try:
            result: tuple[Any, list[Any]] = await future
        finally:
            if timer is not None:
                self._net.cancel(timer)
        return result


class _DirectManager(_Manager):
    """On a `_Loop`."""

    plain = _DirectPlainSocket
    tls = _DirectTlsSocket


class _suppress_closed:  # noqa: N801  # reads as contextlib.suppress
    """Swallows what a closed or crashed event loop raises."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, Exception)


class _Loop(NetworkSelector):
    """kafka-python's event loop, which says when it ends and closes itself on its own thread.

    Its tasks cost some 50 µs each. So what is done for each request goes without one: reading, writing, jobs of other
    threads, and its time limit.
    """

    on_exit: Callable[[], None]
    on_wake: Callable[[], None]
    """Called when another thread woke this one."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)  # type: ignore[no-untyped-call]
        self.unwritten: list[Callable[[], None]] = []
        """To be called at the end of this turn: writes what came in it."""
        self._never: Any = Task(lambda: None)
        self._never.close()

    def call_at(self, when: float, task: Any) -> Any:
        """As kafka-python's; what is never due takes no place."""
        if when >= _NEVER_AT:
            return self._never
        return super().call_at(when, task)  # type: ignore[no-untyped-call]

    def read_with(self, sock: Any, receive: Callable[[], None]) -> None:
        """Calls `receive` whenever there is something to read, until `unregister_event`."""
        self._selector.register(sock, selectors.EVENT_READ, (receive, None))

    def _poll_once(self, timeout: float | None = None) -> None:
        if self._ready:
            timeout = 0.0
        elif self._scheduled:
            due_s = max(0.0, min(self._scheduled[0][0] - time.monotonic(), _LONGEST_SELECT_S))
            timeout = due_s if timeout is None else min(timeout, due_s)
        self._process_events(self._selector.select(timeout))
        self._schedule_tasks()  # type: ignore[no-untyped-call]
        for _ in range(len(self._ready)):
            self._run_task(self._ready.popleft())
        while self.unwritten:
            unwritten, self.unwritten = self.unwritten, []
            for write in unwritten:
                self._do(write)

    def _process_events(self, event_list: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        for event in event_list:
            key, events = event
            reader, _ = key.data
            if key.fileobj is self._wakeup_r:
                super()._process_events((event,))  # type: ignore[no-untyped-call]
                self._do(self.on_wake)
            elif reader is None or type(reader) is Task:
                super()._process_events((event,))  # type: ignore[no-untyped-call]
            else:
                if events & ~selectors.EVENT_READ:
                    others = ((key, events & ~selectors.EVENT_READ),)
                    super()._process_events(others)  # type: ignore[no-untyped-call]
                if events & selectors.EVENT_READ:
                    self._do(reader)

    def _run_task(self, task: Any) -> None:
        """One step of one of kafka-python's tasks."""
        if task.state in {TaskState.DONE, TaskState.CANCELLED}:
            return
        self._current, task.state = task, TaskState.RUNNING
        try:
            awaited = task()
        except StopIteration:
            self._task_done(task)  # type: ignore[no-untyped-call]
            return
        except BaseException:
            log.exception("A task of the network thread failed", event="network_step_failed")
            self._task_done(task)  # type: ignore[no-untyped-call]
            return
        finally:
            self._current = None
        if task.state is TaskState.CANCELLED:
            # By itself.
            self._pending_tasks.discard(task)
            task.close()
        elif isinstance(awaited, Future):
            task.state = TaskState.WAIT_FUTURE
            awaited.add_both(lambda _: self.call_soon(task))  # type: ignore[no-untyped-call]
        else:
            self._begin_wait(task, awaited)

    def _begin_wait(self, task: Any, awaited: Any) -> None:
        # What begins a wait takes the task for granted that runs.
        self._current = task
        try:
            getattr(self, awaited.method)(*awaited.args)
        except Exception as error:  # the task's own: it is told
            task.inject_exc(error)
            self._add_ready_task(task)  # type: ignore[no-untyped-call]
        finally:
            self._current = None
            if task.state is TaskState.RUNNING:
                task.state = TaskState.UNSCHEDULED

    @staticmethod
    def _do(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            # A bug, but one that must not take the other connections with it.
            log.exception("A step of the network thread failed", event="network_step_failed")

    @apart()
    def run_forever(self) -> None:
        own_threads.add(threading.get_ident())
        try:
            super().run_forever()  # type: ignore[no-untyped-call]
        except Exception:
            log.exception(
                "The network thread ended by an error; another one takes its place",
                event="network_thread_ended",
            )
        finally:
            self._stop = True  # close() must not try to join its own thread
            try:
                self.on_exit()
            finally:
                own_threads.discard(threading.get_ident())
                # After a crash close() would run what is ready once more, crash again and leave sockets open.
                self._ready.clear()
                self.close()  # type: ignore[no-untyped-call]


# --------------------------------------------------------------------------------------------------------------
# Frames


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Buffer]],
    transactional_id: str | None = None,
) -> list[Buffer]:
    """A Produce request as a list of buffers, of which the batches are not copies.

    Args:
        version: 3 to 12.
        correlation_id: Of the request header.
        client_id: Of the request header.
        acks: -1 or 1.
        timeout_ms: How long the broker may wait for replicas.
        batches: (topic, partition, batch), at most one for each partition.
        transactional_id: Of the transaction that the batches belong to.

    Returns:
        The frame, size field included. Joined it is what kafka-python's `ProduceRequest` encodes.
    """
    flexible = version >= _FLEXIBLE_PRODUCE
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for topic, partition, data in batches:
        topics.setdefault(topic, []).append((partition, data))
    name = client_id.encode()
    head = bytearray(4)  # the size, known at the end
    head += struct.pack(">hhih", KafkaProduceRequest.API_KEY, version, correlation_id, len(name)) + name
    if flexible:
        head += b"\x00"  # no tagged fields
        transaction = b"" if transactional_id is None else transactional_id.encode()
        head += (b"\x00" if transactional_id is None else _uvarint(len(transaction) + 1)) + transaction
        head += struct.pack(">hi", acks, timeout_ms) + _uvarint(len(topics) + 1)
    else:
        transaction = b"" if transactional_id is None else transactional_id.encode()
        head += struct.pack(">h", -1 if transactional_id is None else len(transaction)) + transaction
        head += struct.pack(">hii", acks, timeout_ms, len(topics))
    parts: list[Buffer] = []
    for topic, partitions in topics.items():
        encoded = topic.encode()
        if flexible:
            head += _uvarint(len(encoded) + 1) + encoded + _uvarint(len(partitions) + 1)
        else:
            head += struct.pack(">h", len(encoded)) + encoded + struct.pack(">i", len(partitions))
        for partition, data in partitions:
            head += struct.pack(">i", partition)
            head += _uvarint(len(data) + 1) if flexible else struct.pack(">i", len(data))
            parts += (head, data)
            head = bytearray(b"\x00" if flexible else b"")
        if flexible:
            head += b"\x00"
    if flexible:
        head += b"\x00"
    parts.append(head)
    first = parts[0]
    assert isinstance(first, bytearray)  # noqa: S101  # the head comes first
    struct.pack_into(">i", first, 0, sum(map(len, parts)) - 4)
    return [part for part in parts if len(part)]


@dataclass(frozen=True, slots=True)
class _ResponseHeader:
    correlation_id: int


@dataclass(frozen=True, slots=True)
class _Appended:
    """A Produce response in which every batch was appended, and nothing else is said.

    Attributes:
        replies: By topic and partition.
        throttle_time_ms: As in kafka-python's.
    """

    replies: Mapping[TopicPartition, ProduceReply]
    throttle_time_ms: int


class _ProduceHeader:
    """Of a Produce request. For kafka-python it is the header, and the class of the response as well.

    What says more than that batches were appended is decoded by kafka-python, and so is what is not as it should be.
    """

    __slots__ = ("api_key", "api_version", "correlation_id")

    def __init__(self, api_version: int, correlation_id: int) -> None:
        self.api_key = KafkaProduceRequest.API_KEY
        self.api_version = api_version
        self.correlation_id = correlation_id

    def get_response_class(self) -> _ProduceHeader:
        return self

    def parse_header(self, buffer: Any) -> _ResponseHeader:
        data = bytes(buffer)
        if self.api_version < _FLEXIBLE_PRODUCE or data[4:5] != b"\0":
            header: _ResponseHeader = self._theirs.parse_header(buffer)
            return header
        buffer.seek(5)
        return _ResponseHeader(_INT32.unpack_from(data)[0])

    def decode(self, buffer: Any) -> Any:
        at = buffer.tell()
        if self.api_version >= _FLEXIBLE_PRODUCE:
            appended = decode_appended(bytes(buffer), at)
            if appended is not None:
                return appended
        return self._theirs.decode(buffer)

    @property
    def _theirs(self) -> Any:
        return ProduceResponse[self.api_version]


def decode_appended(data: bytes, at: int) -> _Appended | None:
    """A Produce response of version 9 to 12.

    Args:
        data: With its header.
        at: Where the header ends.

    Returns:
        None where it says more than that batches were appended, or is not whole.
    """
    replies: dict[TopicPartition, ProduceReply] = {}
    try:
        topics = data[at]
        at += 1
        for _ in range(topics - 1):
            size = data[at]
            name = data[at + 1 : at + size].decode()
            partitions = data[at + size]
            at += size + 1
            if max(topics, size, partitions) > _ONE_BYTE:
                return None
            for _ in range(partitions - 1):
                index, code, base_offset, append_time, start = _APPENDED.unpack_from(data, at)
                at += _APPENDED.size
                if code or data[at : at + 3] != _NO_MORE:
                    return None
                at += 3
                replies[name, index] = ProduceReply(
                    error_code=0,
                    base_offset=base_offset,
                    log_append_time=append_time,
                    log_start_offset=_known(start, _MAX_OFFSET),
                    record_errors=(),
                    error_message=None,
                    leader_hint=None,
                )
            if data[at]:
                return None
            at += 1
        (throttled_ms,) = _INT32.unpack_from(data, at)
    except (IndexError, ValueError, struct.error):
        return None
    return _Appended(replies, throttled_ms) if data[at + 4 :] == b"\0" else None


class _Frame:
    """What `KafkaConnection.send_request` takes for a request.

    It gives the connection its first buffer; the link writes the `rest` behind it, uncopied. `encoded` tells
    whether the connection has got that far, that is, whether bytes may have been sent.
    """

    __slots__ = ("API_VERSION", "encoded", "encoder", "header", "rest", "what")

    def __init__(
        self, what: str, version: int, encoder: Callable[[int, str], tuple[Any, list[Buffer]]]
    ) -> None:
        self.what = what
        self.API_VERSION = version
        self.encoder = encoder
        self.encoded = False
        self.header: Any = None
        self.rest: list[Buffer] = []

    def __str__(self) -> str:
        return f"{self.what} v{self.API_VERSION}"

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self.header, self.rest = self.encoder(correlation_id, client_id)

    def encode(self, *, framed: bool, header: bool) -> Buffer:  # noqa: ARG002  # kafka-python's signature
        self.encoded = True
        return self.rest.pop(0)


class _Call:
    """One request to one broker and its single outcome."""

    __slots__ = ("deadline", "done", "targets", "timeout_s", "written_at")

    identifies = False
    """Its answer says which cluster the broker belongs to."""

    def __init__(self, timeout_s: float, targets: tuple[TopicPartition, ...] = ()) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.targets = targets
        self.done = False
        self.written_at = 0.0
        """When its last byte was given to the socket; 0 while some of it was not."""

    def frame(self, versions: Any) -> _Frame | None:
        """The request for a broker of these versions, None if nothing is left to send. Raises what prevents it."""
        raise NotImplementedError

    def succeed(self, response: Any, frame: _Frame) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException, *, sent: bool) -> None:
        raise NotImplementedError


def _safely(reply: Callable[..., None], *args: Any) -> None:
    try:
        reply(*args)
    except Exception:
        # One callback's error must not cost the others theirs.
        log.exception("A reply callback raised", event="callback_failed")


def _not_sent(reply: Reply[Any]) -> Callable[[BaseException], None]:
    return lambda error: _safely(reply, Failure(error, sent=False))


class _KafkaCall(_Call):
    """A request that kafka-python encodes."""

    __slots__ = ("maximum", "minimum", "parse", "reply", "request")

    def __init__(
        self,
        request: Any,
        parse: Callable[[Any], Any],
        reply: Reply[Any],
        *,
        timeout_s: float,
        targets: tuple[TopicPartition, ...] = (),
        minimum: int = 0,
        maximum: int = 32767,
    ) -> None:
        super().__init__(timeout_s, targets)
        self.request = request
        self.parse = parse
        self.reply = reply
        self.minimum = minimum
        self.maximum = maximum

    def frame(self, versions: Any) -> _Frame:
        request = self.request
        version = versions.api_version(request, min_version=self.minimum, max_version=self.maximum)

        def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
            request.API_VERSION = version
            request.with_header(correlation_id=correlation_id, client_id=client_id)
            return request.header, [request.encode(framed=True, header=True)]

        return _Frame(request.name, version, encoder)

    def succeed(self, response: Any, frame: _Frame) -> None:  # noqa: ARG002
        if self.done:
            return
        try:
            result = self.parse(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        self.done = True
        _safely(self.reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self.done:
            self.done = True
            _safely(self.reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked about one partition; `wanted` are its fields in the request."""

    target: TopicPartition
    wanted: Mapping[str, int]
    parse: Callable[[Any], Any]
    reply: Reply[Any]

    def answer(self, row: Any) -> None:
        """Replies with the answer of the broker, None: it left the partition out."""
        topic, partition = self.target
        try:
            if row is None:
                raise kafka_errors.KafkaProtocolError(  # noqa: TRY301
                    f"The response left {topic}-{partition} out"
                )
            result = self.parse(row)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        _safely(self.reply, result)

    def fail(self, error: BaseException, *, sent: bool) -> None:
        _safely(self.reply, Failure(error, sent))


@dataclass(frozen=True, slots=True)
class _OffsetsWanted:
    """ListOffsets.

    Attributes:
        replica_id: Whom the broker takes the client for.
        isolation_level: Of the request.
        timestamp: The special one that is asked for, 0: times.
    """

    replica_id: int
    isolation_level: int
    timestamp: int

    request: ClassVar[Any] = ListOffsetsRequest
    maximum: ClassVar[int] = _MAX_LIST_OFFSETS

    @property
    def minimum(self) -> int:
        return LIST_OFFSETS_VERSIONS.get(self.timestamp, 2 if self.isolation_level else 1)

    def make(self, questions: Mapping[str, Sequence[_Question]], timeout_s: float) -> Any:
        topic, partition = self.request.ListOffsetsTopic, self.request.ListOffsetsTopic.ListOffsetsPartition
        return self.request(
            replica_id=self.replica_id,
            isolation_level=self.isolation_level,
            topics=[
                topic(name=name, partitions=[partition(**each.wanted) for each in asked])
                for name, asked in questions.items()
            ],
            timeout_ms=int(timeout_s * 1000),
        )

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {
            (topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions
        }


@dataclass(frozen=True, slots=True)
class _EpochsWanted:
    """OffsetForLeaderEpoch."""

    request: ClassVar[Any] = OffsetForLeaderEpochRequest
    minimum: ClassVar[int] = 0
    maximum: ClassVar[int] = _MAX_EPOCHS

    def make(self, questions: Mapping[str, Sequence[_Question]], timeout_s: float) -> Any:  # noqa: ARG002
        topic = self.request.OffsetForLeaderTopic
        partition = topic.OffsetForLeaderPartition
        topics = [
            topic(topic=name, partitions=[partition(**each.wanted) for each in asked])
            for name, asked in questions.items()
        ]
        return self.request(replica_id=-1, topics=topics)

    def answers(self, response: Any) -> dict[TopicPartition, Any]:
        return {(topic.topic, each.partition): each for topic in response.topics for each in topic.partitions}


_Wanted: TypeAlias = _OffsetsWanted | _EpochsWanted


class _QuestionsCall(_Call):
    """Questions of one kind, at most one about each partition. What is wrong with one answer concerns only that one."""

    __slots__ = ("kind", "questions")

    def __init__(
        self, kind: _Wanted, questions: Mapping[TopicPartition, _Question], timeout_s: float
    ) -> None:
        super().__init__(timeout_s, tuple(questions))
        self.kind = kind
        self.questions = dict(questions)

    def frame(self, versions: Any) -> _Frame | None:
        kind = self.kind
        version = versions.api_version(kind.request, min_version=kind.minimum, max_version=kind.maximum)
        topics: dict[str, list[_Question]] = {}
        for (topic, _), question in self.questions.items():
            topics.setdefault(topic, []).append(question)
        request = kind.make(topics, self.timeout_s)

        def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
            request.API_VERSION = version
            request.with_header(correlation_id=correlation_id, client_id=client_id)
            return request.header, [request.encode(framed=True, header=True)]

        return _Frame(f"{request.name}({len(self.questions)} partitions)", version, encoder)

    def succeed(self, response: Any, frame: _Frame) -> None:  # noqa: ARG002
        if self.done:
            return
        try:
            answers = self.kind.answers(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        self.done = True
        for target, question in self.questions.items():
            question.answer(answers.get(target))

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self.done:
            self.done = True
            for question in self.questions.values():
                question.fail(error, sent=sent)

    def drop(self, is_gone: Callable[[TopicPartition], bool], error: BaseException) -> bool:
        """Questions about these partitions fail, before they were sent. Returns whether others are left."""
        gone = [target for target in self.questions if is_gone(target)]
        failed = [self.questions.pop(target) for target in gone]
        self.targets = tuple(self.questions)
        self.done = not self.questions
        for question in failed:
            question.fail(error, sent=False)
        return bool(self.questions)


class _ReachCall(_Call):
    """No request at all: it only waits for the connection."""

    __slots__ = ("node_id", "reply")

    def __init__(self, node_id: int, reply: Reply[Reached], timeout_s: float, target: TopicPartition) -> None:
        super().__init__(timeout_s, (target,))
        self.node_id = node_id
        self.reply = reply

    def frame(self, versions: Any) -> None:  # noqa: ARG002
        self.done = True
        _safely(self.reply, Reached(self.node_id))

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if not self.done:
            self.done = True
            _safely(self.reply, Failure(error, sent))


class _MetadataCall(_KafkaCall):
    """A Metadata request."""

    __slots__ = ()

    identifies = True


class _ProduceCall(_Call):
    """A Produce request: at most one batch for each partition, all of one transaction or of none."""

    __slots__ = (
        "acks", "hub", "node_id", "reply", "requests", "timeout_ms", "transaction", "transactional_id", "views",
    )  # fmt: skip

    def __init__(
        self,
        hub: Transport,
        node_id: NodeId,
        requests: list[tuple[ProduceRequest[Any], memoryview]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        transactional_id: str | None = None,
    ) -> None:
        targets = tuple((request.topic, request.partition) for request, _ in requests)
        # The broker must be able to say that its replicas were too slow before the connection is given up.
        super().__init__(max(hub._request_timeout_s, timeout_ms / 1000 + 1), targets)
        self.timeout_s += max((request.patience_s for request, _ in requests), default=0.0)
        self.hub = hub
        self.node_id = node_id
        self.requests = [request for request, _ in requests]
        # Views keep a bytearray from being resized, so they are let go of as soon as they can be.
        self.views = [view for _, view in requests]
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.reply = reply
        self.transaction = requests[0][0].transaction
        self.transactional_id = (
            transactional_id if self.transaction is None else self.transaction.transactional_id
        )
        for target in targets:
            hub._enter(target, node_id)

    def frame(self, versions: Any) -> _Frame | None:
        version = self.hub._produce_version(self.node_id, versions, self.transaction)
        fences = self.hub._fences
        fresh: list[ProduceRequest[Any]] = []
        batches: list[tuple[str, int, Buffer]] = []
        for request, view in zip(self.requests, self.views, strict=True):
            fence = fences.get((request.topic, request.partition), 0)
            if request.fence is None or request.fence == fence:
                fresh.append(request)
                batches.append((request.topic, request.partition, view))
            else:
                error = StaleFenceError(f"fence {request.fence}, now {fence}")
                self._answer(request, Failure(error, sent=False, fence=fence))
        self.requests = fresh
        self.views = []
        if not fresh:
            self.done = True
            return None

        def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
            header = _ProduceHeader(version, correlation_id)
            parts = encode_produce(
                version,
                correlation_id,
                client_id,
                self.acks,
                self.timeout_ms,
                batches,
                self.transactional_id,
            )
            batches.clear()
            return header, parts

        return _Frame(f"ProduceRequest({len(fresh)} batches)", version, encoder)

    def succeed(self, response: Any, frame: _Frame) -> None:  # noqa: ARG002
        if self.done:
            return
        try:
            replies = self._parse(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        self.done = True
        hub = self.hub
        stale = moved = False
        for request in self.requests:
            target = request.topic, request.partition
            answer = replies.get(target)
            if answer is None:
                missing = kafka_errors.KafkaProtocolError("The Produce response left this partition out")
                self._answer(request, Failure(missing, sent=True, fence=hub._raise_fence(target)))
                continue
            if not answer.error_code and not -1 <= answer.base_offset < _MAX_OFFSET:
                self._answer(request, Failure(_absurd(answer.base_offset), True, hub._raise_fence(target)))
                continue
            fence = hub._raise_fence(target) if answer.error_code else hub._fences.get(target, 0)
            stale = stale or answer.error_code in _STALE_METADATA
            if answer.leader_hint is not None:
                moved = hub._take_hint(target, answer.leader_hint) or moved
            self._answer(request, replace(answer, fence=fence) if fence else answer)
        if stale:
            hub._want_metadata()
        if moved:
            hub._drop_moved()

    def _parse(self, response: Any) -> Mapping[TopicPartition, ProduceReply]:
        if isinstance(response, _Appended):
            return response.replies
        replies = {}
        for endpoint in response.node_endpoints or ():
            self.hub._learn_broker(endpoint)
        for topic in response.responses:
            for answer in topic.partition_responses:
                hint = answer.current_leader
                known = hint is not None and hint.leader_id >= 0
                replies[topic.name, answer.index] = ProduceReply(
                    error_code=answer.error_code,
                    base_offset=answer.base_offset,
                    log_append_time=answer.log_append_time_ms,
                    log_start_offset=_known(answer.log_start_offset, _MAX_OFFSET),
                    record_errors=tuple(
                        (record.batch_index, record.batch_index_error_message or "")
                        for record in answer.record_errors or ()
                    ),
                    error_message=answer.error_message,
                    leader_hint=(hint.leader_id, hint.leader_epoch) if known else None,
                )
        return replies

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if self.done:
            return
        self.done = True
        self.views = []
        for request in self.requests:
            fence = self.hub._raise_fence((request.topic, request.partition))
            self._answer(request, Failure(error, sent=sent, fence=fence))

    def _answer(self, request: ProduceRequest[Any], result: ProduceReply | Failure) -> None:
        self.hub._leave((request.topic, request.partition))
        _safely(self.reply, request.token, result)


# --------------------------------------------------------------------------------------------------------------
# One broker


class _Link:
    """The way to one broker: its connection, what waits for it, its back-off.

    Invariant: `waiting` is empty, or a timer or the connection's end will call `pump` or `_drop`.
    """

    __slots__ = (
        "conn", "failures", "gathered", "hub", "identifying", "in_flight", "node_id", "not_before", "ready_once",
        "suspect_until", "timer", "timer_at", "waiting", "watch", "watch_at",
    )  # fmt: skip

    def __init__(self, hub: Transport, node_id: NodeId) -> None:
        self.hub = hub
        self.node_id = node_id
        self.conn: KafkaConnection | None = None
        self.ready_once = False  # whether `conn` has been usable: connected, and to the right cluster
        self.identifying = False  # whether the request that tells which cluster it is was written
        self.waiting: collections.deque[_Call] = collections.deque()
        self.gathered: dict[_Wanted, list[_Question]] = {}  # in this turn of the loop
        self.in_flight: dict[_Call, float] = {}  # in the order they were written, with the time
        self.failures = 0  # connection attempts that failed since the last success
        self.not_before = 0.0
        self.suspect_until = 0.0
        self.timer: Any = None
        self.timer_at = 0.0
        self.watch: Any = None
        self.watch_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether a request would be written at once."""
        conn = self.conn
        return (
            conn is not None
            and conn.connected
            and self.ready_once
            and not conn.paused
            and not conn._reauth.is_reauthenticating
            and not self.waiting
        )

    def alive(self, now: float) -> bool:
        """Whether there is a usable connection to a broker that is not suspected to hang."""
        return self.usable and self.suspect_until <= now

    @property
    def usable(self) -> bool:
        """Whether there is a connection, and to the right cluster."""
        conn = self.conn
        return conn is not None and conn.connected and self.ready_once

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.in_flight)

    def submit(self, call: _Call) -> None:
        """Writes the request, or holds it back until the connection can take it."""
        self._collect()
        self.waiting.append(call)
        self.pump()

    def ask(self, kind: _Wanted, question: _Question) -> None:
        """Sends the question, together with others of its kind, at the end of this turn of the loop."""
        self.gathered.setdefault(kind, []).append(question)
        self.hub._asking.append(self)

    def ask_gathered(self) -> None:
        """The end of the turn."""
        if self.gathered:
            self._collect()
            self.pump()

    def _collect(self) -> None:
        """Makes requests of the questions that were gathered, to go out after what waits already."""
        if not self.gathered:
            return
        gathered, self.gathered = self.gathered, {}
        for kind, questions in gathered.items():
            # Brokers refuse a partition that is asked about twice in one request.
            calls: list[dict[TopicPartition, _Question]] = [{}]
            for question in questions:
                if question.target in calls[-1] or len(calls[-1]) == _MAX_QUESTIONS:
                    calls.append({})
                calls[-1][question.target] = question
            timeout_s = self.hub._request_timeout_s
            self.waiting.extend(_QuestionsCall(kind, call, timeout_s) for call in calls)

    def pump(self) -> None:
        now = time.monotonic()
        while self.waiting:
            call = self.waiting[0]
            if call.deadline <= now:
                self.waiting.popleft()
                error = kafka_errors.KafkaTimeoutError(f"Node {self.node_id} was not ready in time")
                call.fail(error, sent=False)
                continue
            conn = self.conn
            if conn is None or conn.closed:
                if self.not_before > now:
                    self._arm(min(self.not_before, call.deadline))
                    return
                self._connect()
                continue
            if not conn.connected:
                self._arm(call.deadline)
                return
            if conn.paused or conn._reauth.is_reauthenticating:
                # Throttled by the broker, or authenticating again: soon over, and nothing overtakes meanwhile.
                throttled = conn._throttle_time or 0.0
                self._arm(min(max(throttled, now + _PAUSE_POLL_S), call.deadline))
                return
            if self.hub._guarded and not self.ready_once and (self.identifying or not call.identifies):
                self._identify(conn, now)
                self._arm(call.deadline)
                return
            self.waiting.popleft()
            self._write(conn, call, now)

    def _identify(self, conn: KafkaConnection, now: float) -> None:
        """Ask the connection which cluster it leads to, once."""
        if self.identifying:
            return

        def answered(result: Any) -> None:
            if not isinstance(result, Failure) or conn is not self.conn or not conn.connected:
                return
            if isinstance(result.error, kafka_errors.UnsupportedVersionError):
                self._admit(conn)  # too old to say, and to be sent a batch
            else:
                self.hang_up(result.error)

        # Without topics: it needs no right, and what is known of topics stays as it is.
        request = MetadataRequest(
            topics=[],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        timeout_s = self.hub._request_timeout_s
        self._write(
            conn,
            _MetadataCall(request, lambda response: response, answered, timeout_s=timeout_s, minimum=1),
            now,
        )

    def _admit(self, conn: KafkaConnection) -> None:
        """The connection leads where it should: what waits may go out on it."""
        if conn is self.conn and not self.ready_once:
            self.ready_once = True
            self.failures = 0
            self.suspect_until = 0.0
            if self.hub._guarded:
                _safely(self.hub._on_home)
            self.pump()

    def _write(self, conn: Any, call: _Call, now: float) -> None:
        frame: _Frame | None = None
        try:
            frame = call.frame(conn.broker_version_data)
            if frame is None:
                return
            # kafka-python counts from now on, not from when it was written.
            future = conn.send_request(frame, request_timeout_ms=_NEVER_MS)
            if frame.encoded and conn.transport is not None:
                if frame.rest:
                    conn.transport.writelines(frame.rest)
                    frame.rest.clear()
                conn.transport.mark(call)
        except kafka_errors.IncompatibleBrokerVersion as error:
            call.fail(_unsupported(error), sent=False)
            return
        except Exception as error:  # nothing may leave a caller without an answer
            call.fail(error, sent=frame is not None and frame.encoded)
            return
        self.in_flight[call] = now
        self._watch(now + call.timeout_s)
        self.identifying = self.identifying or call.identifies
        self.hub._watch_silence()

        def done(response: Any) -> None:
            self.in_flight.pop(call, None)
            if call.identifies:
                stranger = self.hub._stranger(response.cluster_id)
                if stranger is not None:
                    call.fail(stranger, sent=True)
                    if conn is self.conn:
                        self.hang_up(stranger)
                    return
                self._admit(conn)
            call.succeed(response, frame)

        def failed(error: BaseException) -> None:
            self.in_flight.pop(call, None)
            if isinstance(error, kafka_errors.Cancelled):
                error = kafka_errors.KafkaConnectionError("The connection was closed")
            call.fail(error, sent=frame.encoded)

        future._add_cb_eb(done, failed)

    def _watch(self, due: float) -> None:
        """One timer for all that is in flight: it stays where it is when what it was for is answered."""
        if self.watch is not None:
            if self.watch_at <= due:
                return
            self.hub._net.cancel(self.watch)
        self.watch_at = due
        self.watch = self.hub._net.call_at(due, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self.watch = None
        conn = self.conn
        if not self.in_flight or conn is None or conn.closed or conn.transport is None:
            return
        now, next_due = time.monotonic(), float("inf")
        for call, began in self.in_flight.items():
            due = (call.written_at or max(began, conn.transport.last_write)) + call.timeout_s
            if due <= now:
                what = "answer" if call.written_at else "take the request"
                conn.close(
                    kafka_errors.RequestTimedOutError(
                        f"Node {self.node_id} did not {what} within {call.timeout_s:.1f} s"
                    )
                )
                return
            next_due = min(next_due, due)
        self._watch(next_due)

    def _connect(self) -> None:
        manager = self.hub._manager
        # The link's own back-off has passed: kafka-python's, which is wrong in both directions, must not count.
        manager.reset_backoff(self.node_id)
        manager._auth_failures.pop(self.node_id, None)
        try:
            conn = manager.get_connection(self.node_id, refresh_metadata_on_err=False)
        except Exception as error:  # no such broker any more, or options that cannot work
            self._back_off()
            self.hub._want_metadata()
            self._drop(error)
            return
        self.conn = conn
        self.ready_once = self.identifying = False
        conn.init_future.add_callback(lambda _: self._on_ready(conn))
        conn.close_future.add_both(lambda error: self._on_closed(conn, error))

    def _on_ready(self, conn: KafkaConnection) -> None:
        if not self.hub._guarded:
            self._admit(conn)
        elif conn is self.conn:
            self.pump()

    def _on_closed(self, conn: KafkaConnection, error: Any) -> None:
        if conn is not self.conn:
            return
        self.conn = None
        if not self.ready_once:
            self._back_off()
        elif error is not None:
            # A connection that broke may be made again at once, but not in a tight circle.
            self.not_before = time.monotonic() + self.hub._reconnect_backoff.pause_s(1)
        if error is not None or not self.ready_once:
            self.hub._want_metadata()
        cause = error if isinstance(error, BaseException) else None
        self._drop(
            cause or kafka_errors.KafkaConnectionError(f"The connection to node {self.node_id} was closed")
        )

    def _back_off(self) -> None:
        self.failures += 1
        self.not_before = time.monotonic() + self.hub._reconnect_backoff.pause_s(self.failures)

    def _drop(self, error: BaseException) -> None:
        """All that waits fails, in order: none of it may overtake what was lost with the connection."""
        self._collect()
        waiting, self.waiting = self.waiting, collections.deque()
        for call in waiting:
            call.fail(error, sent=False)

    def drop_moved(self, leader_of: Callable[[TopicPartition], int | None]) -> None:
        """Waiting requests whose partition has another leader by now fail, and later ones of those partitions."""
        self._collect()
        if not self.waiting:
            return
        moved: set[TopicPartition] = set()

        def is_gone(target: TopicPartition) -> bool:
            return target in moved or leader_of(target) != self.node_id

        kept: collections.deque[_Call] = collections.deque()
        waiting, self.waiting = self.waiting, collections.deque()
        for call in waiting:
            error = kafka_errors.NotLeaderForPartitionError(f"Node {self.node_id} is not the leader any more")
            if isinstance(call, _QuestionsCall):
                if call.drop(is_gone, error):
                    kept.append(call)
            elif any(is_gone(target) for target in call.targets):
                moved.update(call.targets)
                call.fail(error, sent=False)
            else:
                kept.append(call)
        kept.extend(self.waiting)
        self.waiting = kept

    def silent_for(self, now: float) -> float:
        """Seconds since the node should have said something, 0 if it owes nothing."""
        if not self.in_flight or self.conn is None or self.conn.transport is None:
            return 0.0
        call, since = next(iter(self.in_flight.items()))
        # As long as it takes what is written, it has nothing to say.
        since = max(since, call.written_at or self.conn.transport.last_write)
        heard: float = self.conn.transport.last_read
        return max(0.0, now - max(since, heard))

    def hang_up(self, error: BaseException | None = None) -> None:
        """Closes the connection at once; unsent bytes are dropped."""
        conn = self.conn
        if conn is None:
            return
        if conn.transport is not None and error is None:
            # Buffered bytes would keep a closed transport open until a broker that may hang has taken them.
            conn.transport._write_buffer.clear()
        conn.close(error)

    def _arm(self, at: float) -> None:
        if self.timer is not None:
            if self.timer_at <= at:
                return
            self.hub._net.cancel(self.timer)
        self.timer_at = at
        self.timer = self.hub._net.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        self.pump()


def _unsupported(error: BaseException) -> BaseException:
    unsupported: BaseException = kafka_errors.UnsupportedVersionError(str(error))
    return unsupported


def _absurd(offset: int) -> BaseException:
    error: BaseException = kafka_errors.KafkaProtocolError(f"The broker answered offset {offset}")
    return error


def _known(number: int | None, limit: int = 2**31) -> int:
    """An offset or epoch; -1 for unknown, and for what cannot be."""
    return number if number is not None and 0 <= number < limit else -1


def _error(code: int, message: str) -> BaseException:
    error: BaseException = kafka_errors.for_code(code)(message)
    return error


# --------------------------------------------------------------------------------------------------------------


_MANAGER_OPTIONS: Final = frozenset(KafkaConnectionManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(NetworkSelector.DEFAULT_CONFIG)


# (route again: whether this is the last try, fail instead)
_Parked: TypeAlias = tuple[Callable[[bool], None], Callable[[BaseException], None]]


@dataclass(slots=True)
class _Attempt:
    """A metadata request under way. `waiters` and `parked` are those who asked before it began."""

    link: _Link
    waiters: list[Reply[Any]]
    parked: list[_Parked]
    timer: Any = None
    over: bool = False


class Transport(Coordinated):
    """Requests to a Kafka cluster. Thread-safe; every request gets exactly one reply.

    Replies are called on the network thread and must only put the result somewhere: whatever they do there, no
    broker is spoken to meanwhile. After `close` (and in a forked child) requests fail at once, on the caller's
    thread. Failures of the network are no errors of a method: they come as `Failure`.

    Not usable in a child after `os.fork`: the thread stays with the parent.

    Args:
        options: `KafkaProducer`'s options; what does not concern connections or metadata is passed over.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that a cluster that comes back is noticed soon.
            `max_in_flight_requests_per_connection` is ignored: limits are the caller's.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        settings: dict[str, Any] = {
            key: value for key, value in options.items() if key in _MANAGER_OPTIONS | _LOOP_OPTIONS
        }
        if settings.get("client_id") is None:
            settings["client_id"] = "kafkasafe"
        if settings.get("api_version") == "auto":
            settings["api_version"] = None
        settings.setdefault("reconnect_backoff_max_ms", 1000)
        settings.setdefault("receive_message_max_bytes", 100_000_000)
        # A slow step is no error on a busy machine: kafka-python would log a warning for each.
        settings.setdefault("slow_task_threshold_secs", 0)
        # Reply callbacks run before kafka-python lifts its pause, and a paused connection refuses requests.
        settings["max_in_flight_requests_per_connection"] = 2**31 - 1
        default_options: Any = KafkaConnectionManager.DEFAULT_CONFIG["socket_options"]
        sockets = list(settings.get("socket_options") or default_options)
        for key, option in (
            ("send_buffer_bytes", socket.SO_SNDBUF),
            ("receive_buffer_bytes", socket.SO_RCVBUF),
        ):
            if options.get(key) is not None:
                sockets.append((socket.SOL_SOCKET, option, options[key]))
        sockets.append((socket.SOL_SOCKET, socket.SO_LINGER, _FORGETS))
        settings["socket_options"] = sockets
        self._settings = settings

        self._client_id: str = settings["client_id"]
        self._log = log.bind(client_id=self._client_id)
        limit_foreign()
        self._net: Any
        self._manager: Any
        self._make_loop()
        self._born_at = 0.0
        self._crashes = 0
        config: dict[str, Any] = self._manager.config
        self._request_timeout_s: float = config["request_timeout_ms"] / 1000
        self._retry_backoff_s: float = options.get("retry_backoff_ms", 100) / 1000
        self._reconnect_backoff = Backoff.around(
            config["reconnect_backoff_ms"] / 1000, config["reconnect_backoff_max_ms"] / 1000
        )
        self._leaderless_backoff = Backoff(
            self._retry_backoff_s, _LEADERLESS_POLL_MAX_S, least_s=0.0, jitter=0.0
        )
        self._missing_backoff = Backoff(
            self._retry_backoff_s, _MISSING_TOPIC_POLL_MAX_S, least_s=0.0, jitter=0.0
        )
        self._metadata_max_age_s: float = config["metadata_max_age_ms"] / 1000
        self._max_request_bytes: int = options.get("max_request_size", 1048576)
        self._auto_create: bool = options.get("allow_auto_create_topics", True)
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._stopped = threading.Event()

        # Jobs from other threads: (run on the network thread, fail instead).
        self._inbox: collections.deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = (
            collections.deque()
        )
        self._woken = False
        self._ended = False  # nobody will look into the inbox any more

        # Everything below belongs to the network thread; readers elsewhere see whole values.
        self._closing = False
        self._links: dict[NodeId, _Link] = {}
        self._asking: list[_Link] = []  # those with questions gathered in this turn of the loop
        self._fences: dict[TopicPartition, int] = {}
        # Where the unanswered batches of a partition went, and how many. Invariant: all to one node.
        self._pending: dict[TopicPartition, tuple[NodeId, int]] = {}
        self._produce_versions: dict[tuple[NodeId, int, int], tuple[Any, int]] = {}
        """By node and what will do: what it said it speaks, and which version that makes."""
        self._topics: dict[str, TopicInfo] = {}
        self._watched: set[str] = set()
        self._asked: set[str] = set()  # watched topics that some metadata request has named
        self._cluster_id: str | None = None
        self._guarded = False
        self._home: str | None = None
        """The cluster that connections of a guarded transport must lead to, None until one has said which it is."""
        self._on_stranger: Callable[[str], None] = lambda _: None
        self._on_home: Callable[[], None] = lambda: None
        self._may_create: Callable[[str], bool] = lambda _: True
        self._listeners: list[Callable[[MetadataRefreshed], None]] = []
        self._parked: list[_Parked] = []
        self._waiters: list[Reply[Any]] = []
        self._wanted = False
        self._attempt: _Attempt | None = None
        self._attempted_at = -1e9
        self._refresh_timer: Any = None
        self._refresh_at = 0.0
        self._bad_refreshes = 0
        self._failed_refreshes = 0
        self._connected = False
        self._last_error: BaseException | None = None
        self._known = False
        self._logged_at = -1e9
        self._ticking = False

    def _make_loop(self) -> None:
        make_loop: Any = _Loop
        make_manager: Any = _DirectManager
        self._net = make_loop(**{k: v for k, v in self._settings.items() if k in _LOOP_OPTIONS})
        self._net.on_exit = self._on_loop_exit
        self._net.on_wake = self._look
        self._manager = make_manager(self._net, **self._settings)

    def __repr__(self) -> str:
        state = "closed" if self._ended else "connected" if self._connected else "not connected"
        return f"<Transport {self._client_id} {state} topics={len(self._topics)}>"

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the network thread and goes looking for a broker, for as long as it takes. Idempotent."""
        with self._start_lock:
            if self._thread is not None or self._ended:
                return
            self._post(lambda: self._want_metadata(urgent=True), lambda _: None)
            self._born_at = time.monotonic()
            self._net.start()
            self._thread = self._net._io_thread

    def close(self, timeout_s: float) -> bool:
        """Ends the thread and closes all sockets; everything outstanding gets a `Failure`. Idempotent.

        Args:
            timeout_s: How long to wait for the thread to end, in seconds.

        Returns:
            Whether it has ended. If not (it hangs in a callback), it will end by itself as soon as it can.
        """
        if os.getpid() != self._pid:
            return True  # the loop's epoll is shared with the parent: it must not be touched
        with self._start_lock:
            if self._thread is None:
                if not self._ended:
                    self._shut_down()
                    self._net._stop = True
                    self._on_loop_exit()
                    self._net.close()
                return True
        if threading.current_thread() is self._thread:
            self._shut_down()
            return False
        self._stopped.set()
        self._post(self._shut_down, lambda _: None)
        deadline = time.monotonic() + timeout_s
        while True:
            # It may be that one that takes the place of a crashed one.
            thread = self._thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self._thread or thread.is_alive():
                return not thread.is_alive()

    @property
    def connected(self) -> bool:
        """Whether the cluster answered the latest metadata request."""
        return self._connected

    @property
    def last_error(self) -> BaseException | None:
        """Why no broker can be used, as of the latest try; None while the cluster answers, and before any try."""
        return self._last_error

    @property
    def closed(self) -> bool:
        """Whether it was closed: every request fails from then on."""
        return self._ended

    @property
    def broker_version(self) -> tuple[int, ...] | None:
        """Kafka version, from `api_version` or from the first broker reached; None before that."""
        version: tuple[int, ...] | None = self._manager.broker_version
        return version

    @property
    def cluster_id(self) -> str | None:
        """Id of the cluster that answered last; None before the first answer and from old brokers."""
        return self._cluster_id

    # -- Metadata ------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicInfo | None:
        """What the latest metadata says of a watched topic; None if there was no answer about it yet."""
        return self._topics.get(name)

    def topics(self) -> list[str]:
        """Watched topics of which the latest metadata knows partitions."""
        return [name for name, info in self._topics.items() if info.partitions]

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""
        return [
            Broker(each.node_id, each.host, each.port, each.rack) for each in self._manager.cluster.brokers()
        ]

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        """Watches these topics from now on and asks for metadata.

        Topics never seen are asked for at once, others not within `retry_backoff_ms` of the last time.

        Args:
            topics: Names to watch, besides those that are watched already.
            reply: Gets `MetadataRefreshed` from a request that was sent after this call, or the first `Failure`.
        """
        try:
            for topic in topics:
                ensure_valid_topic_name(topic)
        except (TypeError, ValueError) as error:
            _safely(reply, Failure(kafka_errors.InvalidTopicError(str(error)), sent=False))
            return

        def run() -> None:
            self._waiters.append(reply)
            self._watched.update(topics)
            self._want_metadata(urgent=not self._asked.issuperset(topics))

        self._post(run, _not_sent(reply))

    def unwatch(self, topic: str) -> None:
        """Forgets a topic. A request for it watches it again."""

        def run() -> None:
            self._watched.discard(topic)
            self._asked.discard(topic)
            self._topics = {name: info for name, info in self._topics.items() if name != topic}

        self._post(run, lambda _: None)

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        """Which topics the brokers may create where they do not know them, if they do that at all. Call before `start`.

        Args:
            may_create: Called with a topic's name on the network thread, when the topic is missing.
        """
        self._may_create = may_create

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        """Calls `callback` on the network thread after each answer about metadata."""
        self._listeners.append(callback)

    # -- Requests ------------------------------------------------------------------------------------------------

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """Speak to one cluster only: the first that answers, until `move` names another. Call before `start`.

        Each new connection is asked for its cluster's id before anything else is written to it (one round trip). One
        that leads elsewhere is closed, with WrongClusterError for what waited for it, and tried again with back-off.
        Brokers that do not say (before 0.10.1) are believed as long as none has said.

        Args:
            on_stranger: Called with the id of another cluster that answered, on the network thread.
            on_home: Called there when a new connection leads to the right cluster, before anything goes out on it.
        """
        self._guarded = True
        self._on_stranger = on_stranger
        self._on_home = on_home

    def move(self, cluster_id: str) -> None:
        """From now on this is the cluster to speak to (guarded transports only)."""

        def run() -> None:
            self._home = cluster_id
            for link in self._links.values():
                link.not_before = 0.0
            self._want_metadata(urgent=True)

        self._post(run, lambda _: None)

    @property
    def at_home(self) -> bool:
        """Whether a broker of the right cluster is connected. From any thread."""
        return any(link.usable for link in list(self._links.values()))

    def _stranger(self, cluster_id: str | None) -> BaseException | None:
        """Why a connection that leads to this cluster must not be used; None where it may."""
        if not self._guarded:
            return None
        cluster_id = cluster_id or None
        if self._home is None:
            self._home = cluster_id
        if cluster_id == self._home:
            return None
        if cluster_id is None:
            unknown: BaseException = kafka_errors.KafkaConnectionError(
                f"The broker does not say that it belongs to cluster {self._home}"
            )
            return unknown
        _safely(self._on_stranger, cluster_id)
        return WrongClusterError(
            f"This broker belongs to cluster {cluster_id}, not to {self._home}: nothing is sent to it"
        )

    def init_producer_id(self, reply: Reply[ProducerIdGranted]) -> None:
        """Asks any broker for a producer id.

        Args:
            reply: Gets `ProducerIdGranted` or `Failure`. All error codes are failures (`Failure.code`), and so is
                a producer id of -1, which a broker answers right after its start.
        """

        def parse(response: Any) -> ProducerIdGranted:
            if response.error_code:
                raise _error(response.error_code, "InitProducerId")
            if response.producer_id < 0 or response.producer_epoch < 0:
                raise _error(14, "InitProducerId answered no id")
            return ProducerIdGranted(response.producer_id, response.producer_epoch)

        def make() -> _KafkaCall:
            request = InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout_ms=2**31 - 1,
                producer_id=-1,
                producer_epoch=-1,
                max_version=5,
            )
            return _KafkaCall(request, parse, reply, timeout_s=self._request_timeout_s)

        self._post(
            lambda: self._route_any(make, final=False, reply=reply),
            _not_sent(reply),
        )

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        transactional_id: str | None = None,
    ) -> None:
        """Appends batches to their partitions.

        Batches of one partition reach its leader in the order of the calls, as long as all succeed. After a
        failure later ones may already be under way; see `ProduceRequest.fence` for those that are not.

        Args:
            requests: The batches. Several for one partition go into requests of their own, pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.
            transactional_id: Of the transaction that the batches belong to, if they do.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                _safely(reply, request.token, Failure(error, sent=False))

        self._post(
            lambda: self._route_produce(
                batches, acks, timeout_ms, reply, final=False, transactional_id=transactional_id
            ),
            fail,
        )

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """Makes a connection to the leader, if there is none, without a request; see `Cluster`."""

        def submit(leader: int) -> None:
            self._link(leader).submit(_ReachCall(leader, reply, self._request_timeout_s, (topic, partition)))

        self._to_leader(topic, partition, submit, _not_sent(reply))

    def ask(
        self,
        request: Any,
        parse: Callable[[Any], Any],
        reply: Reply[Any],
        *,
        node: tuple[int, str, int] | None = None,
        minimum: int = 0,
        maximum: int = 32767,
    ) -> None:
        """Sends any request of kafka-python's to a certain broker, or to whichever one is there.

        Args:
            request: The request; not to be used again.
            parse: Makes the result of the response; what it raises is the `Failure`.
            reply: Gets that result or `Failure`.
            node: (node id, host, port) of the broker, as another broker said; None: any.
            minimum: Oldest version of the request that will do.
            maximum: Newest version to speak.
        """

        def make() -> _KafkaCall:
            return _KafkaCall(
                request, parse, reply, timeout_s=self._request_timeout_s, minimum=minimum, maximum=maximum
            )

        def run() -> None:
            if node is None:
                self._route_any(make, final=False, reply=reply)
            else:
                self._learn_broker(_Endpoint(*node))
                self._link(node[0]).submit(make())

        self._post(run, _not_sent(reply))

    def _ask_coordinator(self, node: Node | None, question: Question, reply: Reply[Any]) -> None:
        request = requests.made(question.name, question.fields)
        self.ask(
            request, question.parse, reply, node=node, minimum=question.minimum, maximum=question.maximum
        )

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        """Asks the leader which producers it remembers (KIP-664).

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `ProducersDescribed`, or `Failure`; with `UnsupportedVersionError` from brokers < 2.8.
        """

        def parse(response: Any) -> ProducersDescribed:
            answer = _only(response.topics, "partitions", "partition_index", topic, partition)
            producers = {
                producer.producer_id: ProducerState(
                    producer.producer_epoch, producer.last_sequence, producer.last_timestamp
                )
                for producer in answer.active_producers
            }
            return ProducersDescribed(answer.error_code, producers, answer.error_message)

        def make() -> tuple[Any, int, int]:
            return (
                DescribeProducersRequest(
                    topics=[DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[partition])]
                ),
                0,
                0,
            )

        self._ask_leader(topic, partition, make, parse, reply)

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        """Reads batch headers from a log, isolation read_uncommitted, without waiting for new ones.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Where to begin; the batch that holds it comes first.
            max_bytes: About how many bytes of batches to transfer. A larger first batch is transferred whole.
            reply: Gets `HeadersFetched` or `Failure`. A batch that is damaged on its way is a `Failure`.
        """

        def parse(response: Any) -> HeadersFetched:
            if response.error_code:
                return HeadersFetched(response.error_code, -1, -1, -1, [], offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            headers = [header for _, header in iter_headers(records)]
            return HeadersFetched(
                error_code=answer.error_code,
                high_watermark=answer.high_watermark,
                last_stable_offset=answer.last_stable_offset,
                log_start_offset=answer.log_start_offset,
                headers=headers,
                next_offset=_next_offset(records, offset),
            )

        def make() -> tuple[Any, int, int]:
            request = FetchRequest
            wanted = request.FetchTopic.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
            )
            return (
                request(
                    replica_id=-1,
                    max_wait_ms=0,
                    min_bytes=0,
                    max_bytes=max_bytes,
                    isolation_level=0,
                    session_id=0,
                    session_epoch=-1,
                    topics=[request.FetchTopic(topic=topic, partitions=[wanted])],
                    forgotten_topics_data=[],
                ),
                _MIN_FETCH,
                _MAX_FETCH,
            )

        self._ask_leader(topic, partition, make, parse, reply)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        reply: Reply[RecordsFetched],
        *,
        isolation_level: int = 0,
        max_wait_ms: int = 0,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        """Reads whole batches from a log.

        Args:
            topic: Topic name.
            partition: Partition number.
            offset: Where to begin; the batch that holds it comes first.
            max_bytes: About how many bytes of batches to transfer. A larger first batch is transferred whole.
            reply: Gets `RecordsFetched` or `Failure`.
            isolation_level: 1 (read_committed): up to the last stable offset, with a list of aborted transactions.
            max_wait_ms: How long the broker may wait for a first byte.
            current_leader_epoch: Under which epoch the leader is thought to lead; one that leads under another
                answers 74 or 75 (Kafka 2.1 and later). -1: whoever leads may answer.
            last_fetched_epoch: Leader epoch of the record before `offset`, -1 for none: a leader whose log differs
                there says so (Kafka 2.7 and later).
        """

        def parse(response: Any) -> RecordsFetched:
            if response.error_code:
                return RecordsFetched(response.error_code, -1, -1, -1, b"", (), offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            diverging = answer.diverging_epoch
            told = diverging is not None and diverging.end_offset >= 0
            return RecordsFetched(
                error_code=answer.error_code,
                high_watermark=_known(answer.high_watermark, _MAX_OFFSET),
                last_stable_offset=_known(answer.last_stable_offset, _MAX_OFFSET),
                log_start_offset=_known(answer.log_start_offset, _MAX_OFFSET),
                records=records,
                aborted=tuple(
                    (entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()
                ),
                next_offset=_next_offset(records, offset),
                diverging=(diverging.epoch, diverging.end_offset) if told else None,
            )

        def make() -> tuple[Any, int, int]:
            request = FetchRequest
            wanted = request.FetchTopic.FetchPartition(
                partition=partition,
                current_leader_epoch=current_leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_fetched_epoch,
                partition_max_bytes=max_bytes,
            )
            return (
                request(
                    replica_id=-1,
                    max_wait_ms=max_wait_ms,
                    min_bytes=1,
                    max_bytes=max_bytes,
                    isolation_level=isolation_level,
                    session_id=0,
                    session_epoch=-1,
                    topics=[request.FetchTopic(topic=topic, partitions=[wanted])],
                    forgotten_topics_data=[],
                ),
                _MIN_FETCH,
                _MAX_FETCH,
            )

        self._ask_leader(topic, partition, make, parse, reply)

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics. They are not watched.

        Args:
            reply: Gets `TopicsListed` or `Failure`.
        """

        def parse(response: Any) -> TopicsListed:
            found: dict[bool, dict[str, tuple[int, ...]]] = {False: {}, True: {}}
            for topic in response.topics:
                if not topic.error_code and topic.name is not None:
                    numbers = sorted(partition.partition_index for partition in topic.partitions)
                    found[bool(topic.is_internal)][topic.name] = tuple(numbers)
            return TopicsListed(found[False], found[True], getattr(response, "error_code", 0) or 0)

        def make() -> _KafkaCall:
            request = MetadataRequest(
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            return _KafkaCall(request, parse, reply, timeout_s=self._request_timeout_s, minimum=1)

        self._post(
            lambda: self._route_any(make, final=False, reply=reply),
            _not_sent(reply),
        )

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        """Asks the leader for an offset.

        Args:
            topic: Topic name.
            partition: Partition number.
            timestamp: -1 for the end (the high watermark), -2 for the start of the log, -3 for the record with the
                largest timestamp (Kafka 3.0 and later, else UnsupportedVersionError), -4 for the start of what the
                leader has on its own disk (3.4 and later), -5 for the last offset in remote storage (3.9 and later),
                else ms since the epoch.
            reply: Gets `OffsetListed` or `Failure`.
            isolation_level: 1 (read_committed): the end is the last stable offset.
        """
        self._list_offset(topic, partition, timestamp, reply, replica_id=-1, isolation_level=isolation_level)

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        """Asks the leader where its log ends, which may be beyond the high watermark.

        Asked as a debugging replica (-2), which a broker answers whether it leads or not. From Kafka 2.4 on the
        leader epoch in the request makes one that leads no more answer 74 instead.

        Args:
            topic: Topic name.
            partition: Partition number.
            reply: Gets `OffsetListed` or `Failure`.
        """
        self._list_offset(topic, partition, -1, reply, replica_id=-2)

    def _list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        replica_id: int,
        isolation_level: int = 0,
    ) -> None:
        def parse(answer: Any) -> OffsetListed:
            if not answer.error_code and not -1 <= answer.offset < _MAX_OFFSET:
                raise _absurd(answer.offset)
            time_ms = -1 if answer.timestamp is None else answer.timestamp
            return OffsetListed(answer.error_code, answer.offset, _known(answer.leader_epoch), time_ms)

        def wanted() -> dict[str, int]:
            info = self._topics.get(topic)
            known = info.partitions.get(partition) if info is not None and replica_id == -2 else None
            return {
                "partition_index": partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "timestamp": timestamp,
            }

        kind = _OffsetsWanted(replica_id, isolation_level, min(timestamp, 0))
        self._question(topic, partition, kind, wanted, parse, reply)

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        """Asks the leader where an epoch ends in its log (KIP-279).

        Args:
            topic: Topic name.
            partition: Partition number.
            leader_epoch: The epoch.
            reply: Gets `EpochEnd` or `Failure`.
            current_leader_epoch: Under which epoch the leader is thought to lead; one that leads under another
                answers 74 or 75 (Kafka 2.1 and later). -1: whoever leads may answer.
        """

        def parse(answer: Any) -> EpochEnd:
            end_offset = _known(answer.end_offset, _MAX_OFFSET)
            return EpochEnd(answer.error_code, _known(answer.leader_epoch), end_offset)

        def wanted() -> dict[str, int]:
            return {
                "partition": partition,
                "current_leader_epoch": current_leader_epoch,
                "leader_epoch": leader_epoch,
            }

        self._question(topic, partition, _EpochsWanted(), wanted, parse, reply)

    # -- The way in ----------------------------------------------------------------------------------------------

    def _post(self, run: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        if os.getpid() != self._pid:
            fail(ForkedProcessError("The connections belong to the parent process"))
            return
        self._inbox.append((run, fail))
        # One wake-up serves all jobs that come before the thread has looked. `_look` clears the flag before it
        # empties the inbox, so a job that finds it set is seen.
        if not self._woken and not at_once.held(self._wake, id(self)):
            self._wake()
        if self._ended:
            self._empty_inbox(_closed_error())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._net.wakeup()

    def _look(self) -> None:
        self._woken = False
        while self._inbox:
            run, fail = self._inbox.popleft()
            try:
                if self._closing:
                    fail(_closed_error())
                else:
                    run()
            except Exception:
                # A bug, but one that must not take the other jobs with it.
                log.exception("A request could not be passed on", event="request_failed")
        self._ask_gathered()

    def _ask_gathered(self) -> None:
        asking, self._asking = self._asking, []
        for link in asking:
            link.ask_gathered()

    def _empty_inbox(self, error: BaseException) -> None:
        while True:
            try:
                _, fail = self._inbox.popleft()
            except IndexError:
                return
            fail(error)

    def _shut_down(self) -> None:
        """On the network thread: everything outstanding fails, every connection closes, the loop stops."""
        if self._closing:
            return
        self._closing = True
        self._connected = False
        error = _closed_error()
        self._fail_aside(error)
        for link in list(self._links.values()):
            link._drop(error)
            link.hang_up()
        self._manager.closed = True
        self._net._stop = True

    def _fail_aside(self, error: BaseException) -> None:
        attempt, self._attempt = self._attempt, None
        parked, self._parked = self._parked, []
        waiters, self._waiters = self._waiters, []
        if attempt is not None:
            attempt.over = True
            parked = attempt.parked + parked
            waiters = attempt.waiters + waiters
        for _, fail in parked:
            fail(error)
        for reply in waiters:
            _safely(reply, Failure(error, sent=False))

    def _on_loop_exit(self) -> None:
        """The loop has ended, by `close` or by a crash: nobody may be left without an answer."""
        crashed, self._closing = not self._closing, True
        self._connected = False
        error = _closed_error() if not crashed else _crashed_error()
        self._fail_aside(error)
        for link in list(self._links.values()):
            link._drop(error)
            in_flight, link.in_flight = list(link.in_flight), {}
            for call in in_flight:
                call.fail(error, sent=True)
            with _suppress_closed():
                link.hang_up()
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            if not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                self._begin_anew()
                return
        self._ended = True
        self._empty_inbox(error)

    def _begin_anew(self) -> None:
        """On the thread that crashed: another loop, with connections of its own. What was asked for has failed.

        What is known of the cluster stays, and so does what callers posted meanwhile.
        """
        self._links = {}
        self._asking = []
        self._pending = {}
        self._asked = set()
        self._refresh_timer = None
        self._attempted_at = -1e9
        self._wanted = self._ticking = False
        with self._start_lock:
            self._make_loop()
            # A caller that found the flag set, or woke the loop that crashed, did so before this: its job is seen.
            self._woken = False
            self._closing = False
            self._born_at = time.monotonic()
            self._net.wakeup()
            self._post(lambda: self._want_metadata(urgent=True), lambda _: None)
            self._net.start()
            self._thread = self._net._io_thread

    # -- Routing -------------------------------------------------------------------------------------------------

    def _link(self, node_id: NodeId) -> _Link:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = _Link(self, node_id)
        return link

    def _leader(self, topic: str, partition: int) -> int | BaseException | None:
        """The leader's node id; why there is none; or None while nothing is known of the topic."""
        info = self._topics.get(topic)
        if info is None:
            return None
        if info.error_code:
            return _error(info.error_code, topic)
        known = info.partitions.get(partition)
        if known is None:
            return _error(_UNKNOWN_TOPIC, f"{topic} has no partition {partition}")
        if known.leader < 0:
            return _error(_LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return known.leader

    def _leader_id(self, target: TopicPartition) -> int | None:
        leader = self._leader(*target)
        return leader if isinstance(leader, int) else None

    def _watch(self, topic: str) -> BaseException | None:
        """Sees to it that metadata of the topic will come. Returns why it cannot."""
        if topic not in self._watched:
            try:
                ensure_valid_topic_name(topic)
            except (TypeError, ValueError) as error:
                invalid: BaseException = kafka_errors.InvalidTopicError(str(error))
                return invalid
            self._watched.add(topic)
        self._want_metadata(urgent=topic not in self._asked)
        return None

    def _ask_leader(
        self,
        topic: str,
        partition: int,
        make: Callable[[], tuple[Any, int, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        fail = _not_sent(reply)

        def submit(leader: int) -> None:
            try:
                request, minimum, maximum = make()
            except Exception as error:  # values no request can carry
                fail(error)
                return
            self._link(leader).submit(
                _KafkaCall(
                    request,
                    self._noticing(parse),
                    reply,
                    timeout_s=self._request_timeout_s,
                    targets=((topic, partition),),
                    minimum=minimum,
                    maximum=maximum,
                )
            )

        self._to_leader(topic, partition, submit, fail)

    def _question(
        self,
        topic: str,
        partition: int,
        kind: _Wanted,
        wanted: Callable[[], dict[str, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        """As `_ask_leader`, but in one request with others of its kind."""
        fail = _not_sent(reply)

        def submit(leader: int) -> None:
            fields = wanted()
            try:
                for number in fields.values():
                    _INT64.pack(number)
            except struct.error as error:  # values no request can carry, which must not cost others theirs
                fail(error)
                return
            self._link(leader).ask(kind, _Question((topic, partition), fields, self._noticing(parse), reply))

        self._to_leader(topic, partition, submit, fail)

    def _noticing(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Asks for metadata where an answer says that they are out of date."""

        def parsed(answer: Any) -> Any:
            result = parse(answer)
            if result.error_code in _STALE_METADATA:
                self._want_metadata()
            return result

        return parsed

    def _to_leader(
        self,
        topic: str,
        partition: int,
        submit: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Calls `submit` with the leader's node id on the network thread, or `fail`."""

        def route(final: bool) -> None:
            leader = self._leader(topic, partition)
            if isinstance(leader, int):
                submit(leader)
                return
            invalid = self._watch(topic)
            if invalid is not None:
                fail(invalid)
            elif leader is None and not final:
                self._parked.append((route, fail))
            else:
                fail(leader or _error(_LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._post(lambda: route(False), fail)

    def _route_any(self, make: Callable[[], _KafkaCall], *, final: bool, reply: Reply[Any]) -> None:
        nodes = [broker.node_id for broker in self._manager.cluster.brokers()]
        links = [self._link(node) for node in nodes]
        now = time.monotonic()
        if links and (self._known or final):
            best = min(links, key=lambda link: self._preference(link, now))
            best.submit(make())
        elif final:
            _safely(reply, Failure(kafka_errors.NodeNotReadyError("No broker is known yet"), sent=False))
        else:
            self._parked.append(
                (
                    lambda final: self._route_any(make, final=final, reply=reply),
                    _not_sent(reply),
                )
            )
            self._want_metadata()

    def _route_produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
        transactional_id: str | None,
    ) -> None:
        groups: dict[int, _Group] = {}
        parked: list[ProduceRequest[Any]] = []
        for request in requests:
            leader = self._leader(request.topic, request.partition)
            if isinstance(leader, int):
                elsewhere = self._pending.get((request.topic, request.partition), (leader, 0))[0]
                if elsewhere != leader:
                    # Batches on their way to the old leader: this one would overtake them.
                    moving = (
                        f"{request.topic}-{request.partition} has requests outstanding at node {elsewhere}"
                    )
                    error: BaseException = kafka_errors.NotLeaderForPartitionError(moving)
                    self._fail_produce(request, error, False, reply)
                    continue
                try:
                    data = memoryview(request.data).cast("B")
                    if not data:
                        raise ValueError("An empty batch")  # noqa: TRY301
                except Exception as unusable:
                    self._fail_produce(request, unusable, False, reply)
                    continue
                group = groups.get(leader)
                if group is None:
                    group = groups[leader] = _Group(self._max_request_bytes)
                group.add(request, data)
                continue
            invalid = self._watch(request.topic)
            if invalid is None and leader is None and not final:
                parked.append(request)
                continue
            unknown = _error(_LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._fail_produce(request, invalid or leader or unknown, False, reply)
        for leader, group in groups.items():
            link = self._link(leader)
            for entries in group.frames:
                link.submit(_ProduceCall(self, leader, entries, acks, timeout_ms, reply, transactional_id))
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._fail_produce(request, error, False, reply)

            self._parked.append(
                (
                    lambda final: self._route_produce(
                        parked, acks, timeout_ms, reply, final=final, transactional_id=transactional_id
                    ),
                    fail,
                )
            )

    def _fail_produce(
        self, request: ProduceRequest[Any], error: BaseException, sent: bool, reply: ProduceCallback[Any]
    ) -> None:
        fence = self._raise_fence((request.topic, request.partition))
        _safely(reply, request.token, Failure(error, sent=sent, fence=fence))

    def _raise_fence(self, target: TopicPartition) -> int:
        fence = self._fences.get(target, 0) + 1
        self._fences[target] = fence
        return fence

    def _produce_version(self, node_id: NodeId, versions: Any, transaction: Any) -> int:
        lowest, highest = lowest_produce(transaction), highest_produce(transaction, _MAX_PRODUCE)
        known = self._produce_versions.get((node_id, lowest, highest))
        if known is None or known[0] is not versions:
            version = versions.api_version(KafkaProduceRequest, min_version=lowest, max_version=highest)
            known = self._produce_versions[node_id, lowest, highest] = versions, version
        return known[1]

    def _enter(self, target: TopicPartition, node_id: NodeId) -> None:
        self._pending[target] = (node_id, self._pending.get(target, (node_id, 0))[1] + 1)

    def _leave(self, target: TopicPartition) -> None:
        node_id, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = (node_id, count - 1)

    # -- Silence -------------------------------------------------------------------------------------------------

    def _watch_silence(self) -> None:
        if not self._ticking and not self._closing:
            self._ticking = True
            self._net.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        """A leader that hangs keeps its connection: only other brokers can tell that it leads no more."""
        self._ticking = False
        if self._closing:
            return
        now = time.monotonic()
        busy = False
        for link in self._links.values():
            busy = busy or bool(link.in_flight)
            if link.silent_for(now) > _SILENCE_S:
                link.suspect_until = now + 2 * _SILENCE_S
                self._want_metadata()
        if busy:
            self._watch_silence()

    def _drop_moved(self) -> None:
        for link in list(self._links.values()):
            link.drop_moved(self._leader_id)

    def _drop_hung(self) -> None:
        """Cuts silent connections whose requests have a new leader to go to."""
        now = time.monotonic()
        for link in list(self._links.values()):
            if link.silent_for(now) <= _SILENCE_S:
                continue
            leaders = {self._leader_id(target) for call in link.in_flight for target in call.targets}
            if leaders - {link.node_id, None}:
                link.hang_up(
                    kafka_errors.KafkaConnectionError(f"Node {link.node_id} is silent and leads no more")
                )

    # -- Metadata ------------------------------------------------------------------------------------------------

    def _want_metadata(self, *, urgent: bool = False) -> None:
        """Asks for a metadata request: as soon as possible, or `retry_backoff_ms` after the last one."""
        if self._closing:
            return
        self._wanted = True
        if self._attempt is None:
            now = time.monotonic()
            self._refresh_no_later(now if urgent else max(now, self._attempted_at + self._retry_backoff_s))

    def _refresh_no_later(self, at: float) -> None:
        if self._refresh_timer is not None:
            if self._refresh_at <= at:
                return
            self._net.cancel(self._refresh_timer)
        self._refresh_at = at
        self._refresh_timer = self._net.call_at(at, self._refresh)

    def _preference(self, link: _Link, now: float) -> tuple[object, ...]:
        """Orders links: lowest is best to send to."""
        return (
            link.suspect_until > now,
            not link.ready,
            link.failures,
            isinstance(link.node_id, str),  # bootstrap servers when known brokers are no better
            len(link.in_flight),
            random.random(),
        )

    def _refresh(self) -> None:
        self._refresh_timer = None
        if self._attempt is not None or self._closing:
            return
        now = time.monotonic()
        cluster = self._manager.cluster
        nodes = [broker.node_id for broker in (*cluster.brokers(), *cluster.bootstrap_brokers())]
        links = [self._link(node) for node in nodes]
        able = [link for link in links if link.not_before <= now or link.ready]
        self._wanted = True
        if not able:
            # All are backing off: wait for the first to be over.
            self._refresh_no_later(heapq.nsmallest(1, (link.not_before for link in links))[0])
            return
        self._wanted = False
        self._attempted_at = now
        link = min(able, key=lambda link: self._preference(link, now))
        attempt = _Attempt(link, self._waiters, self._parked)
        self._waiters, self._parked = [], []
        self._attempt = attempt
        attempt.timer = self._net.call_later(_METADATA_PATIENCE_S, lambda: self._on_slow_metadata(attempt))
        self._asked = set(self._watched)
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(self._watched)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        link.submit(
            _MetadataCall(
                request,
                self._parse_metadata,
                functools.partial(self._on_metadata, attempt),
                timeout_s=self._request_timeout_s,
                minimum=1,
            )
        )

    def _on_slow_metadata(self, attempt: _Attempt) -> None:
        attempt.timer = None
        if not attempt.over:
            attempt.link.suspect_until = time.monotonic() + 2 * _SILENCE_S
            error = kafka_errors.KafkaTimeoutError(f"Node {attempt.link.node_id} did not answer in time")
            self._on_metadata(attempt, Failure(error, sent=True))

    def _on_metadata(self, attempt: _Attempt, result: MetadataRefreshed | Failure) -> None:
        if attempt.over:
            return
        attempt.over = True
        if attempt.timer is not None:
            self._net.cancel(attempt.timer)
        self._attempt = None
        now = time.monotonic()
        parked, self._parked = self._parked, []
        if isinstance(result, Failure):
            self._failed_refreshes += 1
            if not any(link.alive(now) for link in self._links.values()):
                self._connected = False
                self._last_error = result.error
                self._log_unreachable(result.error, now)
            for reply in attempt.waiters:
                _safely(reply, result)
            # Those that came later as well: they must not get ahead of the ones that fail now.
            for _, fail in (*attempt.parked, *parked):
                fail(result.error)
            self._want_metadata()
            return
        if self._failed_refreshes and not self._connected:
            self._log.info("The cluster answers again", event="cluster_reachable")
            self._logged_at = -1e9
        self._failed_refreshes = 0
        self._connected = True
        self._last_error = None
        self._known = True
        for reply in attempt.waiters:
            _safely(reply, result)
        for route, _ in attempt.parked:
            route(True)
        for route, _ in parked:
            route(False)  # the request may have been made before their topic was known of
        self._ask_gathered()
        self._drop_moved()
        self._drop_hung()
        for callback in list(self._listeners):
            _safely(callback, result)
        self._create_missing(attempt.link, result)
        for node, link in list(self._links.items()):
            if isinstance(node, str) and not link.busy:
                link.hang_up()  # it was for the first contact only
        self._plan_refresh(now)

    def _create_missing(self, link: _Link, result: MetadataRefreshed) -> None:
        """Brokers create topics that a metadata request names: so one names only those that are wanted."""
        if not self._auto_create:
            return
        missing = [
            name
            for name, info in result.topics.items()
            if info.error_code == _UNKNOWN_TOPIC and name in self._watched and self._may_create(name)
        ]
        if missing:
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(missing)],
                allow_auto_topic_creation=True,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            link.submit(
                _KafkaCall(
                    request,
                    lambda _: None,
                    lambda _: self._want_metadata(),
                    timeout_s=self._request_timeout_s,
                    minimum=1,
                )
            )

    def _plan_refresh(self, now: float) -> None:
        infos = self._topics.values()
        missing = any(info.error_code for info in infos)
        leaderless = any(p.leader < 0 for info in infos for p in info.partitions.values())
        self._refresh_no_later(now + self._metadata_max_age_s)
        if missing or leaderless:
            self._bad_refreshes += 1
            backoff = self._leaderless_backoff if leaderless else self._missing_backoff
            self._refresh_no_later(now + backoff.pause_s(self._bad_refreshes))
        else:
            self._bad_refreshes = 0
        if self._wanted or self._waiters:
            self._want_metadata(urgent=not self._asked.issuperset(self._watched))

    def _log_unreachable(self, error: BaseException, now: float) -> None:
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            self._log.warning(
                "Brokers cannot be used yet (%s); trying again until they can",
                in_words(error),
                error=type(error).__name__,
                event="cluster_unreachable",
            )

    def _parse_metadata(self, response: Any) -> MetadataRefreshed:
        code = getattr(response, "error_code", 0)
        if code:
            raise _error(code, "Metadata")
        if not response.brokers:
            raise kafka_errors.MetadataEmptyBrokerList("The broker does not know its cluster yet")
        cluster_id = response.cluster_id or None
        if self._cluster_id is not None and cluster_id is not None and cluster_id != self._cluster_id:
            self._log.warning(
                "Another cluster answers: %s, until now %s",
                cluster_id,
                self._cluster_id,
                event="cluster_changed",
            )
        cluster = self._manager.cluster
        cluster._brokers = {broker.node_id: broker for broker in response.brokers}
        # KAFKA-9212: brokers before 2.4 may announce stale leader epochs.
        reliable = response.API_VERSION >= 9
        topics = dict(self._topics)
        told = {}
        for answer in response.topics:
            name = answer.name
            if name is None or name not in self._watched:
                continue
            old = topics.get(name)
            topic_id = NO_TOPIC_ID if answer.topic_id is None else answer.topic_id.bytes
            if answer.error_code:
                info = TopicInfo(
                    name,
                    old.topic_id if old else topic_id,
                    old.partitions if old else {},
                    answer.error_code,
                )
            else:
                same = old is not None and old.topic_id == topic_id != NO_TOPIC_ID
                partitions = {}
                for partition in answer.partitions:
                    epoch = _known(partition.leader_epoch) if reliable else -1
                    told_info = PartitionInfo(partition.leader_id, epoch)
                    known = (
                        old.partitions.get(partition.partition_index) if old is not None and same else None
                    )
                    # A broker that lags behind must not undo what a newer leader has told.
                    stale = known is not None and known.leader_epoch > told_info.leader_epoch
                    partitions[partition.partition_index] = known if stale and known else told_info
                info = TopicInfo(name, topic_id, partitions, 0)
            topics[name] = told[name] = info
        self._cluster_id = cluster_id
        self._topics = topics
        return MetadataRefreshed(cluster_id, tuple(cluster._brokers), told)

    def _take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        topic, partition = target
        leader, epoch = hint
        info = self._topics.get(topic)
        known = info.partitions.get(partition) if info is not None else None
        if info is None or known is None or epoch <= known.leader_epoch:
            return False
        if self._manager.cluster.broker_metadata(leader) is None:
            return False
        partitions = {**info.partitions, partition: PartitionInfo(leader, epoch)}
        self._topics = {**self._topics, topic: replace(info, partitions=partitions)}
        return True

    def _learn_broker(self, endpoint: Any) -> None:
        brokers = self._manager.cluster._brokers
        if endpoint.node_id not in brokers:
            broker = self._broker_class()(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            self._manager.cluster._brokers = {**brokers, endpoint.node_id: broker}

    def _broker_class(self) -> Any:
        return type(self._manager.cluster.bootstrap_brokers()[0])


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A broker's address, as FindCoordinator gives it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class _Group:
    """Splits the batches for one leader into requests: one batch for each partition, one transaction, bounded bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.frames: list[list[tuple[ProduceRequest[Any], memoryview]]] = []
        self._max_bytes = max_bytes
        self._bytes = 0
        self._partitions: set[TopicPartition] = set()

    def add(self, request: ProduceRequest[Any], data: memoryview) -> None:
        target = request.topic, request.partition
        full = target in self._partitions or self._bytes + len(data) > self._max_bytes
        if not self.frames or full or self.frames[-1][0][0].transaction != request.transaction:
            self.frames.append([])
            self._bytes = 0
            self._partitions = set()
        self.frames[-1].append((request, data))
        self._bytes += len(data)
        self._partitions.add(target)


def _next_offset(records: Buffer, offset: int) -> int:
    """Where complete batches, of old formats as well, end."""
    at = 0
    while len(records) - at > _MAGIC_AT:
        base, length = struct.unpack_from(">qi", records, at)
        if length < 0 or length > len(records) - at - _LOG_OVERHEAD:
            break
        last_delta = (
            struct.unpack_from(">i", records, at + _LAST_DELTA_AT)[0] if records[at + _MAGIC_AT] > 1 else 0
        )
        offset = max(offset, base + last_delta + 1)
        at += _LOG_OVERHEAD + length
    return offset


def _closed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError("The transport is closed")
    return error


def _crashed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError(
        "The network thread ended by an error, see the log"
    )
    return error


def _only(topics: Any, group: str, number: str, topic: str, partition: int, *, name: str = "name") -> Any:
    """The answer for one partition among a response's topics."""
    for entry in topics:
        if getattr(entry, name) == topic:
            for answer in getattr(entry, group):
                if getattr(answer, number) == partition:
                    return answer
    raise kafka_errors.KafkaProtocolError(f"The response left {topic}-{partition} out")
