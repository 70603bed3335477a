"""kafka-python's sockets, plain and TLS, with fixes and additions.

The module reads and writes bytes without copies, and closes sockets. It does not interpret the bytes.
"""

from __future__ import annotations

import collections
import contextlib
import encodings.idna  # noqa: F401  # before a thread resolves names: see docs/design-threads.md
import functools
import itertools
import socket
import ssl
import struct
import time
import types
from collections.abc import Iterable
from typing import Any, Final, Protocol

import kafka.errors as kafka_errors
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.frame import KafkaBytes

from kafkasafe.cluster.api import Buffer
from kafkasafe.kafkapython.loop import Loop

_RECEIVE_BYTES: Final = 64 * 1024
"""A response larger than this gets its own buffer as soon as its size is received."""
_MAX_IOVEC: Final = 64
_LEAST_VIEW_BYTES: Final = 64 * 1024
"""Smaller parts of a response are copied, because some, such as SASL tokens, must be bytes, not views."""


class Timed(Protocol):
    """A request whose bytes are being written."""

    def written(self, now: float) -> None:
        """Called after the request's last byte was written. `now` is the time in monotonic seconds."""


class _Incoming(KafkaBytes):
    """A response that is being received. kafka-python's class would copy the response's bytes twice."""

    _idx: int

    @staticmethod
    def become(parser: Any) -> None:
        """If `parser` has received only a part of a response, as with all large responses, makes the response an
        `_Incoming`.
        """
        frame = getattr(parser, "_rbuffer", None)
        if type(frame) is KafkaBytes:
            frame.__class__ = _Incoming
            waiting = getattr(parser, "in_flight_requests", None)
            if waiting and getattr(waiting[0], "request_api_key", None) == FetchRequest.API_KEY:
                waiting[0] = _FetchHeader(waiting[0])

    def grow(self, size: int) -> None:
        """Count `size` more received bytes."""
        self._idx += size

    def read(self, nbytes: int | None = None) -> bytes | memoryview:
        """Return the next bytes, at most `nbytes`. A large part is a view of the response instead of a copy.

        kafka-python can decode a response from a view. kafka-python's decoder copies all byte fields, except for the
        records of a Fetch response (`_FetchHeader`).
        """
        start, size = self._idx, len(self)
        self._idx = size if nbytes is None else min(start + nbytes, size)
        part = memoryview(self)[start : self._idx]
        if len(part) >= _LEAST_VIEW_BYTES:
            return part
        with part:
            return bytes(part)


class _FetchHeader:
    """The header of a Fetch request with a large response. kafka-python asks the header of a request for a class that
    decodes the response. `_FetchHeader` returns itself, because it has its own `decode`.

    kafka-python's code still decodes the fields, but the records become views of the response instead of copies. The
    views keep the response in memory.
    """

    __slots__ = ("_theirs", "api_key", "api_version", "correlation_id")

    def __init__(self, header: Any) -> None:
        self.api_key = header.request_api_key
        self.api_version = header.request_api_version
        self.correlation_id = header.correlation_id
        self._theirs = header.get_response_class()

    def get_response_class(self) -> _FetchHeader:
        return self

    def parse_header(self, frame: Any) -> Any:
        return self._theirs.parse_header(frame)

    def decode(self, frame: Any) -> Any:
        data = frame.read()
        if not isinstance(data, memoryview):
            return self._theirs.decode(data)
        return _decoder_of_views(self._theirs)(data, 0)[0]


def _view_or_copy(part: memoryview) -> bytes | memoryview:
    return part if len(part) >= _LEAST_VIEW_BYTES else bytes(part)


@functools.cache
def _decoder_of_views(response: Any) -> Any:
    """Returns kafka-python's decoder for a class of responses, changed so that it copies only short byte fields."""
    version = response._class_version
    flexible = response.flexible_version_q(version)
    decode = response._struct.compiled_decode_from(
        version, compact=flexible, tagged=flexible, data_class=response[None]
    )
    return types.FunctionType(decode.__code__, {**decode.__globals__, "bytes": _view_or_copy})


LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which the kernel drops unsent bytes when the socket is closed or the process dies.

With the default value, the kernel could send a request minutes after the client has given up the connection.
"""
_LINGER_DEFAULT: Final = struct.pack("ii", 0, 0)
"""The default value of SO_LINGER."""


def _closed_by_broker() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError("The broker closed the connection")
    return error


class _SocketMixin:
    """Reads in large pieces, tries to write before it waits, and closes the connection at any error.

    After an error, or with unanswered requests, the kernel drops all unsent bytes when the socket is closed.
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
    _marks: collections.deque[tuple[int, Timed]] | None = None

    def mark(self, call: Timed) -> None:
        """Calls `call.written` as soon as the socket has written all data that `write` got before `mark` was called."""
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
            marks.popleft()[1].written(self.last_write)

    async def _read_from_sock(self) -> None:
        while self._read and not self._closed:
            await self._net.wait_read(self._sock)
            self._receive()

    def _receive(self) -> None:
        goes_on, parsed = True, False
        while goes_on and not self._closed and self._read:
            came, at_its_end, error = self._fill()
            data = b""
            if at_its_end:
                data, error = self._sock_recv()
            if came or data:
                self.last_read = time.monotonic()
                sensors = self._protocol._sensors if self._protocol else None
                if sensors:
                    sensors.bytes_received.record(came + len(data))
            # Read from TLS until nothing is left, because the selector does not see bytes that OpenSSL has buffered.
            goes_on = len(data) == _RECEIVE_BYTES or (bool(data) and isinstance(self._sock, ssl.SSLSocket))
            if error is None and data:
                try:
                    self._protocol.data_received(data)
                    _Incoming.become(getattr(self._protocol, "parser", None))
                except Exception as decoding:  # malformed answers raise many kinds of errors
                    error = decoding
            if error is not None:
                if parsed:
                    # The received bytes may contain the broker's reason to close the connection. So let the task that
                    # waits for them run first.
                    self._break_soon(error)
                else:
                    self._broke(error)
                return
            parsed = parsed or bool(data)

    def _break_soon(self, error: BaseException) -> None:
        # `call_soon` accepts a function, but no `functools.partial`.
        self._net.call_soon(lambda: self._broke(error))

    def _broke(self, error: BaseException) -> None:
        if not self._closed:
            self.abort(error=error)  # type: ignore[attr-defined]  # the other base class has it

    def _fill(self) -> tuple[int, bool, BaseException | None]:
        """Receives more bytes of the current large response, without copying them.

        Returns:
            The number of received bytes; whether to continue with `_sock_recv`, which receives all other bytes; and the
            error that ended the connection, if any. The caller must not drop the error, because the kernel reports it
            only once.
        """
        frame = getattr(getattr(self._protocol, "parser", None), "_rbuffer", None)
        if not isinstance(frame, _Incoming):
            return 0, True, None
        came = 0
        # Leave the last byte to the parser, which then notices that the response is complete.
        with memoryview(frame) as view, view[frame._idx : max(frame._idx, len(frame) - 1)] as rest:
            while came < len(rest):
                try:
                    with rest[came:] as place:
                        size = self._sock.recv_into(place)
                except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    return came, False, None
                except Exception as failed:
                    return came, False, kafka_errors.KafkaConnectionError(failed)
                if not size:
                    return came, False, _closed_by_broker()
                came += size
                frame.grow(size)
        return came, True, None

    def _sock_recv(self) -> tuple[bytes, BaseException | None]:
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b"", None
        except Exception as failed:
            return b"", kafka_errors.KafkaConnectionError(failed)
        return data, None if data else _closed_by_broker()

    def _close(self, error: BaseException | None = None) -> None:
        if self._sock is not None and error is None and not getattr(self._protocol, "in_flight_requests", ()):
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_DEFAULT)
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


def _send_plain(transport: Any) -> tuple[int, BaseException | None]:
    """Write waiting bytes to a socket without TLS. Return the number of written bytes, and the error of the write, if
    any.
    """
    total = 0
    if transport._sock is None:
        return total, kafka_errors.KafkaConnectionError("Connection closed during send")
    pending = transport._write_buffer
    while pending:
        try:
            # Write many buffers with one call, which needs no copy, and sends no tiny packet for a frame's head.
            sent = transport._sock.sendmsg(list(itertools.islice(pending, _MAX_IOVEC)))
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


async def _shake_hands(transport: Any, timeout_at: float | None) -> None:
    """Like kafka-python's method, but with a time limit, so that an attempt to connect to a hanging broker ends."""
    while True:
        try:
            transport._sock.do_handshake()
        except ssl.SSLWantReadError:
            await transport._net.wait_read(transport._sock, timeout_at)
        except ssl.SSLWantWriteError:
            await transport._net.wait_write(transport._sock, timeout_at)
        else:
            return


class PlainSocket(_SocketMixin, KafkaTCPTransport):
    """A socket without TLS."""

    async def handshake(self, timeout_at: float | None = None) -> None:
        """A plain connection has no handshake."""

    def _sock_send(self) -> tuple[int, BaseException | None]:
        return _send_plain(self)


class TlsSocket(_SocketMixin, KafkaSSLTransport):
    """A socket with TLS, and a time limit for the handshake, which kafka-python 3.0.12 lacks."""

    async def handshake(self, timeout_at: float | None = None) -> None:
        """Like kafka-python's method, but with a time limit."""
        await _shake_hands(self, timeout_at)


class _DirectMixin(_SocketMixin):
    """A socket of a `Loop`. It reads bytes as they come, and writes at the end of each iteration of the loop."""

    _net: Loop
    _read: bool
    _writing: bool
    _write_task: Any

    def resume_reading(self) -> None:
        """Begin to read. The socket stays in the selector until it is closed."""
        if not self._read and not self._closed:
            self._read = True
            self._net.read_with(self._sock, self._receive)

    def write(self, data: Buffer) -> None:
        """Write the data at the end of the loop's current iteration, together with all other data of the iteration."""
        if not len(data):
            raise ValueError("Nothing to write")
        self.writelines((data,))

    def writelines(self, buffers: Iterable[Buffer]) -> None:
        if not self._write or self._closed:
            raise RuntimeError("The connection is closed for writes")
        self._write_buffer.extend(buffers)
        if not self._writing:
            self._writing = True
            self._net.unwritten.append(self.write_now)

    def write_now(self) -> None:
        """Writes the data at the end of the iteration. A task later writes the bytes that the socket did not accept."""
        if self._write_buffer and not self._closed:
            sent, error = self._sock_send()  # type: ignore[attr-defined]  # the other base class has it
            if error is not None:
                self._writing = False
                self.abort(error=error)  # type: ignore[attr-defined]
                return
            self._count_written(sent)
        if self._write_buffer:
            self._write_task = self._net.call_soon(self._write_to_sock)  # type: ignore[no-untyped-call]
            return
        self._writing = False
        if self._closed:
            self._close()


class DirectPlainSocket(_DirectMixin, KafkaTCPTransport):
    """A socket of a `Loop`, without TLS."""

    async def handshake(self, timeout_at: float | None = None) -> None:
        """A plain connection has no handshake."""

    def _sock_send(self) -> tuple[int, BaseException | None]:
        return _send_plain(self)


class DirectTlsSocket(_DirectMixin, KafkaSSLTransport):
    """A socket of a `Loop`, with TLS."""

    async def handshake(self, timeout_at: float | None = None) -> None:
        """Like kafka-python's method, but with a time limit."""
        await _shake_hands(self, timeout_at)
