"""The common part of the proxies: one thread accepts connections, forwards bytes and executes commands.

`TcpProxy` changes bytes. `FaultProxy` changes Kafka frames. Each proxy decides how many bytes a `RelayedPipe` receives,
and what happens to them. Both proxies listen as soon as they are constructed, but their thread runs only after `start`.
Only the proxy's thread uses the connections and their bytes. Other threads pass closures to the proxy's thread (`_do`).
"""

from __future__ import annotations

import abc
import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Container
from typing import Final, TypeVar

from kafkasafe.testing.sockets import Outbox, SocketLoop

CONNECT_TIMEOUT_S: Final = 2.0
MAX_BUFFERED_BYTES: Final = (
    4 * 1024 * 1024
)  # limit for each direction of a connection; at this limit, the proxy stops reading from the sender
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends RST


class RelayedPipe:
    """One direction of a connection.

    Attributes:
        outbox: The bytes that wait to be sent to the sink.
        ended: Whether the source has sent everything.
        shut: Whether the proxy has stopped sending to the sink.
    """

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.outbox = Outbox(sink)
        self.ended = False
        self.shut = False

    def read(self, limit: int) -> bytes | None:
        """Receives bytes from the source. Returns None if no bytes can be read now, and empty bytes if the source has
        ended.
        """
        try:
            data = self.source.recv(limit)
        except BlockingIOError:
            return None
        self.ended = not data
        return data

    def give_up_sink(self) -> None:
        """Sends the sink nothing more."""
        self.shut = True

    def end_sink(self) -> None:
        """If the source has ended and all bytes from it were sent, shuts the sink down for writing."""
        if self.ended and not self.outbox and not self.shut:
            self.shut = True
            self.sink.shutdown(socket.SHUT_WR)


class RelayedConnection:
    """A client's connection, and the connection to the target that was opened for it.

    Attributes:
        requests: From the client to the target.
        responses: From the target to the client.
    """

    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.client = client
        self.target = target
        self.requests = RelayedPipe(client, target)
        self.responses = RelayedPipe(target, client)
        self.pipes = (self.requests, self.responses)


_L = TypeVar("_L", bound=RelayedConnection)


class Relay(SocketLoop[_L]):
    """A thread that forwards connections. Thread-safe.

    Args:
        host: Address to listen on.
    """

    # -- Methods of subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(self, client: socket.socket, number: int) -> _L | None:
        """Opens a connection for a client of listener `number`; None if the target cannot be reached."""

    @abc.abstractmethod
    def _read_limit(self, connection: _L, pipe: RelayedPipe) -> int:
        """Returns how many bytes may be read from the pipe's source at once; 0 to read nothing for now."""

    @abc.abstractmethod
    def _receive(self, connection: _L, pipe: RelayedPipe, data: bytes) -> None:
        """Handles `data` from the pipe's source. Empty `data` means that the source has sent everything."""

    @abc.abstractmethod
    def _settle(self, connection: _L) -> None:
        """If a pipe's source has ended, ends the pipe's sink. Called after bytes were read or sent."""

    def _prepare(self, connection: _L, now: float) -> float | None:  # noqa: ARG002
        """Puts bytes that are due into the outboxes. Called before the thread waits for sockets.

        Returns:
            Time (`time.monotonic()`) at which more bytes will be due; None if no time is known.
        """
        return None

    # -- The thread ----------------------------------------------------------------------------------------------

    def _plan(self) -> float | None:
        now = time.monotonic()
        times = []
        for connection in list(self._connections):
            due = self._prepare(connection, now)
            if due is not None:
                times.append(due)
            if connection not in self._connections:
                continue
            masks = {connection.client: 0, connection.target: 0}
            for pipe in connection.pipes:
                if not pipe.ended and self._read_limit(connection, pipe):
                    masks[pipe.source] |= selectors.EVENT_READ
                if pipe.outbox and not pipe.shut:
                    if pipe.outbox.due <= now:
                        masks[pipe.sink] |= selectors.EVENT_WRITE
                    else:
                        times.append(pipe.outbox.due)
            for sock, mask in masks.items():
                self._register(sock, mask, connection)
        return max(0.0, min(times) - now) if times else None

    def _serve(self, connection: _L, fileobj: object, events: int) -> None:
        try:
            for pipe in connection.pipes:
                if pipe.source is fileobj and events & selectors.EVENT_READ:
                    self._read(connection, pipe)
                if pipe.sink is fileobj and events & selectors.EVENT_WRITE:
                    pipe.outbox.send(time.monotonic())
            if connection in self._connections:
                self._settle(connection)
        except OSError:
            self._close(connection)

    def _read(self, connection: _L, pipe: RelayedPipe) -> None:
        limit = self._read_limit(connection, pipe)
        data = pipe.read(limit) if limit else None
        if data is not None:
            self._receive(connection, pipe, data)

    def _welcome(self, client: socket.socket, number: int) -> None:
        connection = self._open(client, number)
        if connection is None:
            reset(client)
            return
        self._begin(connection, connection.client, connection.target)

    def _close(self, connection: _L, *, reset_only: Container[socket.socket] | None = None) -> None:
        """Closes both sockets. The sockets in `reset_only` (default: both) discard bytes that are not delivered yet."""
        self._connections.pop(connection, None)
        for sock in (connection.client, connection.target):
            self._register(sock, 0, connection)
            if reset_only is None or sock in reset_only:
                reset(sock)
            else:
                sock.close()


def connect(host: str, port: int) -> socket.socket | None:
    """Connects to an address; None if that fails."""
    try:
        return socket.create_connection((host, port), CONNECT_TIMEOUT_S)
    except OSError:
        return None


def reset(sock: socket.socket) -> None:
    """Closes a socket, and discards bytes that are not delivered yet."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
