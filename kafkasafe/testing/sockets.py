"""The common part of the proxies and the fake's wire: one thread accepts connections and executes commands.

The sockets' thread runs only after `start`. No other thread uses the sockets.

A forked child gets copies of all sockets. A copy would keep a socket open after the parent has closed it. A listener
would then still accept connections, and clients would not see the end of a connection. So each child closes its copies
at once.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Final, Generic, Self, TypeVar

from kafkasafe.kafkapython.frames import SIZE_BYTES

_T = TypeVar("_T")
_C = TypeVar("_C")

_COMMAND_TIMEOUT_S: Final = 10.0


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
        """Earliest time (`time.monotonic()`) at which the first piece is sent. The outbox must not be empty."""
        return self._pieces[0][0]

    def put(self, data: bytes, due: float = 0.0) -> None:
        """Adds a piece of data, which is sent at `due` or later, and always after the pieces added before it."""
        if self._pieces:
            due = max(due, self._pieces[-1][0])
        self._pieces.append((due, memoryview(data)))
        self.size += len(data)

    def send(self, now: float = 0.0) -> None:
        """Sends the pieces that are due at `now`, until the socket accepts no more."""
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
        """Removes and returns all bytes."""
        data = b"".join(piece for _, piece in self._pieces)
        self._pieces.clear()
        self.size = 0
        return data


class _OwnedSockets:
    """The sockets of a loop, and the selector that watches them.

    Attributes:
        forked: Whether this process is a forked child, which has closed its copies of the sockets.
    """

    def __init__(self, selector: selectors.BaseSelector, *sockets: socket.socket) -> None:
        self.forked = False
        self._selector = selector
        self._sockets = weakref.WeakSet(sockets)
        _all_owned.add(self)

    def add(self, sock: socket.socket) -> None:
        """Adds a socket. The socket is removed automatically when nothing else refers to it."""
        self._sockets.add(sock)

    def leave_to_parent(self) -> None:
        """In a forked child: closes the child's copies. The parent still uses its sockets."""
        self.forked = True
        for sock in self._sockets:
            sock.close()
        self._selector.close()


_all_owned: Final[weakref.WeakSet[_OwnedSockets]] = weakref.WeakSet()


def _forked() -> None:
    for owned in list(_all_owned):
        owned.leave_to_parent()


os.register_at_fork(after_in_child=_forked)


class SocketLoop(abc.ABC, Generic[_C]):
    """A thread that serves listeners and connections. Other threads pass closures to the loop's thread (`_do`).
    Thread-safe.

    Args:
        host: Address to listen on.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._listeners: dict[socket.socket, int] = {}
        """The listeners with their numbers. Subclasses identify a listener by its number."""
        self._selector = selectors.DefaultSelector()
        self._masks: dict[socket.socket, int] = {}
        self._woken, self._waker = socket.socketpair()
        self._owned = _OwnedSockets(self._selector, self._woken, self._waker)
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._connections: dict[_C, None] = {}
        """In the order of arrival."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
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
        """Ends all connections and stops listening. Idempotent. Does nothing in a forked child."""
        if self._closed or self._owned.forked:
            return
        self._closed = True
        if self._thread is None:
            self._close_all()
        elif self._thread is not threading.current_thread():
            self._wake()
            self._thread.join(_COMMAND_TIMEOUT_S)
        # Close the wake-up sockets here, not in the thread. The thread may notice `_closed` and end before `_wake`
        # writes to a socket, and the write must not fail.
        self._woken.close()
        self._waker.close()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    # -- Methods of subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _plan(self) -> float | None:
        """Registers sockets for the events of interest. Returns the seconds until the next timed work, or None if no
        timed work is left.
        """

    @abc.abstractmethod
    def _welcome(self, client: socket.socket, number: int) -> None:
        """Begins a connection with a client that connected to listener `number`."""

    @abc.abstractmethod
    def _serve(self, connection: _C, fileobj: object, events: int) -> None:
        """Handles events of one of the connection's sockets."""

    @abc.abstractmethod
    def _close(self, connection: _C) -> None:
        """Closes a connection."""

    # -- The thread ----------------------------------------------------------------------------------------------

    def _listen(self, port: int, number: int) -> int:
        """Listens on a port; 0: any free one. Returns the port."""
        listener = self._own(bound(self._host, port))
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

    def _stop_listening(self, number: int | None = None) -> None:
        """Closes the listeners with this number; None: all."""
        for listener in [each for each, known in self._listeners.items() if number in {None, known}]:
            self._selector.unregister(listener)
            listener.close()
            del self._listeners[listener]

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # woken already
            self._waker.send(b"\0")

    def _do(self, command: Callable[[], _T]) -> _T:
        """Runs a command on the loop's thread, and waits for it."""
        if self._closed or self._owned.forked:
            raise RuntimeError(f"The {type(self).__name__} is closed")
        if self._failure is not None:
            raise RuntimeError(f"The {type(self).__name__}'s thread ended by an error") from self._failure
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
            raise TimeoutError(f"The {type(self).__name__} does not react")
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
        except BaseException as error:
            self._failure = error
            raise
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

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # the client has already disconnected
        self._own(client)
        self._welcome(client, self._listeners[listener])

    def _begin(self, connection: _C, *sockets: socket.socket) -> None:
        """Adds a connection that has these sockets."""
        for sock in sockets:
            self._own(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection] = None

    def _own(self, sock: socket.socket) -> socket.socket:
        """Adds a socket to the sockets that a forked child has to close."""
        self._owned.add(sock)
        return sock

    def _cut(self) -> int:
        cut = len(self._connections)
        for connection in list(self._connections):
            self._close(connection)
        return cut

    def _register(self, sock: socket.socket, mask: int, connection: _C) -> None:
        """Watches a socket of a connection for the events in `mask`; 0: stops watching."""
        old = self._masks.pop(sock, 0)
        if mask:
            self._masks[sock] = mask
        if not old and mask:
            self._selector.register(sock, mask, connection)
        elif old and not mask:
            self._selector.unregister(sock)
        elif old != mask:
            self._selector.modify(sock, mask, connection)


def bound(host: str, port: int, *, shared: bool = True) -> socket.socket:
    """Returns a socket bound to `port`; 0: any free port. Several sockets can be bound to one port if all are
    `shared`.
    """
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
    """Removes the complete frames of Kafka's protocol from `buffer`. Yields each frame without its size field.

    Raises:
        ValueError: A frame's size is not between `least_bytes` and `most_bytes`.
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
