"""The common part of the proxies: one thread accepts connections, forwards bytes and executes commands.

`TcpProxy` changes bytes, `FaultProxy` the Kafka frames in them. They decide what becomes of the bytes that a
`RelayedPipe` received, and how many it may receive. Both listen as soon as they are constructed, but their thread
runs only after `start`. This thread alone uses everything that it forwards. Other threads pass closures to it (`_do`).
"""

from __future__ import annotations

import abc
import collections
import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Container, Iterator
from typing import Final, Generic, Self, TypeVar

from kafkasafe.kafkapython.frames import SIZE_BYTES

__all__ = ["MAX_BUFFERED_BYTES", "Outbox", "Relay", "RelayedConnection", "RelayedPipe", "bound", "frames_in"]

_T = TypeVar("_T")

CONNECT_TIMEOUT_S: Final = 2.0
MAX_BUFFERED_BYTES: Final = (
    4 * 1024 * 1024
)  # limit for each direction of a connection; beyond it, the sender has to wait
_COMMAND_TIMEOUT_S: Final = 10.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER of zero seconds: closing sends RST


class Outbox:
    """Bytes that wait for a socket, in order. Each piece has a time before which it is not sent.

    Attributes:
        size: Number of bytes that wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.size = 0
        self._sock = sock
        self._pieces: collections.deque[tuple[float, memoryview]] = collections.deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def due(self) -> float:
        """When the first piece may be sent, `time.monotonic()` in seconds. The outbox must not be empty."""
        return self._pieces[0][0]

    def put(self, data: bytes, due: float = 0.0) -> None:
        """Add a piece. It never overtakes an earlier one, even if it is due before that one."""
        if self._pieces:
            due = max(due, self._pieces[-1][0])
        self._pieces.append((due, memoryview(data)))
        self.size += len(data)

    def send(self, now: float = 0.0) -> None:
        """Send the due data, as far as the socket accepts it."""
        while self._pieces and self._pieces[0][0] <= now:
            due, data = self._pieces[0]
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                return
            self.size -= sent
            if sent == len(data):
                self._pieces.popleft()
            else:
                self._pieces[0] = (due, data[sent:])

    def take(self) -> bytes:
        """Remove and return all bytes."""
        data = b"".join(piece for _, piece in self._pieces)
        self._pieces.clear()
        self.size = 0
        return data


class RelayedPipe:
    """One direction of a connection.

    Attributes:
        outbox: The bytes that wait for the sink.
        ended: The source has sent everything.
        shut: Nothing more is sent to the sink.
    """

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.outbox = Outbox(sink)
        self.ended = False
        self.shut = False

    def read(self, limit: int) -> bytes | None:
        """Receives bytes from the source; None if there are none now, empty at its end."""
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
        """Passes the source's end on to the sink, once all bytes before it were sent."""
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


class Relay(abc.ABC, Generic[_L]):
    """A thread that forwards connections. Thread-safe.

    Args:
        host: Address to listen on.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._listeners: dict[
            socket.socket, int
        ] = {}  # each listener with its number, by which subclasses identify it
        self._selector = selectors.DefaultSelector()
        self._masks: dict[socket.socket, int] = {}
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._connections: set[_L] = set()
        self._thread: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begins to accept connections. Idempotent."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Resets all connections and stops listening. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._wake()
            self._thread.join(_COMMAND_TIMEOUT_S)
        else:
            self._close_all()
        # The thread does not close these sockets, because it may notice `_closed` and end before it is woken.
        self._woken.close()
        self._waker.close()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    # -- Methods of subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(self, client: socket.socket, number: int) -> _L | None:
        """Opens a connection for a client of listener `number`; None if the target cannot be reached."""

    @abc.abstractmethod
    def _read_limit(self, connection: _L, pipe: RelayedPipe) -> int:
        """Returns how many bytes may be read from the pipe's source at once; 0: none for now."""

    @abc.abstractmethod
    def _receive(self, connection: _L, pipe: RelayedPipe, data: bytes) -> None:
        """Handles bytes of the pipe's source; none: it has sent everything."""

    @abc.abstractmethod
    def _settle(self, connection: _L) -> None:
        """Passes on the ends of its pipes, after bytes were read or sent."""

    def _prepare(self, connection: _L, now: float) -> float | None:  # noqa: ARG002
        """Fills outboxes with what is due, before sockets are waited for. Returns when more will be due."""
        return None

    # -- The thread ----------------------------------------------------------------------------------------------

    def _listen(self, port: int, number: int) -> int:
        """Listens on a port; 0: any free one. Returns the port."""
        listener = bound(self._host, port)
        try:
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        self._listeners[listener] = number
        self._selector.register(listener, selectors.EVENT_READ)
        chosen: int = listener.getsockname()[1]
        return chosen

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            self._selector.unregister(listener)
            listener.close()
        self._listeners.clear()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # woken already
            self._waker.send(b"\0")

    def _do(self, command: Callable[[], _T]) -> _T:
        """Runs a command on the proxy's thread, and waits for it."""
        if self._closed:
            raise RuntimeError("The proxy is closed")
        self.start()
        done = threading.Event()
        outcome: list[_T] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                outcome.append(command())
            except BaseException as error:  # raised again on the caller's thread
                failure.append(error)
            finally:
                done.set()

        self._commands.append(run)
        self._wake()
        if not done.wait(_COMMAND_TIMEOUT_S):
            raise TimeoutError("The proxy does not react")
        if failure:
            raise failure[0]
        return outcome[0]

    def _run(self) -> None:
        try:
            while not self._closed:
                for key, events in self._selector.select(self._plan()):
                    if key.fileobj is self._woken:
                        self._obey()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._listeners:
                        self._accept(key.fileobj)
                    elif key.data in self._connections:
                        self._serve(key.data, key.fileobj, events)
        finally:
            self._close_all()

    def _close_all(self) -> None:
        while self._commands:
            self._commands.popleft()()
        self._cut()
        self._stop_listening()
        self._selector.close()

    def _obey(self) -> None:
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            return
        while self._commands:
            self._commands.popleft()()

    def _plan(self) -> float | None:
        """Registers sockets for the events of interest. Returns the seconds until there is more to do."""
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
        """Handles events of one of the connection's sockets."""
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

    def _register(self, sock: socket.socket, mask: int, connection: _L) -> None:
        old = self._masks.get(sock, 0)
        if mask == old:
            return
        if not old:
            self._selector.register(sock, mask, connection)
        elif not mask:
            self._selector.unregister(sock)
        else:
            self._selector.modify(sock, mask, connection)
        self._masks[sock] = mask

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # the client has already disconnected
        connection = self._open(client, self._listeners[listener])
        if connection is None:
            reset(client)
            return
        for sock in (connection.client, connection.target):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(connection)

    def _cut(self) -> int:
        cut = len(self._connections)
        for connection in list(self._connections):
            self._close(connection)
        return cut

    def _close(self, connection: _L, *, reset_only: Container[socket.socket] | None = None) -> None:
        """Closes both sockets. The sockets in `reset_only` (default: both) discard bytes that are not delivered yet."""
        self._connections.discard(connection)
        for sock in (connection.client, connection.target):
            if self._masks.pop(sock, 0):
                self._selector.unregister(sock)
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


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """Returns a socket bound to the port; 0: any free one. Several sockets can have a port if all are `shared`."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def frames_in(buffer: bytearray, most_bytes: int, least_bytes: int = 1) -> Iterator[bytes]:
    """Takes the complete frames of Kafka's protocol out of the bytes that have arrived.

    Raises:
        ValueError: A frame cannot have this size.
    """
    at = 0
    try:
        while len(buffer) - at >= SIZE_BYTES:
            end = at + SIZE_BYTES
            size = int.from_bytes(buffer[at:end], "big", signed=True)
            if not least_bytes <= size <= most_bytes:
                raise ValueError(f"a frame of {size} bytes")
            if len(buffer) < end + size:
                return
            at = end + size
            yield bytes(buffer[end:at])
    finally:
        del buffer[:at]


def reset(sock: socket.socket) -> None:
    """Closes a socket, and discards bytes that are not delivered yet."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
