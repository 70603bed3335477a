"""Kafka's protocol on 127.0.0.1 for the fake, with one thread for all brokers.

Everything happens on that thread, in the order of arrival, or under `lock`. So a fake cluster has no races. After each
change of the state, the thread adapts the sockets. A broker that is down has no listener and no connections; a
suspended one neither reads nor answers. A port stays bound, so that no other program gets it, but its socket does not
listen. So connections are refused, like by a machine whose broker is down.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.testing.fake.asking import NotModelledError
from kafkasafe.testing.fake.request_handler import PendingRequest, Reply, RequestHandler
from kafkasafe.testing.fake.weather import Weather
from kafkasafe.testing.relay import Outbox, bound, frames_in

__all__ = ["Wire"]

log = logging.getLogger(__name__)

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 256 * 1024
_MAX_FRAME: Final = 1 << 28
_BACKLOG: Final = 64


@dataclass(slots=True, eq=False)
class _Connection:
    node: int
    sock: socket.socket
    outgoing: Outbox
    incoming: bytearray = field(default_factory=bytearray)
    requests: deque[bytes] = field(default_factory=deque)
    held: PendingRequest | None = None
    muted_until_ms: int = 0
    interest: int = 0

    def read(self) -> bool:
        """Reads what has arrived. Returns whether the connection is still usable."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.incoming += data
        try:
            self.requests.extend(frames_in(self.incoming, _MAX_FRAME))
        except ValueError:
            return False
        return bool(data)

    def hold(self, pending: PendingRequest | None) -> None:
        """Holds a request whose answer is not available yet; None: there is none any more."""
        self.held = pending

    def put(self, reply: Reply, weather: Weather, now: int) -> None:
        """Adds an answer to what is to be written, as far as the network lets it through."""
        self.muted_until_ms = now + reply.throttle_ms
        if reply.frame is not None and not weather.drop_responses:
            self.outgoing.put(reply.frame, now + weather.response_delay_ms)

    def watch(self, selector: selectors.BaseSelector, wanted: int) -> None:
        """Lets a selector watch the socket for these events; 0: not any more."""
        if wanted == self.interest:
            return
        if not wanted:
            selector.unregister(self.sock)
        elif not self.interest:
            selector.register(self.sock, wanted, self)
        else:
            selector.modify(self.sock, wanted, self)
        self.interest = wanted


class Wire:
    """Listeners and connections of a fake cluster.

    Args:
        handler: Answers the requests.
        nodes: The brokers' node ids.
        lock: Held whenever `handler` is used.
        now_ms: The clock.

    Attributes:
        weather: Network faults, by node.
    """

    def __init__(
        self, handler: RequestHandler, nodes: list[int], lock: threading.RLock, now_ms: Callable[[], int]
    ) -> None:
        self._handler = handler
        self._lock = lock
        self._now_ms = now_ms
        self.weather = {node: Weather() for node in nodes}
        self._holders: dict[int, socket.socket] = {}
        self._listeners: dict[int, socket.socket] = {}
        self._connections: list[_Connection] = []
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._barriers: deque[threading.Event] = deque()
        self._cut: set[int] = set()
        self._stop = False
        self._failure: BaseException | None = None
        for node in nodes:
            holder = self._holders[node] = bound(_HOST, 0)
            handler.listen(node, *holder.getsockname())
        self._agree()
        self._thread = threading.Thread(target=self._run, name="kafkasafe-fake", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes all sockets. Idempotent."""
        self._stop = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def settle(self) -> None:
        """Returns when the sockets match the state, and waiting requests were checked again."""
        if threading.current_thread() is self._thread or self._stop:
            return
        barrier = threading.Event()
        self._barriers.append(barrier)
        self._wake()
        while not barrier.wait(1.0) and self._thread.is_alive():
            pass
        if self._failure is not None:
            raise RuntimeError("The fake's thread ended by an error") from self._failure

    def cut(self, nodes: list[int]) -> int:
        """Ends all connections to some brokers. Returns how many there were."""
        with self._lock:
            count = sum(connection.node in nodes for connection in self._connections)
            self._cut.update(nodes)
        self.settle()
        return count

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_out.send(b"\0")

    # -- The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop:
                self._turn()
        except BaseException as error:  # the next caller raises this error
            self._failure = error
        finally:
            for connection in self._connections:
                connection.sock.close()
            for sock in (*self._listeners.values(), *self._holders.values(), self._wake_in, self._wake_out):
                sock.close()
            self._selector.close()
            while self._barriers:
                self._barriers.popleft().set()

    def _turn(self) -> None:
        with self._lock:
            barriers = len(self._barriers)
            now = self._now_ms()
            self._handler.advance(now)
            self._agree()
            # A request on one connection may complete a waiting request on another one.
            while any(self._work(connection, now) for connection in list(self._connections)):
                pass
            due = self._next_due_ms()
        for _ in range(barriers):
            self._barriers.popleft().set()
        timeout = None if due is None else max(0.0, (due - self._now_ms()) / 1000)
        for key, mask in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    while self._wake_in.recv(4096):
                        pass
            elif isinstance(key.data, int):
                self._accept(key.data)
            elif mask & selectors.EVENT_READ:
                self._read(key.data)

    def _next_due_ms(self) -> float | None:
        due: list[float | None] = [self._handler.next_due_ms()]
        for connection in self._connections:
            if self._hangs(connection):  # the connection is checked again when its broker resumes
                continue
            if connection.held is not None:
                due.append(connection.held.later.due_ms)
            if connection.outgoing and not connection.interest & selectors.EVENT_WRITE:
                due.append(connection.outgoing.due)
            if connection.muted_until_ms > self._now_ms():
                due.append(connection.muted_until_ms)
        return min((at for at in due if at is not None), default=None)

    # -- Sockets -----------------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Adapts listeners and connections to the brokers' state."""
        for node, broker in self._handler.centre.brokers.items():
            weather = self.weather[node]
            listens = broker.up and not weather.refuse
            if listens and node not in self._listeners:
                listener = bound(_HOST, self._handler.addresses[node][1])
                listener.setblocking(False)
                listener.listen(_BACKLOG)
                self._listeners[node] = listener
                self._selector.register(listener, selectors.EVENT_READ, node)
            elif not listens and node in self._listeners:
                listener = self._listeners.pop(node)
                self._selector.unregister(listener)
                listener.close()
            if not broker.up or node in self._cut:
                for connection in [one for one in self._connections if one.node == node]:
                    self._end(connection)
        self._cut.clear()

    def _accept(self, node: int) -> None:
        listener = self._listeners.get(node)
        if listener is None:
            return
        with contextlib.suppress(OSError):
            sock, _ = listener.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(node, sock, Outbox(sock))
            self._connections.append(connection)
            connection.watch(self._selector, selectors.EVENT_READ)

    def _end(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            connection.watch(self._selector, 0)
            connection.sock.close()

    def _hangs(self, connection: _Connection) -> bool:
        return self._handler.centre.brokers[connection.node].paused or self.weather[connection.node].stall

    def _read(self, connection: _Connection) -> None:
        if connection in self._connections and not self._hangs(connection) and not connection.read():
            self._end(connection)

    def _work(self, connection: _Connection, now: int) -> bool:
        """Does everything possible for one connection. Returns whether there was a new request."""
        handled = False
        hangs = self._hangs(connection)
        weather = self.weather[connection.node]
        if not hangs:
            try:
                handled = self._answer(connection, weather, now)
                connection.outgoing.send(now)
            except NotModelledError as error:
                log.exception("The connection ends", exc_info=error.__cause__ or error)
                self._end(connection)
                return True
            except OSError:
                self._end(connection)
                return handled
        wanted = 0
        if not hangs and now >= connection.muted_until_ms:
            wanted = selectors.EVENT_READ
            if connection.outgoing and connection.outgoing.due <= now:
                wanted |= selectors.EVENT_WRITE
        connection.watch(self._selector, wanted)
        return handled

    def _answer(self, connection: _Connection, weather: Weather, now: int) -> bool:
        handled = False
        if connection.held is not None:
            reply = self._handler.look(connection.held, now)
            if reply is None:
                return False
            connection.hold(None)
            connection.put(reply, weather, now)
        while connection.requests and now >= connection.muted_until_ms:
            frame = connection.requests.popleft()
            handled = True
            if weather.drop_requests:
                continue
            answer = self._handler.handle(connection.node, frame, now)
            if isinstance(answer, PendingRequest):
                connection.hold(answer)
                break
            connection.put(answer, weather, now)
        return handled
