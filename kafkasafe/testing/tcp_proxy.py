"""A TCP proxy that drops responses, and cuts, delays, stalls or refuses connections.

Between a client and a broker, the proxy simulates faults of the network. A client cannot distinguish a lost response
from a lost request, so a test that drops responses shows why a producer must be idempotent.

```python
with TcpProxy(target_port=9092) as proxy:
    producer = SafeProducer(bootstrap_servers=f"127.0.0.1:{proxy.port}")
    proxy.drop_responses()   # the broker appends, but the client gets no answer
    ...
    proxy.restore()
```

The proxy's port is open as soon as the proxy is constructed. So a broker can advertise the port even if the proxy does
not know the target yet. (After the bootstrap, clients connect to the addresses that brokers advertise.)
"""

from __future__ import annotations

import socket
import time
from typing import Final

from kafkasafe.testing.relay import (
    CONNECT_TIMEOUT_S,
    MAX_BUFFERED_BYTES,
    Relay,
    RelayedConnection,
    RelayedPipe,
    connect,
)
from kafkasafe.testing.sockets import bound

_CHUNK_BYTES: Final = 64 * 1024
_SLOW_CHUNK_BYTES: Final = 4 * 1024


class _Connection(RelayedConnection):
    def __init__(self, client: socket.socket, target: socket.socket) -> None:
        super().__init__(client, target)
        self.damaged = False

    def damage(self) -> None:
        """Marks the connection as damaged, because bytes were dropped. Without the dropped bytes, the receiver could
        not understand later bytes.
        """
        self.damaged = True


class TcpProxy(Relay[_Connection]):
    """Forwards TCP connections, and causes faults on command. Thread-safe.

    When a method returns, the fault has taken effect. Faults accumulate until `restore`.

    Args:
        target_port: Port of the target. Can be set later (attribute `target_port`); until then connections are reset.
        port: Port to listen on; 0: any free one.
        host: Address to listen on.
        target_host: Host of the target.

    Attributes:
        port: Port on which the proxy listens. The port is open as soon as the proxy is constructed.
        target_port: Port of the target. A change applies to new connections.
        accepted: Number of connections accepted so far.
        request_bytes: Bytes received from clients.
        response_bytes: Bytes received from the target.
        dropped_bytes: Bytes dropped, in both directions.

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
        # A bound socket that does not listen, to keep the port reserved while the proxy refuses connections.
        self._keeper: socket.socket | None = None
        try:
            if port:
                bound(host, port, shared=False).close()  # fails if another proxy uses it
            self.port: int = self._listen(port, 0)
            self._keeper = self._own(bound(host, self.port))
        except OSError:
            self.close()
            raise

        # Only the proxy's thread changes these attributes.
        self._drop_requests = False
        self._drop_responses = False
        self._stalled = False
        self._request_delay_s = 0.0
        self._response_delay_s = 0.0
        self._bytes_per_s = 0.0
        self._buffer_bytes = MAX_BUFFERED_BYTES
        self._free_at = 0.0  # time at which the slow uplink will have transferred all bytes received so far
        self._cut_after: int | None = None
        self.accepted = 0
        self.request_bytes = 0
        self.response_bytes = 0
        self.dropped_bytes = 0

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
        """Drops the bytes that the target sends. When the fault ends, resets the connections that lost bytes."""
        self._do(lambda: self._set_drop(responses=on))

    def drop_requests(self, on: bool = True) -> None:
        """Drops the bytes that clients send. When the fault ends, resets the connections that lost bytes."""
        self._do(lambda: self._set_drop(requests=on))

    def stall(self, on: bool = True) -> None:
        """Forwards nothing, but keeps connections open and accepts new ones. When the fault ends, forwards again."""
        self._do(lambda: setattr(self, "_stalled", on))

    def delay(self, response_s: float = 0.0, request_s: float = 0.0) -> None:
        """Delays each piece of data: from the target by `response_s` seconds, from clients by `request_s` seconds.

        Does not limit the amount of data in transit.
        """

        def run() -> None:
            self._response_delay_s = response_s
            self._request_delay_s = request_s

        self._do(run)

    def slow_down(self, request_bytes_per_s: float, *, buffer_bytes: int = 256 * 1024) -> None:
        """Limits the rate of requests, over all connections together, like a slow uplink.

        Args:
            request_bytes_per_s: Bytes in a second; 0: no limit.
            buffer_bytes: Maximum number of bytes in transit, for each connection. At this limit, the proxy stops
                reading, so the client has to wait.
        """

        def run() -> None:
            self._bytes_per_s = request_bytes_per_s
            self._buffer_bytes = buffer_bytes if request_bytes_per_s else MAX_BUFFERED_BYTES
            self._free_at = 0.0

        self._do(run)

    def cut(self) -> int:
        """Resets all connections, and accepts new ones. Returns the number of connections that were reset."""
        return self._do(self._cut)

    def cut_after(self, request_bytes: int) -> None:
        """Resets all connections once, after `request_bytes` more bytes from clients, even within a request."""
        self._do(lambda: setattr(self, "_cut_after", request_bytes))

    def refuse(self, on: bool = True) -> None:
        """Resets all connections and refuses new ones. When the fault ends, listens again."""

        def run() -> None:
            if on and self._listeners:
                self._stop_listening()
                self._cut()
            elif not on and not self._listeners:
                self._listen(self.port, 0)

        self._do(run)

    def restore(self) -> None:
        """Ends all faults. Resets the connections that lost bytes."""

        def run() -> None:
            self._stalled = False
            self._request_delay_s = self._response_delay_s = 0.0
            self._bytes_per_s, self._buffer_bytes = 0.0, MAX_BUFFERED_BYTES
            self._cut_after = None
            self._set_drop(requests=False, responses=False)

        self._do(run)
        self.refuse(on=False)

    # -- The proxy's thread --------------------------------------------------------------------------------------

    def _open(self, client: socket.socket, number: int) -> _Connection | None:  # noqa: ARG002
        self.accepted += 1
        target = connect(self._target_host, self.target_port)
        return None if target is None else _Connection(client, target)

    def _plan(self) -> float | None:
        if not self._stalled:
            return super()._plan()
        for connection in self._connections:
            self._register(connection.client, 0, connection)
            self._register(connection.target, 0, connection)
        return None

    def _read_limit(self, connection: _Connection, pipe: RelayedPipe) -> int:
        most = self._buffer_bytes if pipe is connection.requests else MAX_BUFFERED_BYTES
        if pipe.outbox.size >= most:
            return 0
        return _SLOW_CHUNK_BYTES if self._bytes_per_s else _CHUNK_BYTES

    def _settle(self, connection: _Connection) -> None:
        for pipe in connection.pipes:
            pipe.end_sink()
        if all(pipe.shut for pipe in connection.pipes):
            self._close(connection, reset_only=())

    def _receive(self, connection: _Connection, pipe: RelayedPipe, data: bytes) -> None:
        if not data:
            return
        is_request = pipe is connection.requests
        if is_request:
            self.request_bytes += len(data)
            dropped, delay_s = self._drop_requests, self._request_delay_s
        else:
            self.response_bytes += len(data)
            dropped, delay_s = self._drop_responses, self._response_delay_s
        if dropped:
            connection.damage()
            self.dropped_bytes += len(data)
            return
        if is_request and self._cut_after is not None:
            if len(data) >= self._cut_after:
                # The bytes before the limit must arrive before the reset.
                pipe.sink.setblocking(True)
                pipe.sink.settimeout(CONNECT_TIMEOUT_S)
                pipe.sink.sendall(pipe.outbox.take() + data[: self._cut_after])
                self._cut_after = None
                # Do not reset the target's connection: a reset could discard bytes that the target has not read yet.
                self._close(connection, reset_only=(connection.client,))
                self._cut()
                return
            self._cut_after -= len(data)
        if is_request and self._bytes_per_s:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + len(data) / self._bytes_per_s
            delay_s += self._free_at - now
        pipe.outbox.put(data, time.monotonic() + delay_s if delay_s else 0.0)
        if not delay_s:
            pipe.outbox.send(time.monotonic())

    def _set_drop(self, *, requests: bool | None = None, responses: bool | None = None) -> None:
        if requests is not None:
            self._drop_requests = requests
        if responses is not None:
            self._drop_responses = responses
        if not self._drop_requests and not self._drop_responses:
            for connection in [connection for connection in self._connections if connection.damaged]:
                self._close(connection)
