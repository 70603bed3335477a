"""A TCP proxy that loses responses, cuts connections, delays, stalls or refuses them.

Between a client and a broker it stands in for the network's faults: Kafka knows no difference between a lost
response and a lost request, and this is where an idempotent producer earns its keep.

```python
with TcpProxy(target_port=9092) as proxy:
    producer = SafeProducer(bootstrap_servers=f"127.0.0.1:{proxy.port}")
    proxy.drop_responses()   # the broker appends, the client never hears of it
    ...
    proxy.restore()
```

Its port listens from construction on, before the target is known, so that a broker can advertise it: clients
connect to what a broker advertises, not to what they were bootstrapped from.
"""

from __future__ import annotations

import collections
import selectors
import socket
import time
from typing import Final

from kafkasafe.testing.relay import CONNECT_TIMEOUT_S, Relay, connect

_CHUNK_BYTES: Final = 64 * 1024
_SLOW_CHUNK_BYTES: Final = 4 * 1024
_MAX_BUFFERED_BYTES: Final = (
    4 * 1024 * 1024
)  # for each direction of a connection; then the sender has to wait


class _Pipe:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, *, to_target: bool) -> None:
        self.source = source
        self.sink = sink
        self.to_target = to_target
        self.queue: collections.deque[tuple[float, memoryview]] = collections.deque()  # when due, bytes
        self.buffered = 0
        self.ended = False  # the source has no more
        self.shut = False  # and the sink has been told so


class _Connection:
    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        self.client = client
        self.target = target
        self.pipes = (_Pipe(client, target, to_target=True), _Pipe(target, client, to_target=False))
        self.damaged = False  # bytes were swallowed: what follows them would make no sense


class TcpProxy(Relay[_Connection]):
    """Forwards TCP connections and breaks them on command. Thread-safe.

    A command has taken effect when it returns. Faults add up until `restore`.

    Args:
        target_port: Where to connect to. May be given later (`target_port` attribute); until then connections
            are reset.
        port: Port to listen on, 0 for any free one.
        host: Address to listen on.
        target_host: Host of the target.

    Attributes:
        port: The port it listens on, valid from construction on.
        target_port: Port of the target; a change holds for new connections.

    Raises:
        OSError: The port is in use.
    """

    def __init__(
        self,
        target_port: int = 0,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        target_host: str = "127.0.0.1",
    ) -> None:
        super().__init__(host)
        self.target_port = target_port
        self._target_host = target_host
        # Keeps the port while connections are refused; nobody can connect to what does not listen.
        self._keeper: socket.socket | None = None
        try:
            if port:
                self._bind(port, shared=False).close()  # no other proxy's either
            self.port: int = self._listen(port, 0)
            self._keeper = self._bind(self.port)
        except OSError:
            self.close()
            raise

        # Owned by the proxy's thread, like everything it forwards.
        self._drop_requests = False
        self._drop_responses = False
        self._stalled = False
        self._request_delay_s = 0.0
        self._response_delay_s = 0.0
        self._bytes_per_s = 0.0
        self._buffer_bytes = _MAX_BUFFERED_BYTES
        self._free_at = 0.0  # when what came so far is through
        self._cut_after: int | None = None
        self._accepted = 0
        self._request_bytes = 0
        self._response_bytes = 0
        self._dropped_bytes = 0

    def __repr__(self) -> str:
        faults = [
            name
            for name, active in (
                ("drops requests", self._drop_requests),
                ("drops responses", self._drop_responses),
                ("stalled", self._stalled),
                ("refuses", not self._listeners),
            )
            if active
        ]
        return f"<TcpProxy {self.port} -> {self.target_port}{''.join(', ' + fault for fault in faults)}>"

    def close(self) -> None:
        """Resets all connections and stops listening. Idempotent."""
        super().close()
        if self._keeper is not None:
            self._keeper.close()

    # -- Faults --------------------------------------------------------------------------------------------------

    def drop_responses(self, on: bool = True) -> None:
        """Swallows what the target sends. Connections that lost bytes are reset when this is switched off."""
        self._do(lambda: self._set_drop(responses=on))

    def drop_requests(self, on: bool = True) -> None:
        """Swallows what clients send. Connections that lost bytes are reset when this is switched off."""
        self._do(lambda: self._set_drop(requests=on))

    def stall(self, on: bool = True) -> None:
        """Forwards nothing, keeps connections open, accepts new ones; switched off, it goes on where it was."""
        self._do(lambda: setattr(self, "_stalled", on))

    def delay(self, response_s: float = 0.0, request_s: float = 0.0) -> None:
        """Holds back each piece of data by so many seconds, without limiting how much is under way."""

        def run() -> None:
            self._response_delay_s = response_s
            self._request_delay_s = request_s

        self._do(run)

    def slow_down(self, request_bytes_per_s: float, *, buffer_bytes: int = 256 * 1024) -> None:
        """Lets only so many bytes of requests through in a second, of all connections together, as a slow uplink does.

        Args:
            request_bytes_per_s: 0: as many as come.
            buffer_bytes: How many of each connection lie on the way; then the client has to wait with writing.
        """

        def run() -> None:
            self._bytes_per_s = request_bytes_per_s
            self._buffer_bytes = buffer_bytes if request_bytes_per_s else _MAX_BUFFERED_BYTES
            self._free_at = 0.0

        self._do(run)

    def cut(self) -> int:
        """Resets all connections (new ones are accepted). Returns how many there were."""
        return self._do(self._cut)

    def cut_after(self, request_bytes: int) -> None:
        """Resets all connections once, when so many more bytes of requests were forwarded: in mid-request."""
        self._do(lambda: setattr(self, "_cut_after", request_bytes))

    def refuse(self, on: bool = True) -> None:
        """Resets all connections and stops listening: connecting is refused. Switched off, it listens again."""

        def run() -> None:
            if on and self._listeners:
                self._stop_listening()
                self._cut()
            elif not on and not self._listeners:
                self._listen(self.port, 0)

        self._do(run)

    def restore(self) -> None:
        """Ends all faults. Connections that lost bytes are reset."""

        def run() -> None:
            self._stalled = False
            self._request_delay_s = self._response_delay_s = 0.0
            self._bytes_per_s, self._buffer_bytes = 0.0, _MAX_BUFFERED_BYTES
            self._cut_after = None
            self._set_drop(requests=False, responses=False)

        self._do(run)
        self.refuse(on=False)

    # -- What it saw ---------------------------------------------------------------------------------------------

    @property
    def accepted(self) -> int:
        """Number of connections accepted so far."""
        return self._accepted

    @property
    def request_bytes(self) -> int:
        """Bytes that came from clients."""
        return self._request_bytes

    @property
    def response_bytes(self) -> int:
        """Bytes that came from the target."""
        return self._response_bytes

    @property
    def dropped_bytes(self) -> int:
        """Bytes swallowed, in both directions."""
        return self._dropped_bytes

    # -- The proxy's thread --------------------------------------------------------------------------------------

    def _open(self, client: socket.socket, number: int) -> _Connection | None:  # noqa: ARG002
        self._accepted += 1
        target = connect(self._target_host, self.target_port)
        return None if target is None else _Connection(client, target)

    def _plan(self) -> float | None:
        """Registers for what can be done now. Returns how long until a delayed piece is due, in seconds."""
        now = time.monotonic()
        soonest: float | None = None
        for connection in list(self._connections):
            masks = {connection.client: 0, connection.target: 0}
            for pipe in connection.pipes:
                if self._stalled:
                    continue
                if not pipe.ended and pipe.buffered < (
                    self._buffer_bytes if pipe.to_target else _MAX_BUFFERED_BYTES
                ):
                    masks[pipe.source] |= selectors.EVENT_READ
                if pipe.queue:
                    due = pipe.queue[0][0]
                    if due <= now:
                        masks[pipe.sink] |= selectors.EVENT_WRITE
                    else:
                        soonest = due if soonest is None else min(soonest, due)
            for sock, mask in masks.items():
                self._register(sock, mask, connection)
        return None if soonest is None else max(0.0, soonest - now)

    def _serve(self, connection: _Connection, fileobj: object, events: int) -> None:
        try:
            for pipe in connection.pipes:
                if pipe.source is fileobj and events & selectors.EVENT_READ:
                    self._read(connection, pipe)
                if pipe.sink is fileobj and events & selectors.EVENT_WRITE:
                    self._write(pipe)
            for pipe in connection.pipes:
                if pipe.ended and not pipe.queue and not pipe.shut:
                    pipe.shut = True
                    pipe.sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(connection)
            return
        if connection in self._connections and all(pipe.shut for pipe in connection.pipes):
            self._close(connection, reset_only=())

    def _read(self, connection: _Connection, pipe: _Pipe) -> None:
        try:
            data = pipe.source.recv(_SLOW_CHUNK_BYTES if self._bytes_per_s else _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            pipe.ended = True
            return
        if pipe.to_target:
            self._request_bytes += len(data)
            dropped, delay_s = self._drop_requests, self._request_delay_s
        else:
            self._response_bytes += len(data)
            dropped, delay_s = self._drop_responses, self._response_delay_s
        if dropped:
            connection.damaged = True
            self._dropped_bytes += len(data)
            return
        if pipe.to_target and self._cut_after is not None:
            if len(data) >= self._cut_after:
                # What may pass must arrive before the reset does.
                pipe.sink.setblocking(True)
                pipe.sink.settimeout(CONNECT_TIMEOUT_S)
                pipe.sink.sendall(b"".join(piece for _, piece in pipe.queue) + data[: self._cut_after])
                self._cut_after = None
                # A reset could overtake what the target has not read yet.
                self._close(connection, reset_only=(connection.client,))
                self._cut()
                return
            self._cut_after -= len(data)
        if pipe.to_target and self._bytes_per_s:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + len(data) / self._bytes_per_s
            delay_s += self._free_at - now
        # A piece never overtakes an earlier one, whatever the delay was then.
        due = max(time.monotonic() + delay_s, pipe.queue[-1][0] if pipe.queue else 0.0)
        pipe.queue.append((due if delay_s or pipe.queue else 0.0, memoryview(data)))
        pipe.buffered += len(data)
        if not delay_s:
            self._write(pipe)

    def _write(self, pipe: _Pipe) -> None:
        now = time.monotonic()
        while pipe.queue and pipe.queue[0][0] <= now:
            due, data = pipe.queue[0]
            try:
                sent = pipe.sink.send(data)
            except BlockingIOError:
                return
            pipe.buffered -= sent
            if sent == len(data):
                pipe.queue.popleft()
            else:
                pipe.queue[0] = (due, data[sent:])

    def _set_drop(self, *, requests: bool | None = None, responses: bool | None = None) -> None:
        if requests is not None:
            self._drop_requests = requests
        if responses is not None:
            self._drop_responses = responses
        if not self._drop_requests and not self._drop_responses:
            for connection in [connection for connection in self._connections if connection.damaged]:
                self._close(connection)
